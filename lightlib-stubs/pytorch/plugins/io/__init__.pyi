# Written by scripts/typing_stubs.py --write.
from lightlib.pytorch.plugins.io import async_plugin, checkpoint_plugin, hpu_plugin, torch_plugin, wrapper, xla_plugin
from lightlib_lightning.absent import Absent
from lightlib_lightning.plugins.io import AsyncCheckpointIO, CheckpointIO, TorchCheckpointIO
__all__ = ['AsyncCheckpointIO', 'CheckpointIO', 'HPUCheckpointIO', 'TorchCheckpointIO', 'XLACheckpointIO', 'async_plugin', 'checkpoint_plugin', 'hpu_plugin', 'torch_plugin', 'wrapper', 'xla_plugin']
class HPUCheckpointIO(Absent): ...
class XLACheckpointIO(Absent): ...
