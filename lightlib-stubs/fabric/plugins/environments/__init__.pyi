# Written by scripts/typing_stubs.py --write.
from lightlib.compat.absent import Absent
from lightlib.compat.environments import ClusterEnvironment, KubeflowEnvironment, LSFEnvironment, LightningEnvironment, MPIEnvironment, TorchElasticEnvironment
from lightlib.fabric.plugins.environments import cluster_environment, kubeflow, lightning, lsf, mpi, slurm, torchelastic, xla
from lightlib.launch import SLURMEnvironment
__all__ = ['ClusterEnvironment', 'KubeflowEnvironment', 'LSFEnvironment', 'LightningEnvironment', 'MPIEnvironment', 'SLURMEnvironment', 'TorchElasticEnvironment', 'XLAEnvironment', 'cluster_environment', 'kubeflow', 'lightning', 'lsf', 'mpi', 'slurm', 'torchelastic', 'xla']
class XLAEnvironment(Absent): ...
