"""TrainerCalls: the methods of a Trainer that hooks and programs call: save, log, print, events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from lightlib import report
from lightlib.checkpoint.background import BackgroundWriter
from lightlib.core.audit import Audit, audit
from lightlib.core.metrics.results import to_floats
from lightlib.core.module.overrides import overrides
from lightlib.core.run.misspelt import warn_for_misspelt_event
from lightlib.core.views import TrainerViews
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.loggers.media.items import Media


class TrainerCalls(TrainerViews):
    """Methods of a Trainer besides fit, validate, test and predict."""

    # checkpoints
    def save_checkpoint(
        self,
        filepath: str | Path,
        weights_only: bool | None = None,
        storage_options: Any = None,
        *,
        format: Literal["file", "directory"] | None = None,  # noqa: A002  the word for it
        writer: BackgroundWriter | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the state of the run to `filepath`, completely or not at all. All processes call this.

        The file is complete when the call returns, in every hook; with a `writer`, when `writer.join()` returns. It
        stands for the moment of the call: a resumed run makes the calls of the same hook that were still to come. Only
        within a batch, between `on_train_batch_start` and `on_train_batch_end`, you are warned that a resumed run
        repeats the batch.

        Args:
            filepath: A local path or a URL.
            weights_only: Leave out what only a resume needs. Default: False.
            storage_options: Options of fsspec for the store of a URL, such as keys. Default: those of its folder
                (:func:`lightlib.checkpoint.storage_url`) and of fsspec's configuration.
            format: ``"file"``, gathered and written by rank zero; or ``"directory"``, to which each process writes its
                shard. Default: the strategy's, which is a file but for some options of FSDP and ModelParallelStrategy.
            writer: A `lightlib.checkpoint.background.BackgroundWriter`: the call lasts for a copy of the state.
            extra: Entries to add: tensors and plain values by names that a checkpoint does not have.
                `on_load_checkpoint` and `lightlib.checkpoint.load` get them back. Rank zero's are saved.

        Raises:
            MisconfigurationException: No module is attached yet.
            CheckpointWriteError: It could not be written; earlier files are as they were.
        """
        self.saver.save(filepath, weights_only, storage_options, format=format, writer=writer, extra=extra)

    @property
    def overrides_save_checkpoint(self) -> bool:
        """Whether this Trainer's class, or this object, has its own `save_checkpoint`; callbacks save through it."""
        return overrides(self, TrainerCalls, "save_checkpoint")

    def at_save_point(self, call: Callable[[], object]) -> None:
        """Run `call` at the next save point: an optimizer-step boundary, after the validation that is due there."""
        run = self._trained
        if run is None:
            call()
        else:
            run.saver.request(call)

    # helpers
    def init_module(self, empty_init: bool | None = None) -> AbstractContextManager[Any]:
        """Return a context that creates tensors on the run's device and in its dtype."""
        return self.strategy.init_context()

    def audit_state(self) -> Audit:
        """Return a printable report of a checkpoint's contents and of the user state that it misses.

        Changes of user objects are known during and after a fit.
        """
        return audit(self)  # type: ignore[arg-type]  # the only subclass is the Trainer

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on rank zero, above the progress bar."""
        bar = self.progress_bar_callback
        if self.is_global_zero:
            write = print if bar is None else bar.print
            if kwargs.get("file") is None:
                report.write_output(write, *args, **kwargs)
            else:
                write(*args, **kwargs)

    def log_metrics_now(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Pass numbers to all loggers and to `on_log` at once."""
        if self.run is not None:
            self.run.logs.write(to_floats(metrics), step)

    def log_media(self, name: str, media: Media, step: int | None = None) -> None:
        """Pass an image, a figure, a histogram, a text, a table or audio to the loggers that record its kind.

        Rank zero's is recorded. Nothing happens outside of a run, and in its sanity check.

        Args:
            name: Its name, as ``val/examples``.
            media: The item, one of `lightlib.loggers.media`.
            step: The x-axis. Default: the number of optimizer steps.

        Raises:
            ArgumentTypeError: `media` is something else, for example a tensor.

        Example:
            >>> import torch
            >>> import lightlib as L
            >>> from lightlib.loggers.media import Image
            >>> L.Trainer(logger=False).log_media("input", Image(torch.rand(3, 8, 8)))
        """
        if not isinstance(media, Media):
            raise ArgumentTypeError(
                f"trainer.log_media({name!r}, …) got a {type(media).__name__}.",
                expected="an Image, Figure, Histogram, Text, Table or Audio of lightlib.loggers.media.",
                fix=f"trainer.log_media({name!r}, Image(tensor))",
            )
        if self.run is not None and self.is_global_zero and not self.sanity_checking:
            self.run.loggers.log_media(name, media, self.global_step if step is None else step)

    def call_event(self, name: str, **kwargs: Any) -> None:
        """Call the method `name` on every callback that defines it, in order of priority, then on the module.

        Callbacks get `(trainer, module, **kwargs)`, as in hooks, and the module gets the keyword arguments alone.
        Objects without the method are left out; they are looked up once per run, with a warning if none has it, but one
        has nearly this name. `self.log` in an event follows the
        rules of the hook that calls it. With several processes each calls its own objects.

        Raises:
            MisconfigurationException: `name` is a hook or no name of a public method, or no run has begun.
        """
        if self._session.hooks is None:
            raise MisconfigurationException(
                f"trainer.call_event({name!r}) was called before a run.",
                expected="a call within a hook or step.",
                fix=f"call it within a hook: trainer.call_event({name!r})",
            )
        for call in self._session.hooks.event(name, warn_for_misspelt_event):
            call(**kwargs)

    def rebuild_hooks(self) -> None:
        """Look the hooks up again, for tests that patch a method during a run."""
        if self.run is not None:
            self._session.rebuild_hooks(self.run)
