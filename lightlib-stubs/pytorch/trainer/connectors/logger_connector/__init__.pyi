# Written by scripts/typing_stubs.py --write.
from lightlib.compat.internals.connectors import LoggerConnector as _LoggerConnector
from lightlib.pytorch.trainer.connectors.logger_connector import fx_validator, logger_connector, result
__all__ = ['_LoggerConnector', 'fx_validator', 'logger_connector', 'result']
