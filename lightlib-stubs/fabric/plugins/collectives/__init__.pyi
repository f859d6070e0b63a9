# Written by scripts/typing_stubs.py --write.
from lightlib.compat.tools.collectives import Collective, SingleDeviceCollective, TorchCollective
from lightlib.fabric.plugins.collectives import collective, single_device, torch_collective
__all__ = ['Collective', 'SingleDeviceCollective', 'TorchCollective', 'collective', 'single_device', 'torch_collective']
