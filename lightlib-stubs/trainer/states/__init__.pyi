# Written by scripts/typing_stubs.py --write.
from lightlib.core.progress.states import RunningStage, TrainerFn, TrainerState, TrainerStatus
from lightning_utilities.core.enums import StrEnum as LightningEnum
__all__ = ['LightningEnum', 'RunningStage', 'TrainerFn', 'TrainerState', 'TrainerStatus']
