# Written by scripts/typing_stubs.py --write.
from lightlib.compat.absent import Absent
from lightlib.compat.plugins.io import CheckpointIO, TorchCheckpointIO
from lightlib.fabric.plugins.io import checkpoint_io, torch_io, xla
__all__ = ['CheckpointIO', 'TorchCheckpointIO', 'XLACheckpointIO', 'checkpoint_io', 'torch_io', 'xla']
class XLACheckpointIO(Absent): ...
