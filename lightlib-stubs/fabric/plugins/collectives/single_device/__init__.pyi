# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.tools.collectives import Collective, SingleDeviceCollective
from lightlib_lightning.tools.values import CollectibleGroup
__all__ = ['CollectibleGroup', 'Collective', 'SingleDeviceCollective']
