"""Lightning's loops as views of a Trainer: limits, counters, and where validation finds its data."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from lightlib import report
from lightlib.data.lengths import numbered_endings
from lightlib.data.noted_indices import NotedIndices
from lightlib.errors import MisconfigurationException
from lightlib_lightning.internals.counters import (
    Tracker,
    batches_of,
    counted,
    epochs_of,
    steps_before_hook,
    steps_of,
)
from lightlib_lightning.internals.served import Served
from lightlib_lightning.tools.lacking import OF_A_PACKAGE

__all__ = ["DataSource", "EpochLoop", "EvaluationLoop", "FitLoop", "PredictionLoop"]


class DataSource(Served):
    """`_DataLoaderSource`: the object that a stage's loaders come from.

    gluonts asks whether there is validation data: ``trainer.fit_loop.epoch_loop.val_loop._data_source.is_defined()``.
    """

    def __init__(self, instance: Any, name: str) -> None:
        self.instance, self.name = instance, name

    def is_module(self) -> bool:
        """Whether the loaders come from a method of the module or data module."""
        return callable(getattr(self.instance, self.name, None))

    def is_defined(self) -> bool:
        """Whether there are loaders."""
        return self.instance is not None

    def dataloader(self) -> Any:
        """Return the loaders."""
        return getattr(self.instance, self.name)() if self.is_module() else self.instance


def source_of(trainer: Any, stage: str) -> DataSource:
    """Return where a stage's loaders come from in the last call of the Trainer."""
    builder = trainer._session.builder  # noqa: SLF001  the sources of a call are no public attribute
    source = None if builder is None else builder.sources[stage]
    return DataSource(
        None if source is None else SimpleNamespace(**{f"{stage}_dataloader": source}), f"{stage}_dataloader"
    )


class EpochLoop(Served):
    """`_TrainingEpochLoop`: the batches of an epoch."""

    @property
    def global_step(self) -> int:
        """The optimizer steps."""
        return int(self.trainer.global_step)

    @property
    def total_batch_idx(self) -> int:
        """The number of the running batch, counted from the start of the run."""
        return counted(self.trainer, self.trainer.progress.batch)

    @property
    def batch_idx(self) -> int:
        """The number of the running batch in its epoch."""
        return counted(self.trainer, self.trainer.progress.epoch_batch)

    @property
    def _batches_that_stepped(self) -> int:
        return steps_before_hook(self.trainer)

    @property
    def batch_progress(self) -> Tracker:
        """The batches."""
        return batches_of(self.trainer)

    @property
    def scheduler_progress(self) -> Tracker:
        """The steps after which schedules may have stepped."""
        return steps_of(self.trainer)

    @property
    def automatic_optimization(self) -> Any:
        """The counters of the optimizers."""
        return SimpleNamespace(optim_progress=SimpleNamespace(optimizer_steps=self.global_step))

    @property
    def manual_optimization(self) -> Any:
        """The counters of manual optimization."""
        return SimpleNamespace(optim_step_progress=steps_of(self.trainer))

    @property
    def max_steps(self) -> int:
        """The limit of optimizer steps; -1 is none."""
        return int(self.trainer.max_steps)

    @max_steps.setter
    def max_steps(self, value: int) -> None:
        self.trainer.max_steps = value

    @property
    def min_steps(self) -> int | None:
        """No early stop before this many steps."""
        return self.trainer.min_steps  # type: ignore[no-any-return]

    @property
    def val_loop(self) -> EvaluationLoop:
        """The validation within fit."""
        return EvaluationLoop.of(self.trainer, "fit", "validate")

    @property
    def _results(self) -> Any:
        return self.trainer._results  # noqa: SLF001  Lightning's name is private too


class FitLoop(Served):
    """`_FitLoop`: the epochs of a training."""

    @property
    def epoch_loop(self) -> EpochLoop:
        """The batches of an epoch."""
        return EpochLoop(self.trainer)

    @property
    def max_epochs(self) -> int | None:
        """The limit of epochs; -1 is none."""
        return self.trainer.max_epochs  # type: ignore[no-any-return]

    @max_epochs.setter
    def max_epochs(self, value: int | None) -> None:
        self.trainer.max_epochs = value

    @property
    def min_epochs(self) -> int | None:
        """No early stop before this many epochs."""
        return self.trainer.min_epochs  # type: ignore[no-any-return]

    @property
    def max_steps(self) -> int:
        """The limit of optimizer steps."""
        return int(self.trainer.max_steps)

    @property
    def min_steps(self) -> int | None:
        """No early stop before this many steps."""
        return self.trainer.min_steps  # type: ignore[no-any-return]

    @property
    def max_batches(self) -> float:
        """Training batches per epoch: an int, or infinity."""
        return self.trainer.num_training_batches  # type: ignore[no-any-return]

    @property
    def epoch_progress(self) -> Tracker:
        """The epochs."""
        return epochs_of(self.trainer)

    @property
    def total_batch_idx(self) -> int:
        """The number of the running batch, counted from the start of the run."""
        return self.epoch_loop.total_batch_idx

    @property
    def batch_idx(self) -> int:
        """The number of the running batch in its epoch."""
        return self.epoch_loop.batch_idx

    @property
    def done(self) -> bool:
        """Whether a limit is reached."""
        plan = self.trainer.plan
        return plan is not None and bool(plan.done(self.trainer.progress) or self.trainer.should_stop)

    @property
    def _combined_loader(self) -> Any:
        data = self.trainer._train_data  # noqa: SLF001  the loaders as one are no public attribute
        return None if data is None else data.loaded.combined

    @property
    def _data_source(self) -> DataSource:
        return source_of(self.trainer, "train")

    @property
    def _results(self) -> Any:
        return self.trainer._results  # noqa: SLF001  as above

    def setup_data(self) -> None:
        """Request the training loaders now, unless they are known; schedules are built for their length.

        Raises:
            MisconfigurationException: No fit runs, so there are no loaders to request.
        """
        builder = self.trainer._session.builder  # noqa: SLF001  as above
        if builder is None:
            raise MisconfigurationException(
                "fit_loop.setup_data() was called before fit.",
                expected="a call in configure_optimizers or a hook of trainer.fit.",
                fix="move it into configure_optimizers.",
            )
        data = builder.train_data()
        if not data.is_loaded:
            data.load()

    def _should_accumulate(self) -> bool:
        plan, progress = self.trainer.plan, self.trainer.progress
        return plan is not None and not plan.steps_now(progress, self.trainer.is_last_batch)


_PRINTING = ("validate", "test")
_STAGES = {"sanity_check": "val", "validate": "val", "test": "test", "predict": "predict"}


class EvaluationLoop(Served):
    """`_EvaluationLoop`: a validation or test; torch-uncertainty derives from it to print its tables.

    ``trainer.test_loop = MyLoop(trainer, TrainerFn.TESTING, RunningStage.TESTING)`` makes the Trainer print by its
    `_print_results`. Nothing else of a subclass is called, so overriding another method is an error.
    """

    def __init__(
        self, trainer: Any, trainer_fn: Any, stage: Any, verbose: bool = True, inference_mode: bool = True
    ) -> None:
        super().__init__(trainer)
        self.inference_mode = inference_mode
        self._fn, self._stage = str(getattr(trainer_fn, "value", trainer_fn)), stage
        if not verbose:
            self.verbose = False

    @classmethod
    def of(cls, trainer: Any, fn: str, stage: str) -> EvaluationLoop:
        """Return the one of a Trainer."""
        return cls(trainer, fn, stage, inference_mode=trainer.settings.inference_mode)

    @property
    def verbose(self) -> bool:
        """Whether validate or test prints its metrics; the validation within fit does not."""
        return bool(self.trainer._session.verbose.get(self._fn, False))  # noqa: SLF001  as above

    @verbose.setter
    def verbose(self, value: bool) -> None:
        if self._fn in _PRINTING:
            self.trainer._session.be_verbose(self._fn, bool(value))  # noqa: SLF001  as above
        elif value:
            self._warn_of_no_effect("verbose")

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "_print_results":
            super().__setattr__(name, value)
        elif self._fn in _PRINTING:
            vars(self)[name] = value
            print_by(self.trainer, self._fn, lambda: value)
        else:
            self._warn_of_no_effect(name)

    def _warn_of_no_effect(self, name: str) -> None:
        report.warn_once(
            ("no effect", name),
            f"trainer._evaluation_loop.{name} was set during fit, where lightlib prints no table of a validation.\n"
            "  Expected: the loop of trainer.validate or trainer.test.\n"
            f"  Fix: print trainer.callback_metrics in on_validation_end; {OF_A_PACKAGE}",
        )

    @property
    def _key(self) -> str:
        return _STAGES[str(getattr(self._stage, "value", self._stage))]

    @property
    def _data_source(self) -> DataSource:
        return source_of(self.trainer, self._key)

    @property
    def _combined_loader(self) -> Any:
        data = self.data()
        return None if data is None else data.combined

    def data(self) -> Any:
        builder = self.trainer._session.builder  # noqa: SLF001  as above
        return None if builder is None else builder.evaluations.get(self._key)

    @property
    def num_dataloaders(self) -> int:
        """The number of loaders."""
        data = self.data()
        return 0 if data is None else int(data.num_loaders)

    @property
    def max_batches(self) -> list[float]:
        """Batches of each loader."""
        data = self.data()
        return [] if data is None else list(data.num_batches)

    @property
    def _results(self) -> Any:
        return self.trainer._results  # noqa: SLF001  as above

    @staticmethod
    def _print_results(results: list[dict[str, Any]], stage: str) -> None:
        """Print the table that the Trainer prints."""
        from lightlib.core.metrics.results import table  # optional: nothing, but compat is imported without a Trainer

        numbers = [{name: float(value) for name, value in each.items()} for each in results]
        print(table(numbers, stage, numbered_endings(len(results))))  # noqa: T201


class PredictionLoop(EvaluationLoop):
    """`_PredictionLoop`: a prediction; writers of predictions read which samples a batch has.

    pytorch-forecasting and careamics read `current_batch_indices`, `epoch_batch_indices` and `predictions`.
    """

    def __init__(self, trainer: Any, inference_mode: bool = True) -> None:
        super().__init__(trainer, "predict", "predict", inference_mode=inference_mode)

    @property
    def predictions(self) -> list[Any]:
        """The outputs of `predict_step` so far: one list per loader, or with one loader a list."""
        outputs: list[Any] = [] if self.trainer.run is None else self.trainer.run.evaluations.outputs
        return outputs[0] if len(outputs) == 1 else outputs

    @property
    def _noted(self) -> NotedIndices:
        data = self.data()
        return NotedIndices([]) if data is None else data.noted

    @property
    def current_batch_indices(self) -> list[int]:
        """The numbers of the samples in the running batch; none where they are unknown."""
        return list(self._noted.present or [])

    @property
    def epoch_batch_indices(self) -> list[list[list[int]]]:
        """The numbers of the samples in each batch so far, by loader."""
        noted = self._noted.batches
        last = max((i for i, batches in enumerate(noted) if batches), default=0)
        return [list(batches or []) for batches in noted[: last + 1]]


def print_by(trainer: Any, fn: str, printer: Callable[[], Callable[..., None]]) -> None:
    """Print the metrics of ``"validate"`` or ``"test"`` by a function of the user's, which gets them as tensors."""

    def show(metrics: list[dict[str, float]], stage: str) -> None:
        device = trainer.strategy.root_device
        tensors = [{name: torch.tensor(value, device=device) for name, value in each.items()} for each in metrics]
        printer()(tensors, stage)

    trainer._session.print_by(fn, show)  # noqa: SLF001  as above


def use_loop(trainer: Any, name: str, loop: Any) -> None:
    """Print the results of validate or test by a subclass of the loop; refuse everything else that it overrides."""
    base: type = EvaluationLoop
    if not isinstance(loop, EvaluationLoop) or isinstance(loop, PredictionLoop):
        raise MisconfigurationException(
            f"trainer.{name} was set to a {type(loop).__name__}.",
            expected="a subclass of _EvaluationLoop for validate_loop or test_loop; lightlib has one loop, which "
            "cannot be replaced.",
            fix="override the hooks of the module or of a callback, or call Fabric in a loop of your own; "
            + OF_A_PACKAGE,
        )
    names = {name for name in dir(base) if not name.startswith("__")} - {"_print_results"}
    kinds = [kind for kind in type(loop).__mro__ if issubclass(kind, base) and kind is not base]
    changed = sorted(name for kind in kinds for name in vars(kind) if name in names | _CALLED_BY_LIGHTNING)
    if changed:
        raise MisconfigurationException(
            f"trainer.{name} is a {type(loop).__name__}, which overrides {', '.join(map(repr, changed))}.",
            expected="at most `_print_results`, the only method that lightlib calls.",
            fix=f"override the hooks of the module or of a callback instead; {OF_A_PACKAGE}",
        )
    vars(trainer)[name] = loop
    print_by(trainer, name.removesuffix("_loop"), lambda: loop._print_results)  # noqa: SLF001  the name is Lightning's


_CALLED_BY_LIGHTNING = frozenset({
    "run", "setup_data", "reset", "skip", "on_run_start", "on_run_end", "teardown", "_on_evaluation_start",
    "_on_evaluation_end", "_on_evaluation_epoch_start", "_on_evaluation_epoch_end", "_on_evaluation_model_eval",
    "_on_evaluation_model_train", "_evaluation_step", "_build_kwargs", "_store_dataloader_outputs",
})  # fmt: skip
