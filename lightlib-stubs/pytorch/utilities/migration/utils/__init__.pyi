# Written by scripts/typing_stubs.py --write.
from lightlib.report import PossibleUserWarning
from lightlib_lightning.tools.old_pickles import pl_legacy_patch
from lightlib_lightning.tools.parsing import migrate_checkpoint
from lightlib_lightning.types import _PATH
from lightning_utilities.core.enums import StrEnum as LightningEnum
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['LightningEnum', 'PossibleUserWarning', '_IS_WINDOWS', '_PATH', 'migrate_checkpoint', 'pl_legacy_patch', 'rank_zero_warn']
_IS_WINDOWS: bool
