"""The variables in which torchrun, SLURM, MPI, LSF and Kubeflow pass rank and world size."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Names:
    """The variables in which a launcher passes the rank of a process; of several alternatives the first that is set."""

    name: str
    title: str
    rank: str
    size: str
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]
    node_rank: tuple[str, ...] = ()
    num_nodes: tuple[str, ...] = ()
    job: tuple[str, ...] = ()
    devices_fix: str = ""
    nodes_fix: str = ""


_BY_HAND = ("RANK", "WORLD_SIZE", ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",))
OWN = Names(
    "local",
    "lightlib",
    *_BY_HAND,
    ("NODE_RANK",),
    devices_fix="the same `devices` for every Trainer of the program, for the processes are started once",
)
PLAIN = Names(
    "variables",
    "the variables RANK and WORLD_SIZE",
    *_BY_HAND,
    ("NODE_RANK", "GROUP_RANK"),
    devices_fix="unset RANK and WORLD_SIZE (lightlib then starts {devices} processes itself)",
)
KUBEFLOW = replace(PLAIN, name="kubeflow", title="Kubeflow", devices_fix="as many workers as processes")
RAY = replace(
    PLAIN, name="ray", title="Ray Train", devices_fix="ScalingConfig(num_workers={devices}) with workers on one machine"
)
TORCHRUN = Names(
    "torchrun",
    "torchrun",
    *_BY_HAND,
    ("GROUP_RANK",),
    ("GROUP_WORLD_SIZE",),
    devices_fix="torchrun --nproc-per-node={devices}",
    nodes_fix="torchrun --nnodes={nodes}",
)
SLURM = Names(
    "slurm",
    "SLURM",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    ("SLURM_LOCALID",),
    (),
    ("SLURM_NODEID",),
    ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    job=("SLURM_JOB_ID", "SLURM_JOBID"),
    devices_fix="#SBATCH --ntasks-per-node={devices}",
    nodes_fix="#SBATCH --nodes={nodes}",
)
_OPEN_MPI = Names(
    "mpi",
    "mpirun (Open MPI)",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    ("OMPI_COMM_WORLD_LOCAL_RANK",),
    ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    devices_fix="mpirun -npernode {devices}",
    nodes_fix="mpirun with hosts on {nodes} machines",
)
_PALS = Names(
    "mpi",
    "mpiexec (PALS)",
    "PALS_RANKID",
    "PMI_SIZE",
    ("PALS_LOCAL_RANKID",),
    ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
    ("PALS_NODEID",),
    job=("PALS_APID",),
    devices_fix="mpiexec --ppn {devices}",
)
PMI = Names(
    "mpi",
    "mpiexec (MPICH, Intel MPI)",
    "PMI_RANK",
    "PMI_SIZE",
    ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
    ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    job=("PMI_JOBID",),
    devices_fix="mpiexec -ppn {devices}",
)
_MVAPICH = Names(
    "mpi",
    "mpirun (MVAPICH)",
    "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_SIZE",
    ("MV2_COMM_WORLD_LOCAL_RANK",),
    ("MV2_COMM_WORLD_LOCAL_SIZE",),
    devices_fix="mpirun -ppn {devices}",
)
LSF = Names(
    "lsf",
    "LSF (jsrun)",
    "JSM_NAMESPACE_RANK",
    "JSM_NAMESPACE_SIZE",
    ("JSM_NAMESPACE_LOCAL_RANK",),
    ("JSM_NAMESPACE_LOCAL_SIZE",),
    job=("LSB_JOBID",),
    devices_fix="jsrun with {devices} tasks per host",
    nodes_fix="jsrun on {nodes} hosts",
)
MPI = (_OPEN_MPI, _PALS, PMI, _MVAPICH)
NAMES: dict[str, tuple[Names, ...]] = {
    "torchrun": (TORCHRUN,),
    "slurm": (SLURM,),
    "mpi": MPI,
    "kubeflow": (KUBEFLOW,),
    "ray": (RAY,),
    "lsf": (LSF,),
    "variables": (PLAIN,),
}
