# Written by scripts/typing_stubs.py --write.
from lightlib.launch import SLURMEnvironment
from lightlib_lightning.internals.connectors import SignalConnector as _SignalConnector
from lightlib_lightning.loggers import log
from lightning_utilities.core.rank_zero import rank_prefixed_message, rank_zero_info
__all__ = ['SLURMEnvironment', '_IS_WINDOWS', '_SignalConnector', 'log', 'rank_prefixed_message', 'rank_zero_info']
_IS_WINDOWS: bool
