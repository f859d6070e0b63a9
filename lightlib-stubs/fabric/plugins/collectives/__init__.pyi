# Written by scripts/typing_stubs.py --write.
from lightlib.fabric.plugins.collectives import collective, single_device, torch_collective
from lightlib_lightning.tools.collectives import Collective, SingleDeviceCollective, TorchCollective
__all__ = ['Collective', 'SingleDeviceCollective', 'TorchCollective', 'collective', 'single_device', 'torch_collective']
