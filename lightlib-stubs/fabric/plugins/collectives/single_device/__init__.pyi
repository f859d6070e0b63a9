# Written by scripts/typing_stubs.py --write.
from lightlib.compat.tools.collectives import Collective, SingleDeviceCollective
from lightlib.compat.tools.values import CollectibleGroup
__all__ = ['CollectibleGroup', 'Collective', 'SingleDeviceCollective']
