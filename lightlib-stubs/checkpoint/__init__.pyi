# Written by scripts/typing_stubs.py --write.
from lightlib.checkpoint.storage.label import Label
from lightlib.checkpoint.storage.mapping import storage_url
from lightlib.checkpoint.tools.inspection import Inspection, inspect
from lightlib.checkpoint.tools.publish import publish
from lightlib.checkpoint.tools.verbs import Verified, consolidate, convert, export, load, verify
__all__ = ['Inspection', 'Label', 'Verified', 'consolidate', 'convert', 'export', 'inspect', 'load', 'publish', 'storage_url', 'verify']
