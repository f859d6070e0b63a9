"""Measures: a metric of either kind while it collects the batches of one loader."""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from lightlib.core.metrics.torchmetric import (
    is_metric,
    keep_local,
    load_merged_states,
    load_metric_state,
    metric_state,
    parts_of,
)
from lightlib.errors import ArgumentTypeError, MisconfigurationException, shown
from lightlib.evaluation.exchange import compact
from lightlib.evaluation.function_metric import FunctionMetric
from lightlib.evaluation.metric import Metric
from lightlib.evaluation.order import Sharding, in_order
from lightlib.loggers.logger import number
from lightlib.tree import to_device

Inputs = Callable[[Any, Any], Any]
_CPU = torch.device("cpu")
_TASKS = re.compile(r"^(Binary|Multiclass|Multilabel)(?=[A-Z])")
_FIX = "MetricCallback(torchmetrics.Accuracy(task='multiclass', num_classes=10))"


class MetricCollector(ABC):
    """One metric while it collects the batches of a loader on this rank.

    Attributes:
        folder: For the exchange of states; None: in memory.
    """

    folder: Any = None

    @abstractmethod
    def fresh(self, device: torch.device) -> MetricCollector:
        """Return a collector of the same metric that has collected nothing, on a device."""

    @abstractmethod
    def update(self, batch: Any, outputs: Any) -> None:
        """Add a batch and the output of the step."""

    @abstractmethod
    def state(self) -> Any:
        """Return the collected state, as tensors on the CPU and plain values."""

    @abstractmethod
    def load(self, state: Any) -> None:
        """Continue with a state."""

    @abstractmethod
    def values(self, states: Sequence[Any], sharding: Sharding) -> dict[str, float]:
        """Return the numbers of the states of all ranks."""

    @abstractmethod
    def higher_is_better(self, name: str) -> bool | None:
        """Return whether more is better of the number of this name; None: unknown, or another metric's."""

    def use_dataset(self, dataset: Any) -> None:
        """Show the metric the data set."""


class ProcessMetricCollector(MetricCollector):
    """A `Metric`: keeps the results of each batch."""

    def __init__(self, metric: Metric, device: torch.device = _CPU) -> None:
        self.metric, self.folder = metric, metric.collect_dir
        self._device = device if metric.collect_device == "gpu" else _CPU
        self._batches: list[list[Any]] = []

    def fresh(self, device: torch.device) -> MetricCollector:
        return ProcessMetricCollector(self.metric, device)

    def update(self, batch: Any, outputs: Any) -> None:
        self.metric.process(batch, outputs)
        self._batches.append(self.metric.drain(self._device))

    def state(self) -> Any:
        return compact(self._batches)

    def load(self, state: Any) -> None:
        self._batches = to_device(list(state), self._device)

    def values(self, states: Sequence[Any], sharding: Sharding) -> dict[str, float]:
        results = in_order(type(self.metric).__name__, states, sharding)
        return self.metric.numbers(to_device(results, self._device))

    def higher_is_better(self, name: str) -> bool | None:
        return self.metric.is_higher_better(name)

    def use_dataset(self, dataset: Any) -> None:
        self.metric.use_dataset(dataset)


class TorchMetricCollector(MetricCollector):
    """A metric of torchmetrics: updates a clone with each batch."""

    def __init__(self, name: str, metric: Any, inputs: Inputs) -> None:
        self.name, self._inputs = name, inputs
        self._template, self._metric = metric, copy.deepcopy(metric)
        keep_local(self._metric)
        self._metric.reset()

    def fresh(self, device: torch.device) -> MetricCollector:
        collector = TorchMetricCollector(self.name, self._template, self._inputs)
        collector._metric.to(device)
        return collector

    def update(self, batch: Any, outputs: Any) -> None:
        arguments = self._inputs(batch, outputs)
        if isinstance(arguments, Mapping):
            self._metric.update(**arguments)
        else:
            self._metric.update(*(arguments if isinstance(arguments, (tuple, list)) else (arguments,)))

    def state(self) -> Any:
        return [compact(metric_state(part)) for part in parts_of(self._metric)]

    def load(self, state: Any) -> None:
        for part, saved in zip(parts_of(self._metric), state, strict=True):
            load_metric_state(part, saved)

    def values(self, states: Sequence[Any], sharding: Sharding) -> dict[str, float]:
        if not any(part["updates"] for state in states for part in state):
            return {}
        merged = copy.deepcopy(self._template).to(self._metric.device)
        keep_local(merged)
        merged.reset()
        for place, part in enumerate(parts_of(merged)):
            load_merged_states(part, [state[place] for state in states])
        return self._numbers(merged.compute())

    def higher_is_better(self, name: str) -> bool | None:
        return self._metric.higher_is_better if name == self.name else None

    def _numbers(self, value: Any) -> dict[str, float]:
        if isinstance(value, Mapping):
            return {f"{self.name}_{key}": number(f"{self.name}_{key}", each) for key, each in value.items()}
        if isinstance(value, Tensor) and value.numel() != 1:
            raise MisconfigurationException(
                f"The metric {self.name!r} is a tensor of shape {tuple(value.shape)}.",
                expected="a single number, or a dict of numbers.",
                fix="average='macro' or another average, or a lightlib.evaluation.Metric that returns a dict.",
            )
        return {self.name: number(self.name, value)}


def preds_and_target(batch: Any, outputs: Any) -> tuple[Any, Any]:
    """Return the predictions and targets of a batch, if they are where they usually are.

    Predictions and targets are ``outputs["preds"]`` and ``outputs["target"]``; or `outputs` is a pair of them; or it is
    a tensor of predictions (or has "preds" alone), and the batch is ``(inputs, targets)``; or they are
    ``outputs["logits"]`` and ``batch["labels"]``, as with models of transformers. An object's attributes count as the
    entries of a dict; of a pair of a loss and predictions, the targets are in the batch.

    Raises:
        MisconfigurationException: They are somewhere else.
    """
    labelled = isinstance(batch, (tuple, list)) and len(batch) >= 2
    if not isinstance(outputs, (Mapping, Tensor, tuple, list)) and hasattr(outputs, "__dict__"):
        outputs = vars(outputs)
    has_labels = isinstance(batch, Mapping) and "labels" in batch
    outputs = _without_loss(outputs)
    if isinstance(outputs, Mapping) and "preds" in outputs:
        if "target" in outputs:
            return outputs["preds"], outputs["target"]
        if labelled or has_labels:
            return outputs["preds"], batch["labels" if has_labels else 1]
    elif isinstance(outputs, Mapping) and "logits" in outputs and has_labels:
        return outputs["logits"], batch["labels"]
    elif isinstance(outputs, Tensor) and labelled:
        return outputs, batch[1]
    elif isinstance(outputs, (tuple, list)) and len(outputs) == 2:
        return outputs[0], outputs[1]
    kind = f"a dict with {', '.join(map(repr, outputs))}" if isinstance(outputs, Mapping) else shown(outputs)
    raise MisconfigurationException(
        f"MetricCallback found no predictions and targets: the step returned {kind}.",
        expected='{"preds": …, "target": …}, a pair of them, or predictions with a batch (inputs, targets).',
        fix='return {"preds": preds, "target": target} from the step, or '
        "MetricCallback(…, inputs=lambda batch, outputs: (outputs['logits'], batch['label'])).",
    )


def _without_loss(outputs: Any) -> Any:
    """Return a pair of a loss and predictions, in any order, as a dict of predictions; other outputs as they are."""
    if not isinstance(outputs, (tuple, list)) or len(outputs) != 2 or not all(isinstance(x, Tensor) for x in outputs):
        return outputs
    predictions = [each for each in outputs if each.ndim or not each.is_floating_point()]
    return {"preds": predictions[0]} if len(predictions) == 1 else outputs


def collectors_of(metrics: Any, inputs: Inputs, owner: str = "MetricCallback") -> list[MetricCollector]:
    """Return a collector for each metric: one, a list, a dict by name, or a collection of torchmetrics.

    Raises:
        ArgumentTypeError: Something else.
        MisconfigurationException: There is none, or two with one name.
    """
    single = isinstance(metrics, Metric | FunctionType | MethodType | partial) or is_metric(metrics)
    items = [(None, metrics)] if single else _items(metrics, owner)
    if not items:
        raise MisconfigurationException(f"{owner} got no metric.", expected="one or several.", fix=_FIX)
    collectors: list[MetricCollector] = []
    for key, metric in items:
        if isinstance(metric, Metric) and key is None:
            collectors.append(ProcessMetricCollector(metric))
        elif isinstance(metric, FunctionType | MethodType | partial) and key is None:
            collectors.append(ProcessMetricCollector(FunctionMetric(metric, inputs)))
        elif is_metric(metric):
            collectors.append(TorchMetricCollector(str(key or name_of(metric)), metric, inputs))
        else:
            raise _no_metric(metric, key, owner)
    names = [collector.name for collector in collectors if isinstance(collector, TorchMetricCollector)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise MisconfigurationException(
            f"{owner} got two metrics named {twice!r}.",
            expected="a name for each.",
            fix=f"{owner}({{{twice + '_a'!r}: …, {twice + '_b'!r}: …}})",
        )
    return collectors


def name_of(metric: Any) -> str:
    """Return a name for a metric: its class in lower case with underscores, without its task.

    Example:
        >>> import torchmetrics
        >>> name_of(torchmetrics.Accuracy(task="multiclass", num_classes=3))
        'accuracy'
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", _TASKS.sub("", type(metric).__name__)).lower()


def _items(metrics: Any, owner: str) -> list[tuple[str | None, Any]]:
    if isinstance(metrics, Mapping) or (isinstance(metrics, torch.nn.ModuleDict) and hasattr(metrics, "compute")):
        return list(metrics.items())
    if isinstance(metrics, (list, tuple)):
        return [
            item for each in metrics for item in (_items(each, owner) if hasattr(each, "items") else [(None, each)])
        ]
    raise _no_metric(metrics, None, owner)


def _no_metric(metric: Any, name: str | None, owner: str) -> ArgumentTypeError:
    if isinstance(metric, type):
        fix = f"pass an instance: {metric.__name__}(…)"
    elif isinstance(metric, Metric):
        fix = f"{type(metric).__name__}(prefix={name!r}) in a list; its numbers have names of their own."
    else:
        fix = _FIX
    return ArgumentTypeError(
        f"{owner} got {shown(metric)}" + (f" named {name!r}." if name is not None else "."),
        expected="metrics of torchmetrics, by name if wanted, instances of lightlib.evaluation.Metric, or a "
        "function of all predictions and targets.",
        fix=fix,
    )
