"""BatchSizeFinder: searches for the largest batch size that fits into memory, on copies, and sets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from lightlib import report
from lightlib.accelerators.out_of_memory import free_memory, is_out_of_memory
from lightlib.callbacks.callback import Callback
from lightlib.errors import MisconfigurationException, check_int, check_number, shown
from lightlib.tuner.attribute import find_name, set_value, warn_of_several
from lightlib.tuner.learning_rate_finder import mode_of, without_schedules

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

_MODES = ("power", "binsearch")


class BatchSizeFinder(Callback):
    """Tries growing batch sizes on copies until memory is exhausted, and sets the last one that fits.

    The search runs in `setup`, before loaders are made: the module's or data module's method that returns the loader
    must read the attribute. A checkpoint holds the result; a resumed run does not search again. To search at other
    moments override `on_fit_start`, which turns off the search in `setup`, and call `scale_batch_size`.

    Args:
        mode: ``"power"`` (default): double until memory is exhausted. ``"binsearch"``: then bisect.
        steps_per_trial: Optimizer steps, or evaluation batches, of a trial. Default 3.
        init_val: The first batch size. Default 2.
        max_trials: Trials; with ``"binsearch"`` successful ones. Default 25.
        batch_arg_name: The attribute or hyperparameter that holds the batch size. Default ``"batch_size"``.
        margin: The share by which ``"binsearch"`` lowers its result. Default 0.05.
        max_val: The largest batch size to try. Default 8192.

    Attributes:
        optimal_batch_size: The batch size, in samples of one process; `init_val` before the search.

    Raises:
        MisconfigurationException: Arguments out of range; when a run begins: no such attribute, loaders given to the
            Trainer's method, several processes, or not even one sample fits.

    Example:
        >>> BatchSizeFinder(mode="binsearch", init_val=16).optimal_batch_size
        16
    """

    makes_probes = True

    def __init__(
        self,
        mode: Literal["power", "binsearch"] = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
        margin: float = 0.05,
        max_val: int = 8192,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self._mode = mode_of(name, mode, _MODES)
        numbers = {"steps_per_trial": steps_per_trial, "init_val": init_val, "max_trials": max_trials}
        for argument, value in {**numbers, "max_val": max_val}.items():
            check_int(name, argument, value, 1)
        check_number(name, "margin", margin, least=0, below=1, example=0.05)
        if init_val > max_val:
            raise MisconfigurationException(
                f"{name}(init_val={init_val}, max_val={max_val}).",
                expected="init_val <= max_val.",
                fix=f"{name}(init_val={max_val}, max_val={init_val})",
            )
        self._steps_per_trial, self._init_val, self._max_trials = steps_per_trial, init_val, max_trials
        self._batch_arg_name, self._margin, self._max_val = batch_arg_name, margin, max_val
        self.optimal_batch_size: int | None = init_val
        self._restored = False

    def setup(self, trainer: Trainer, pl_module: Module, stage: str | None = None) -> None:
        restored, self._restored = self._restored, False
        if restored and stage == "fit":
            set_value(self._batch_arg_name, self.optimal_batch_size, pl_module, trainer.datamodule)
        elif type(self).on_fit_start is BatchSizeFinder.on_fit_start:
            self.scale_batch_size(trainer, pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Do nothing: the search ran in `setup`."""

    def scale_batch_size(self, trainer: Trainer, pl_module: Module, call: Any = None) -> None:
        """Search now and set the attribute; loaders that exist keep their batch size.

        Args:
            trainer: The Trainer.
            pl_module: The module.
            call: The objects to search with. Default: those of the present call.
        """
        if trainer.fast_dev_run:
            report.warn("fast_dev_run is on: the search for a batch size is left out.")
            return
        call = trainer.present_call if call is None else call
        datamodule, name = call.datamodule, self._batch_arg_name
        if trainer.strategy.world_size > 1:
            raise MisconfigurationException(
                f"A search for a batch size in {trainer.strategy.world_size} processes.",
                expected="one process: when one of several runs out of memory, the other ones wait for it forever.",
                fix="search with devices=1 and use the result with several.",
            )
        if any(value is not None for value in call.given.values()):
            argument = next(name for name, value in call.given.items() if value is not None)
            raise MisconfigurationException(
                f"A search for a batch size with {argument}={shown(call.given[argument])}, whose batch size is fixed.",
                expected=f"a method of the module or data module that makes the loader with self.{name}.",
                fix=f"def train_dataloader(self): return DataLoader(data, batch_size=self.{name})",
            )
        find_name((name,), pl_module, datamodule, "The search for a batch size", "batch_arg_name")
        warn_of_several(name, pl_module, datamodule)

        def probe(size: int) -> int | None:
            def edit(module: Any, data: Any) -> None:
                set_value(name, size, module, data)
                without_schedules(module, data)

            counter = _Counter()
            trainer.run_probe(counter, self._steps_per_trial, edit, call)
            return counter.samples

        best = search(self._mode, self._attempted(probe), self._init_val, self._max_trials, self._max_val)
        if self._mode == "binsearch":
            best = max(1, int(best * (1 - self._margin)))
        self.optimal_batch_size = best
        set_value(name, best, pl_module, datamodule)
        report.info(f"The search set {name}={best}.")

    def _attempted(self, probe: Callable[[int], int | None]) -> Callable[[int], tuple[bool, int | None]]:
        def attempt(size: int) -> tuple[bool, int | None]:
            fits, samples = True, None
            try:
                samples = probe(size)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                fits = False
            free_memory()  # here the exception and the frames that it holds are gone
            return fits, samples

        return attempt

    def state_dict(self) -> dict[str, Any]:
        return {"optimal_batch_size": self.optimal_batch_size}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimal_batch_size = state_dict["optimal_batch_size"]

    def load_search_result(self, state_dict: dict[str, Any]) -> None:
        """Take the result from a checkpoint before `setup`, which then does not search."""
        self.load_state_dict(state_dict)
        self._restored = True


class _Counter(Callback):
    """Notes the number of samples that the probe's loader has.

    Attributes:
        samples: None if the data set has no length.
    """

    def __init__(self) -> None:
        self.samples: int | None = None

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._note(trainer.train_dataloader)

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._note(trainer.val_dataloaders)

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._note(trainer.test_dataloaders)

    def on_predict_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._note(trainer.predict_dataloaders)

    def _note(self, loader: Any) -> None:
        try:
            self.samples = len(loader.dataset)
        except (TypeError, AttributeError, NotImplementedError):
            self.samples = None


def search(mode: str, attempt: Callable[[int], tuple[bool, int | None]], first: int, max_trials: int, most: int) -> int:
    """Return the largest batch size that `attempt` accepts, by doubling and, with ``"binsearch"``, bisection.

    Args:
        mode: ``"power"`` or ``"binsearch"``.
        attempt: Tries a size; returns whether it fits and how many samples the data has, or None.
        first: The first size.
        max_trials: Calls of `attempt`; with ``"binsearch"`` those that fit.
        most: The largest size.

    Raises:
        MisconfigurationException: No size that was tried fits.

    Example:
        >>> search("power", lambda size: (size <= 100, None), 2, 25, 8192)
        64
        >>> search("binsearch", lambda size: (size <= 100, None), 2, 25, 8192)
        100
    """
    size, best, failed, trials = min(first, most), 0, 0, 0
    while trials < max_trials:
        fits, samples = attempt(size)
        trials += fits or mode == "power"
        best, failed = (size, failed) if fits else (best, size)
        if failed:
            if failed - best <= 1 or (mode == "power" and best):
                break
            size = (failed + best) // 2
        else:
            largest = most if samples is None else min(most, samples)
            if size >= largest:
                break
            size = min(2 * size, largest)
    if not best:
        raise MisconfigurationException(
            f"The search for a batch size found none: a batch of {failed} ran out of memory, after {trials} trials.",
            expected="a module that can be trained with the first batch size, or with a smaller one.",
            fix="use a smaller module, shorter samples, or precision='bf16-mixed'.",
        )
    return best
