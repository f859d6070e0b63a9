# Written by scripts/typing_stubs.py --write.
from lightlib.compat.tools.old_pickles import pl_legacy_patch
from lightlib.compat.tools.parsing import migrate_checkpoint
from lightlib.pytorch.utilities.migration import migration, utils
__all__ = ['migrate_checkpoint', 'migration', 'pl_legacy_patch', 'utils']
