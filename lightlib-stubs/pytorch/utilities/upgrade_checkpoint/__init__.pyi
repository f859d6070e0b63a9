# Written by scripts/typing_stubs.py --write.
from lightlib.compat.tools.commands import upgrade_checkpoints as main
from lightlib.compat.tools.old_pickles import pl_legacy_patch
from lightlib.compat.tools.parsing import migrate_checkpoint
__all__ = ['main', 'migrate_checkpoint', 'pl_legacy_patch']
