# Written by scripts/typing_stubs.py --write.
from lightlib.experiment.current import CurrentTrial, current
from lightlib.experiment.custom import Action, Continue, Create, Pause, SearchTrial, Searcher, Shutdown, Stop
from lightlib.experiment.parameters import Categorical
from lightlib.experiment.ranges import Double, Int, Log, LogInt
from lightlib.experiment.work.function import search
from lightlib.experiment.work.handle import Experiment, open, run
__all__ = ['Action', 'Categorical', 'Continue', 'Create', 'CurrentTrial', 'Double', 'Experiment', 'Int', 'Log', 'LogInt', 'Pause', 'SearchTrial', 'Searcher', 'Shutdown', 'Stop', 'current', 'open', 'run', 'search']
