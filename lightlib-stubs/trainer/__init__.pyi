# Written by scripts/typing_stubs.py --write.
from lightlib import Trainer, seed_everything
from lightlib.trainer import call, configuration_validator, connectors, setup, states, trainer
__all__ = ['Trainer', 'call', 'configuration_validator', 'connectors', 'seed_everything', 'setup', 'states', 'trainer']
