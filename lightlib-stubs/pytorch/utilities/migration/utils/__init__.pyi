# Written by scripts/typing_stubs.py --write.
from lightlib.compat.tools.old_pickles import pl_legacy_patch
from lightlib.compat.tools.parsing import migrate_checkpoint
from lightlib.compat.types import _PATH
from lightlib.report import PossibleUserWarning
from lightning_utilities.core.enums import StrEnum as LightningEnum
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['LightningEnum', 'PossibleUserWarning', '_IS_WINDOWS', '_PATH', 'migrate_checkpoint', 'pl_legacy_patch', 'rank_zero_warn']
_IS_WINDOWS: bool
