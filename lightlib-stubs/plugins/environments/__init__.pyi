# Written by scripts/typing_stubs.py --write.
from lightlib.launch import SLURMEnvironment
from lightlib_lightning.absent import Absent
from lightlib_lightning.environments import ClusterEnvironment, KubeflowEnvironment, LSFEnvironment, LightningEnvironment, MPIEnvironment, TorchElasticEnvironment
__all__ = ['ClusterEnvironment', 'KubeflowEnvironment', 'LSFEnvironment', 'LightningEnvironment', 'MPIEnvironment', 'SLURMEnvironment', 'TorchElasticEnvironment', 'XLAEnvironment']
class XLAEnvironment(Absent): ...
