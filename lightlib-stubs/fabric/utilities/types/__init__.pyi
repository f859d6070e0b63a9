# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.internals.functions import Stateful as _Stateful
from lightlib_lightning.tools.values import CollectibleGroup, Optimizable, Steppable
from lightlib_lightning.types import RedOpType, _DATALOADER, _DEVICE, _EVALUATE_OUTPUT, _MAP_LOCATION_TYPE, _METRIC, _METRICS, _NUMBER, _OUT_DICT, _PARAMETERS, _PATH, _PBAR_DICT, _PREDICT_OUTPUT
from torch import UntypedStorage
__all__ = ['CollectibleGroup', 'Optimizable', 'RedOpType', 'Steppable', 'UntypedStorage', '_DATALOADER', '_DEVICE', '_EVALUATE_OUTPUT', '_MAP_LOCATION_TYPE', '_METRIC', '_METRICS', '_NUMBER', '_OUT_DICT', '_PARAMETERS', '_PATH', '_PBAR_DICT', '_PREDICT_OUTPUT', '_Stateful']
