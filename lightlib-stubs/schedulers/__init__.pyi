# Written by scripts/typing_stubs.py --write.
from lightlib.schedulers.annealing import CosineAnnealingWarmupLR, FlatAnnealingLR, FlatAnnealingWarmupLR, LinearWarmupLR, PolynomialWarmupLR, WarmupStableDecayLR
from lightlib.schedulers.by_name import get_scheduler
from lightlib.schedulers.closed_form import ClosedFormLR
from lightlib.schedulers.endless import ConstantWarmupLR, CosineRestartLR, InverseSquareRootLR, MultiStepWarmupLR
from lightlib.schedulers.parameter import ParamScheduler
from lightlib.schedulers.placeholders import EVAL_DATALOADER_LEN, NUM_EPOCHS, Placeholder, TOTAL_UPDATE_STEPS, TRAIN_DATALOADER_LEN, UPDATE_STEPS_PER_EPOCH
__all__ = ['ClosedFormLR', 'ConstantWarmupLR', 'CosineAnnealingWarmupLR', 'CosineRestartLR', 'EVAL_DATALOADER_LEN', 'FlatAnnealingLR', 'FlatAnnealingWarmupLR', 'InverseSquareRootLR', 'LinearWarmupLR', 'MultiStepWarmupLR', 'NUM_EPOCHS', 'ParamScheduler', 'Placeholder', 'PolynomialWarmupLR', 'TOTAL_UPDATE_STEPS', 'TRAIN_DATALOADER_LEN', 'UPDATE_STEPS_PER_EPOCH', 'WarmupStableDecayLR', 'get_scheduler']
