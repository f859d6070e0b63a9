# Written by scripts/typing_stubs.py --write.
from lightlib.samplers.distributed import UnrepeatedDistributedSampler, UnrepeatedDistributedSamplerWrapper
from lightlib_lightning.absent import Absent
from lightning_utilities.core.rank_zero import rank_zero_debug, rank_zero_info
__all__ = ['UnrepeatedDistributedSampler', 'UnrepeatedDistributedSamplerWrapper', 'prepare_for_backward', 'rank_zero_debug', 'rank_zero_info']
class prepare_for_backward(Absent): ...
