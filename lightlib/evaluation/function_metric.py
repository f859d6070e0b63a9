"""FunctionMetric: numbers by a function of all predictions, as `compute_metrics` of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lightlib.errors import MisconfigurationException, shown
from lightlib.evaluation.metric import Metric

_PADDING = -100  # as transformers pads predictions and labels of different lengths


class Predictions(NamedTuple):
    """All predictions and targets, as arrays of NumPy; the attributes are those of transformers' `EvalPrediction`."""

    predictions: Any
    label_ids: Any


class FunctionMetric(Metric):
    """Keeps the predictions and targets of each sample, and calls a function with all of them.

    Samples of different lengths are padded with -100, as transformers does.

    Args:
        function: Gets `Predictions`, and returns numbers by name.
        inputs: A function of a batch and the output of the step that returns predictions and targets.

    Example:
        >>> metric = FunctionMetric(lambda p: {"right": (p.predictions == p.label_ids).mean()}, lambda x, out: (out, x))
        >>> metric.process(torch.tensor([1, 2]), torch.tensor([1, 3]))
        >>> metric.evaluate()
        {'right': 0.5}
    """

    def __init__(self, function: Callable[[Any], Mapping[str, Any]], inputs: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self._function, self._inputs = function, inputs

    def process(self, batch: Any, outputs: Any) -> None:
        pair = self._inputs(batch, outputs)
        if (
            not isinstance(pair, (tuple, list))
            or len(pair) != 2
            or not all(isinstance(tensor, Tensor) for tensor in pair)
        ):
            raise MisconfigurationException(
                f"MetricCallback with the function {self._name} got {shown(pair)} in place of predictions and targets.",
                expected="two tensors with an entry for each sample.",
                fix="MetricCallback(…, inputs=lambda batch, outputs: (outputs['logits'], batch['labels']))",
            )
        self.results.extend(zip(*(part.detach().unbind() for part in pair), strict=True))

    def compute_metrics(self, results: list[Any]) -> Mapping[str, Any]:
        predictions, targets = zip(*results, strict=True)
        return self._function(Predictions(_array(predictions), _array(targets)))

    @property
    def _name(self) -> str:
        return str(getattr(self._function, "__name__", self._function))


def _array(samples: tuple[Tensor, ...]) -> Any:
    """Return the samples as one array, padded along their first dimension if they differ in it."""
    if len({sample.shape for sample in samples}) == 1:
        stacked = torch.stack(samples)
    else:
        stacked = pad_sequence(list(samples), batch_first=True, padding_value=_PADDING)
    return (stacked.float() if stacked.dtype in (torch.bfloat16, torch.float16) else stacked).cpu().numpy()
