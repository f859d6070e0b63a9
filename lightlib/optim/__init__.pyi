# Written by scripts/typing_stubs.py --write.
from lightlib.optim.groups import param_groups
from lightlib.optim.lamb import LAMB
from lightlib.optim.lars import LARS
from lightlib.optim.lion import Lion
from lightlib.optim.muon import MuonAdamW
from lightlib.optim.scaling import Scaling
__all__ = ['LAMB', 'LARS', 'Lion', 'MuonAdamW', 'Scaling', 'param_groups']
