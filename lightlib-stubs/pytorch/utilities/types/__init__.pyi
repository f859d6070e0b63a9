# Written by scripts/typing_stubs.py --write.
from lightlib.core.optimization.schedules import SchedulerConfig as LRSchedulerConfig
from lightlib_lightning.types import DistributedDataParallel, EVAL_DATALOADERS, LRScheduler, LRSchedulerConfigType, LRSchedulerPLType, LRSchedulerType, LRSchedulerTypeTuple, LRSchedulerTypeUnion, OptimizerConfig, OptimizerLRScheduler, OptimizerLRSchedulerConfig, STEP_OUTPUT, TRAIN_DATALOADERS, _DATALOADER, _DEVICE, _EVALUATE_OUTPUT, _MAP_LOCATION_TYPE, _METRIC, _METRICS, _NUMBER, _OUT_DICT, _PARAMETERS, _PATH, _PBAR_DICT, _PREDICT_OUTPUT
from torch.distributed import ProcessGroup
from torch.optim.lr_scheduler import ReduceLROnPlateau
__all__ = ['DistributedDataParallel', 'EVAL_DATALOADERS', 'LRScheduler', 'LRSchedulerConfig', 'LRSchedulerConfigType', 'LRSchedulerPLType', 'LRSchedulerType', 'LRSchedulerTypeTuple', 'LRSchedulerTypeUnion', 'OptimizerConfig', 'OptimizerLRScheduler', 'OptimizerLRSchedulerConfig', 'ProcessGroup', 'ReduceLROnPlateau', 'STEP_OUTPUT', 'TRAIN_DATALOADERS', '_DATALOADER', '_DEVICE', '_EVALUATE_OUTPUT', '_MAP_LOCATION_TYPE', '_METRIC', '_METRICS', '_NUMBER', '_OUT_DICT', '_PARAMETERS', '_PATH', '_PBAR_DICT', '_PREDICT_OUTPUT']
