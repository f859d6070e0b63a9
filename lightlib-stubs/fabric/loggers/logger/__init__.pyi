# Written by scripts/typing_stubs.py --write.
from lightlib.loggers import FabricLogger as Logger, DummyExperiment as _DummyExperiment, rank_zero_experiment
from lightning_utilities.core.rank_zero import rank_zero_only
__all__ = ['Logger', '_DummyExperiment', 'rank_zero_experiment', 'rank_zero_only']
