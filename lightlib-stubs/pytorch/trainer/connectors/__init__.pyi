# Written by scripts/typing_stubs.py --write.
from lightlib.pytorch.trainer.connectors import accelerator_connector, callback_connector, checkpoint_connector, data_connector, logger_connector, signal_connector
__all__ = ['accelerator_connector', 'callback_connector', 'checkpoint_connector', 'data_connector', 'logger_connector', 'signal_connector']
