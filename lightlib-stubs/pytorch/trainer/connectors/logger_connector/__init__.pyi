# Written by scripts/typing_stubs.py --write.
from lightlib.pytorch.trainer.connectors.logger_connector import fx_validator, logger_connector, result
from lightlib_lightning.internals.connectors import LoggerConnector as _LoggerConnector
__all__ = ['_LoggerConnector', 'fx_validator', 'logger_connector', 'result']
