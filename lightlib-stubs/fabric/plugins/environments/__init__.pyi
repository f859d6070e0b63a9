# Written by scripts/typing_stubs.py --write.
from lightlib.fabric.plugins.environments import cluster_environment, kubeflow, lightning, lsf, mpi, slurm, torchelastic, xla
from lightlib.launch import SLURMEnvironment
from lightlib_lightning.absent import Absent
from lightlib_lightning.environments import ClusterEnvironment, KubeflowEnvironment, LSFEnvironment, LightningEnvironment, MPIEnvironment, TorchElasticEnvironment
__all__ = ['ClusterEnvironment', 'KubeflowEnvironment', 'LSFEnvironment', 'LightningEnvironment', 'MPIEnvironment', 'SLURMEnvironment', 'TorchElasticEnvironment', 'XLAEnvironment', 'cluster_environment', 'kubeflow', 'lightning', 'lsf', 'mpi', 'slurm', 'torchelastic', 'xla']
class XLAEnvironment(Absent): ...
