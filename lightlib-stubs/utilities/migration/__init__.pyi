# Written by scripts/typing_stubs.py --write.
from lightlib.utilities.migration import migration, utils
from lightlib_lightning.tools.old_pickles import pl_legacy_patch
from lightlib_lightning.tools.parsing import migrate_checkpoint
__all__ = ['migrate_checkpoint', 'migration', 'pl_legacy_patch', 'utils']
