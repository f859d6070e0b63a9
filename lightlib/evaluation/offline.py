"""Offline evaluation: metrics of the predictions that a PredictionDump has written, without the model."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from lightlib.checkpoint.storage import filesystem
from lightlib.errors import MisconfigurationException, check_type, check_word
from lightlib.evaluation.collectors import MetricCollector, collectors_of, preds_and_target
from lightlib.evaluation.dump import STAGES, DumpIndex, Stage, file_of
from lightlib.evaluation.exchange import read

_OWNER = "evaluate_offline"


def evaluate_offline(
    path: str | os.PathLike[str],
    metrics: Any,
    stage: Stage | None = None,
    inputs: Callable[[Any, Any], Any] | None = None,
    prefix: str = "{stage}_",
) -> dict[str, float]:
    """Return the metrics of dumped predictions: those that `MetricCallback` has in a run, bit for bit.

    Run it in one process, also for a dump of several: it repeats the updates of each rank and merges their states.

    Args:
        path: The folder of a :class:`PredictionDump`.
        metrics: As for `MetricCallback`.
        stage: ``"val"``, ``"test"`` or ``"predict"``. Default: the only one that was dumped.
        inputs: As for `MetricCallback`.
        prefix: In front of the names. Default: ``"{stage}_"``.

    Raises:
        MisconfigurationException: There is no complete dump, or there are several stages and `stage` is None.
        UnknownNameError: There is no such stage.
        ArgumentTypeError: An argument has the wrong type.

    Example:
        >>> import lightlib as L, tempfile, torchmetrics
        >>> from lightlib.evaluation import PredictionDump
        >>> module, data = L.Module.from_model(torch.nn.Linear(4, 3)), torch.randn(7, 4)
        >>> folder = tempfile.mkdtemp()
        >>> quiet = {"logger": False, "enable_progress_bar": False}
        >>> _ = L.Trainer(callbacks=[PredictionDump(folder)], **quiet).predict(module, data)
        >>> evaluate_offline(folder, torchmetrics.MeanMetric(), inputs=lambda batch, outputs: outputs.sum() * 0)
        {'predict_mean_metric': 0.0}
    """
    check_type(_OWNER, "path", path, (str, os.PathLike), "a path or a URL", "'dumps'")
    expected = "a function of the batch and the output of the step"
    check_type(_OWNER, "inputs", inputs, Callable | None, expected, "lambda batch, outputs: (outputs, batch[1])")
    check_type(_OWNER, "prefix", prefix, str, "a string", "'{stage}/'")
    templates = collectors_of(metrics, inputs or preds_and_target, _OWNER)
    stage = _stage_in(os.fspath(path), stage)
    folder = filesystem.join(path, stage)
    index, results = DumpIndex.read(folder), dict[str, float]()
    for loader, (sharding, ending) in enumerate(zip(index.shardings, index.endings, strict=True)):
        states = [_states(folder, templates, loader, place, counts) for place, counts in enumerate(index.batches)]
        for number, template in enumerate(templates):
            values = template.values([of_rank[number] for of_rank in states], sharding)
            results |= {f"{prefix.replace('{stage}', stage)}{name}{ending}": value for name, value in values.items()}
    return results


def _states(folder: str, templates: list[MetricCollector], loader: int, place: int, counts: list[int]) -> list[Any]:
    """Return the state of each metric after the batches of a rank."""
    collectors = [template.fresh(torch.device("cpu")) for template in templates]
    for number in range(counts[loader]):
        batch, outputs = read(file_of(folder, loader, number, place))
        for collector in collectors:
            collector.update(batch, outputs)
    return [collector.state() for collector in collectors]


def _stage_in(path: str, requested: Stage | None) -> Stage:
    if requested is not None:
        return check_word(_OWNER, "stage", requested, STAGES, example="test")
    stages = [stage for stage in STAGES if filesystem.names_in(filesystem.join(path, stage))]
    if len(stages) == 1:
        return stages[0]
    raise MisconfigurationException(
        f"{path!r} holds " + (f"dumps of {' and '.join(stages)}." if stages else "no dump."),
        expected="the dump of one stage, or `stage`.",
        fix=f"{_OWNER}({path!r}, …, stage={stages[0]!r})"
        if stages
        else f"trainer.test(…) with callbacks=[PredictionDump({path!r})]",
    )
