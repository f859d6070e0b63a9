"""MetricCallback: metrics of torchmetrics and of `Metric`, without code in the module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.monitored import endings_of
from lightlib.errors import MisconfigurationException, check_type, wrong_type
from lightlib.evaluation.collectors import MetricCollector, TorchMetricCollector, collectors_of, preds_and_target
from lightlib.evaluation.exchange import by_place, from_rank_zero
from lightlib.evaluation.order import Sharding, chosen_loaders, sharded_loaders
from lightlib.evaluation.stages import check_stages, without_hooks_of

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

_Stage = Literal["train", "val", "test"]
_STAGES: tuple[_Stage, ...] = get_args(_Stage)


class MetricCallback(Callback):
    """Updates metrics with the outputs of the steps, and logs them once per epoch.

    The module logs nothing itself. Metrics are reset in each epoch. In an evaluation they count every sample of all
    ranks once; metrics of torchmetrics count those again that a `DistributedSampler`, or training, repeats. With
    several loaders, each has its own numbers, and their names end with the name of the loader, ``/clean``, or with
    ``/dataloader_idx_0`` and so on. Metrics of the training are saved in checkpoints, so a resumed epoch has the
    numbers of an unbroken one.

    Args:
        metrics: One or several: metrics of torchmetrics, in a dict from names or with the name of their class
            ("accuracy"), a MetricCollection, instances of :class:`Metric`, and functions such as `compute_metrics` of
            transformers, which get all `predictions` and `label_ids` as arrays. They are templates: the callback
            updates copies of torchmetrics.
        stages: ``"train"``, ``"val"`` (which is `trainer.validate` as well) and ``"test"``. Default: ``"val"``.
        inputs: A function of the batch and the output of the step that returns the arguments of `update`: a tuple, or a
            dict of keyword arguments. Default: the predictions and targets, which the step returns as
            ``{"preds": …, "target": …}`` or as a pair; or it returns predictions, and the batch is
            ``(inputs, targets)``. A :class:`Metric` gets the batch and the output themselves.
        prefix: In front of the names, with ``{stage}`` for the stage. Default: ``"{stage}_"``, as in "val_accuracy".
            Validation and tests may share names, as ``"eval_"``; training has names of its own.
        prog_bar: Show the numbers in the progress bar. Default: False.
        loaders: The names of the evaluation loaders that it is for; several of these can differ in it. Default: all.

    Raises:
        ArgumentTypeError: An argument has the wrong type.
        UnknownNameError: There is no such stage; in a run: no loader has the name.
        MisconfigurationException: No metric, two of one name, or training next to another stage with a prefix without
            {stage}; in a run: the step returns no predictions and targets, or a metric is no single number.

    Example:
        >>> import torchmetrics
        >>> accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3)
        >>> callback = MetricCallback({"acc": accuracy}, stages=("val", "test"), prefix="{stage}/")
        >>> callback.names("val")
        ['val/acc']
    """

    def __init__(
        self,
        metrics: Any,
        stages: _Stage | Sequence[_Stage] = "val",
        inputs: Callable[[Any, Any], Any] | None = None,
        prefix: str | None = None,
        prog_bar: bool = False,
        loaders: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.stages = check_stages("MetricCallback", stages, _STAGES)
        expected = "a function of the batch and the output of the step"
        example = "lambda batch, outputs: (outputs, batch[1])"
        check_type("MetricCallback", "inputs", inputs, Callable | None, expected, example)
        self.prefix = _checked_prefix(prefix, self.stages)
        self.prog_bar = prog_bar
        self.loaders = _checked_loaders(loaders, self.stages)
        self._templates = collectors_of(metrics, inputs or preds_and_target)
        self._collectors: dict[str, list[list[MetricCollector]]] = {}  # by stage: of each loader
        self._sharding: dict[str, list[Sharding]] = {}
        self._trainer: Trainer | None = None  # while a fit runs
        self._restored: dict[str, Any] = {}
        self._left_at = 0  # the batch of the run at which the training last stopped
        self._once = report.Once()
        without_hooks_of(self, self.stages)

    @property
    def state_key(self) -> str:
        """Several of these can be used together when they differ in stages, prefix, names or loaders."""
        names = sorted({name for stage in self.stages for name in self.names(stage)})
        loaders = {} if self.loaders is None else {"loaders": self.loaders}
        return self._generate_state_key(stages=self.stages, prefix=self.prefix, names=names, **loaders)

    def names(self, stage: str) -> list[str]:
        """Return the names of the metrics of torchmetrics in a stage, as they are logged; a `Metric` names its own."""
        names = (
            getattr(collector, "name", type(getattr(collector, "metric", None)).__name__)
            for collector in self._templates
        )
        return [self._start(stage) + name for name in names]

    def higher_is_better(self, name: str) -> bool | None:
        """Return whether more is better of a number that this callback logs; None: unknown, or not logged by it."""
        for candidate in (name, name.rpartition("/")[0]):  # which a loader's name may end
            for stage in self.stages:
                start = self._start(stage)
                for collector in self._templates if candidate.startswith(start) else ():
                    better = collector.higher_is_better(candidate.removeprefix(start))
                    if better is not None:
                        return bool(better)
        return None

    # a run
    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        self._trainer = trainer if stage == "fit" and "train" in self.stages else None
        self._restored, self._collectors = {}, {k: self._collectors[k] for k in self._collectors if k == "train"}

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        self._trainer = None

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        if "val" in self.stages:  # a name that no loader has is found before the first batch
            self._chosen(trainer, "val")

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Continue an epoch that an earlier fit or the run of the checkpoint has begun."""
        if "train" not in self.stages or not trainer.progress.begun:
            return
        earlier = self._collectors.get("train") if self._left_at == trainer.progress.batch else None
        self._begin("train", trainer, pl_module)
        if self._restored:
            self._continue(trainer)
        elif earlier is not None:
            self._collectors["train"] = earlier
        else:
            first = f"leave out its first {trainer.progress.epoch_batch} batches, of which the checkpoint has none."
            report.warn(f"MetricCallback: the training metrics of this epoch {first}", report.PossibleUserWarning)

    def _begin(self, stage: str, trainer: Trainer, pl_module: Module) -> None:
        loaders, chosen = sharded_loaders(trainer, stage), self._chosen(trainer, stage)
        read = [loader for loader, is_chosen in zip(loaders, chosen, strict=True) if is_chosen]
        for collector in self._templates:
            collector.use_dataset(getattr(read[0][0], "dataset", None) if read else None)
        self._sharding[stage] = [sharding for _, sharding in loaders]
        repeated = sum(sharding.num_repeated(trainer.strategy.data_size) for _, sharding in read)
        counts_twice = any(isinstance(template, TorchMetricCollector) for template in self._templates)
        if repeated and stage != "train" and counts_twice:
            self._once.warn(
                stage,
                f"MetricCallback: the sampler of the {stage} loader repeats {repeated} samples, which metrics of "
                "torchmetrics count twice.\n  Expected: each sample once.\n  Fix: a loader without DistributedSampler: "
                "lightlib shards it without repeats.",
                report.PossibleUserWarning,
            )
        self._collectors[stage] = [
            [template.fresh(pl_module.device) for template in self._templates if is_chosen] for is_chosen in chosen
        ]

    def _update(self, stage: str, batch: Any, outputs: Any, loader: int = 0) -> None:
        for collector in self._collectors[stage][loader]:
            collector.update(batch, outputs)

    def _end(self, stage: str, trainer: Trainer) -> None:
        start = self._start(stage)
        of_loaders = zip(self._collectors[stage], self._sharding[stage], endings_of(trainer), strict=True)
        for collectors, sharding, ending in of_loaders:
            for name, value in _computed(trainer, collectors, sharding).items():
                # All ranks log the same number, of which the maximum is exact.
                self.log(
                    f"{start}{name}{ending}",
                    value,
                    prog_bar=self.prog_bar,
                    on_step=False,
                    on_epoch=True,
                    reduce_fx="max",
                    add_dataloader_idx=False,
                    batch_size=1,
                )
        if stage != "train":
            del self._collectors[stage]

    def _chosen(self, trainer: Trainer, stage: str) -> list[bool]:
        return chosen_loaders(trainer, stage, "MetricCallback", None if stage == "train" else self.loaders)

    def _start(self, stage: str) -> str:
        return self.prefix.replace("{stage}", stage)

    # hooks
    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin("train", trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._update("train", batch, outputs)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._end("train", trainer)
        self._left_at = trainer.progress.batch  # a further fit continues the epoch if the run has stopped within it

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin("val", trainer, pl_module)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._update("val", batch, outputs, dataloader_idx)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._end("val", trainer)

    def on_test_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin("test", trainer, pl_module)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._update("test", batch, outputs, dataloader_idx)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._end("test", trainer)

    # state
    def state_dict(self) -> dict[str, Any]:
        """Return the state of the training epoch so far, of all ranks; each of them calls this."""
        trainer, collectors = self._trainer, self._collectors.get("train")
        if trainer is None or collectors is None or not trainer.progress.begun:
            return {}
        return {"train": [by_place(trainer.strategy, collector.state()) for collector in collectors[0]]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict

    def _continue(self, trainer: Trainer) -> None:
        """Load the state of each rank, in a run with as many as before."""
        strategy = trainer.strategy
        place, size = (strategy.data_place, strategy.data.size) if strategy.world_size > 1 else (0, 1)
        for collector, states in zip(self._collectors["train"][0], self._restored["train"], strict=True):
            if len(states) != size:
                raise MisconfigurationException(
                    f"MetricCallback(stages={self.stages!r}): the epoch that is resumed was begun by {len(states)} "
                    f"ranks that read different data, and now there are {size}.",
                    expected="as many as before: the metrics of the training epoch are kept by rank.",
                    fix="resume with as many, or from a checkpoint at the end of an epoch.",
                )
            collector.load(states[place])
        self._restored = {}


def _computed(trainer: Trainer, collectors: list[MetricCollector], sharding: Sharding) -> dict[str, float]:
    """Return the numbers of all ranks on every rank."""
    strategy, results = trainer.strategy, dict[str, float]()
    for collector in collectors:
        states = by_place(strategy, collector.state(), collector.folder)
        known_sharding = (
            sharding if len(states) == strategy.data_size else Sharding()
        )  # else ranks share single samples as well
        compute = partial(collector.values, states, known_sharding)
        values = from_rank_zero(trainer.is_global_zero, strategy.broadcast, compute)
        if twice := sorted(set(values) & set(results)):
            raise MisconfigurationException(
                f"MetricCallback: two metrics give the name {twice[0]!r}.",
                expected="a name for each number.",
                fix='Metric(prefix="…"), or a dict from names to metrics of torchmetrics.',
            )
        results |= values
    return results


def _checked_loaders(loaders: Any, stages: tuple[str, ...]) -> tuple[str, ...] | None:
    if loaders is None:
        return None
    names = (loaders,) if isinstance(loaders, str) else tuple(loaders) if isinstance(loaders, (list, tuple)) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise wrong_type("MetricCallback", "loaders", loaders, "one or several names of loaders", "['clean']")
    if stages == ("train",):
        raise MisconfigurationException(
            f"MetricCallback(loaders={loaders!r}, stages={stages!r}): loaders of the training are read together.",
            expected="loaders of an evaluation.",
            fix='leave out `loaders`, or stages="val".',
        )
    return names


def _checked_prefix(prefix: str | None, stages: tuple[str, ...]) -> str:
    if prefix is None:
        return "{stage}_"
    check_type("MetricCallback", "prefix", prefix, str, "a string", '"{stage}/"')
    if len(stages) > 1 and "train" in stages and "{stage}" not in prefix:  # evaluations are separate calls
        raise MisconfigurationException(
            f"MetricCallback(prefix={prefix!r}, stages={stages!r}): training and evaluation would log under one name.",
            expected="a prefix with {stage}, or stages without 'train'.",
            fix=f'MetricCallback(…, prefix="{prefix}{{stage}}/")',
        )
    return prefix
