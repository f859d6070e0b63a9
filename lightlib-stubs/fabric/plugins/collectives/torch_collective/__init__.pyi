# Written by scripts/typing_stubs.py --write.
from lightlib.compat.tools.collectives import Collective, TorchCollective
from lightlib.compat.tools.values import CollectibleGroup
from lightlib.compat.types import RedOpType
from lightlib.strategies.group.process_group import DEFAULT_TIMEOUT as default_pg_timeout
from torch.distributed import ReduceOp
__all__ = ['CollectibleGroup', 'Collective', 'RedOpType', 'ReduceOp', 'TorchCollective', 'default_pg_timeout']
