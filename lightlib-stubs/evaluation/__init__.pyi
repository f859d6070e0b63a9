# Written by scripts/typing_stubs.py --write.
from lightlib.evaluation.augmentation import TestTimeAugmentation
from lightlib.evaluation.dump import PredictionDump
from lightlib.evaluation.metric import Metric
from lightlib.evaluation.metric_callback import MetricCallback
from lightlib.evaluation.offline import evaluate_offline
from lightlib.evaluation.visualizer import SampleVisualizer
__all__ = ['Metric', 'MetricCallback', 'PredictionDump', 'SampleVisualizer', 'TestTimeAugmentation', 'evaluate_offline']
