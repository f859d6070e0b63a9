# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.tools.commands import upgrade_checkpoints as main
from lightlib_lightning.tools.old_pickles import pl_legacy_patch
from lightlib_lightning.tools.parsing import migrate_checkpoint
__all__ = ['main', 'migrate_checkpoint', 'pl_legacy_patch']
