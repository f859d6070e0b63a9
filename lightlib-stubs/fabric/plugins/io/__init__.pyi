# Written by scripts/typing_stubs.py --write.
from lightlib.fabric.plugins.io import checkpoint_io, torch_io, xla
from lightlib_lightning.absent import Absent
from lightlib_lightning.plugins.io import CheckpointIO, TorchCheckpointIO
__all__ = ['CheckpointIO', 'TorchCheckpointIO', 'XLACheckpointIO', 'checkpoint_io', 'torch_io', 'xla']
class XLACheckpointIO(Absent): ...
