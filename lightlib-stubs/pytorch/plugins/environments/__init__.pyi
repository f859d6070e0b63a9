# Written by scripts/typing_stubs.py --write.
from lightlib.compat.absent import Absent
from lightlib.compat.environments import ClusterEnvironment, KubeflowEnvironment, LSFEnvironment, LightningEnvironment, MPIEnvironment, TorchElasticEnvironment
from lightlib.launch import SLURMEnvironment
__all__ = ['ClusterEnvironment', 'KubeflowEnvironment', 'LSFEnvironment', 'LightningEnvironment', 'MPIEnvironment', 'SLURMEnvironment', 'TorchElasticEnvironment', 'XLAEnvironment']
class XLAEnvironment(Absent): ...
