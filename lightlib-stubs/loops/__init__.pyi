# Written by scripts/typing_stubs.py --write.
from lightlib.loops import evaluation_loop, fetchers, fit_loop, loop, optimization, prediction_loop, progress, training_epoch_loop, utilities
from lightlib_lightning.internals.loops import EvaluationLoop as _EvaluationLoop, FitLoop as _FitLoop, PredictionLoop as _PredictionLoop, EpochLoop as _TrainingEpochLoop
__all__ = ['_EvaluationLoop', '_FitLoop', '_PredictionLoop', '_TrainingEpochLoop', 'evaluation_loop', 'fetchers', 'fit_loop', 'loop', 'optimization', 'prediction_loop', 'progress', 'training_epoch_loop', 'utilities']
