# Written by scripts/typing_stubs.py --write.
from lightlib.strategies.group.process_group import DEFAULT_TIMEOUT as default_pg_timeout
from lightlib_lightning.tools.collectives import Collective, TorchCollective
from lightlib_lightning.tools.values import CollectibleGroup
from lightlib_lightning.types import RedOpType
from torch.distributed import ReduceOp
__all__ = ['CollectibleGroup', 'Collective', 'RedOpType', 'ReduceOp', 'TorchCollective', 'default_pg_timeout']
