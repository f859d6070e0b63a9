# Written by scripts/typing_stubs.py --write.
from torch.utils._pytree import SUPPORTED_NODES
__all__ = ['SUPPORTED_NODES']
