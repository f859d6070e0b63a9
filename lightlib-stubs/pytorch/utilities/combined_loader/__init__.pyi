# Written by scripts/typing_stubs.py --write.
from lightlib import CombinedLoader
from lightlib_lightning.internals.functions import Stateful as _Stateful
from lightlib_lightning.tools.small_functions import sized_len
from torch.utils._pytree import tree_unflatten
__all__ = ['CombinedLoader', '_Stateful', 'sized_len', 'tree_unflatten']
