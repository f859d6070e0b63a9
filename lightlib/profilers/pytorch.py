"""PyTorchProfiler: operators and kernels of a few batches, by torch.profiler, and a trace to look at."""

from __future__ import annotations

import atexit
import inspect
import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.autograd.profiler import emit_nvtx as emit_nvtx_ranges
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule

from lightlib import lazy, report, safe_files
from lightlib.errors import MisconfigurationException, UnknownNameError, check_word, wrong_type
from lightlib.profilers.profiler import Profiler, not_started, started_twice

_SCHEDULED = 5  # batches of the default schedule
_BATCHES = {"validate": "val", "test": "test", "predict": "predict"}
_STEPS = {
    "validate": ".validation_step",
    "test": ".test_step",
    "predict": ".predict_step",
}


class PyTorchProfiler(Profiler):
    """Records operators, kernels and memory of a few batches with `torch.profiler.profile`.

    By default one batch passes unrecorded, one warms the profiler up and three are recorded, once; a run of fewer than
    five batches is recorded from the first one. Give a `schedule` for more. A batch is a training batch in `fit`, and a
    batch of the stage in the other calls. Actions have the name ``[pl][profile]<action>``, and modules
    ``[pl][module]<class>: <name>``, which TensorBoard's plugin for profiles knows from Lightning.

    Args:
        dirpath: The folder of the files; the trainer's `log_dir` when it is None.
        filename: The start of the files' names. Without `dirpath` and `filename` the summary is shown at the end.
        group_by_input_shapes: Keep calls of one operator with different shapes apart. Default: False.
        emit_nvtx: Emit NVTX ranges instead, for ``nsys profile``; there is no summary then. Needs CUDA. Default: False.
        export_to_chrome: Write a trace that ``chrome://tracing`` and https://ui.perfetto.dev read. Default: True.
        row_limit: How many rows the summary has; -1 for all. Default: 20.
        sort_by_key: The column to sort by. Default: ``device_time_total`` with CUDA, else ``cpu_time_total``.
        record_module_names: Record the forward of every submodule under its name. Default: True.
        table_kwargs: Further arguments of the summary's `table` method.
        **profiler_kwargs: Arguments of `torch.profiler.profile`: `activities`, `schedule`, `on_trace_ready`,
            `record_shapes`, `profile_memory`, `with_stack`, `with_flops` … Also `use_cuda`, as in Lightning: whether
            `activities` has CUDA.

    Attributes:
        function_events: The operators that were recorded last, as `torch.profiler.profile.events` returns them.

    Raises:
        UnknownNameError: `sort_by_key` or another argument has a name that is not known.
        ArgumentTypeError: `schedule` is no function from a step to a `torch.profiler.ProfilerAction`.
        MisconfigurationException: `emit_nvtx` without CUDA, or table arguments that have a place of their own.

    Example:
        >>> profiler = PyTorchProfiler(export_to_chrome=False, schedule=None)
        >>> with profiler.profile("sum"):
        ...     total = torch.ones(10).sum()
        >>> profiler.stop_recording()
        >>> "aten::sum" in profiler.summary()
        True
    """

    default_filename = "pytorch"
    sort_keys: ClassVar[tuple[str, ...]] = (
        "count",
        *(
            f"{own}{device}_{what}"
            for device in ("cpu", "device", "cuda")
            for what in ("time_total", "memory_usage")
            for own in ("", "self_")
        ),
        *(f"{device}_time" for device in ("cpu", "device", "cuda")),
    )

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        group_by_input_shapes: bool = False,
        emit_nvtx: bool = False,
        export_to_chrome: bool = True,
        row_limit: int = 20,
        sort_by_key: str | None = None,
        record_module_names: bool = True,
        table_kwargs: dict[str, Any] | None = None,
        **profiler_kwargs: Any,
    ) -> None:
        super().__init__(dirpath, filename)
        self.group_by_input_shapes = group_by_input_shapes
        self.emit_nvtx = emit_nvtx
        self.export_to_chrome = export_to_chrome
        self.row_limit = row_limit
        self.sort_by_key = sort_by_key or ("device" if torch.cuda.is_available() else "cpu") + "_time_total"
        self.record_module_names = record_module_names
        self.table_kwargs = table_kwargs or {}
        if "use_cuda" in profiler_kwargs:
            devices = [ProfilerActivity.CUDA] if profiler_kwargs.pop("use_cuda") else []
            profiler_kwargs.setdefault("activities", [ProfilerActivity.CPU, *devices])
        self._by_default = "schedule" not in profiler_kwargs
        self._profiler_kwargs = {"schedule": schedule(wait=1, warmup=1, active=3, repeat=1), **profiler_kwargs}
        self._profiler_kwargs["record_shapes"] = profiler_kwargs.get("record_shapes", False) or group_by_input_shapes
        self._check(profiler_kwargs)
        self._profiler: profile | None = None
        self._nvtx: AbstractContextManager[Any] | None = None
        self._module: nn.Module | None = None
        self._handles: list[Any] = []
        self._open: dict[str, record_function | None] = {}
        self.function_events: Any = None
        self._table = ""
        self._finished = self._decided = False

    def watch(self, module: nn.Module) -> None:
        self._module = module

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        super().setup(stage, local_rank, log_dir)
        self._table, self._finished, self._decided, self.function_events = "", False, False, None

    def start(self, action_name: str) -> None:
        if action_name in self._open:
            raise started_twice(action_name)
        if self._profiler is None and self._nvtx is None and not self._finished:
            self._begin()
        if not self._decided and self._is_step(action_name):
            self._decided = True
            self._record_short_run()
        record = record_function(f"[pl][profile]{action_name}") if self._recording else None
        if record is not None:
            record.__enter__()  # type: ignore[no-untyped-call]
        self._open[action_name] = record

    def stop(self, action_name: str) -> None:
        if action_name not in self._open:
            raise not_started(action_name, self._open)
        record = self._open.pop(action_name)
        if record is not None:
            record.__exit__(None, None, None)
        if self._profiler is not None and self._is_step(action_name):
            self._profiler.step()

    def summary(self) -> str:
        self.stop_recording()
        return self._table

    def describe(self) -> None:
        self.stop_recording()
        if not self._table and not self.emit_nvtx and self._finished:
            report.warn(
                "PyTorchProfiler recorded nothing.\n"
                "  Expected: more batches than the schedule waits and warms up (2 by default).\n"
                "  Fix: run more batches, or PyTorchProfiler(schedule=None) to record everything.",
                report.PossibleUserWarning,
            )
        super().describe()

    def teardown(self, stage: str | None) -> None:
        self.stop_recording()
        self._open.clear()

    def stop_recording(self) -> None:
        """End the recording, write it and summarise it."""
        atexit.unregister(self.stop_recording)
        for name, record in reversed(self._open.items()):
            if record is not None:
                record.__exit__(None, None, None)
                self._open[name] = None
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._nvtx is not None:
            self._nvtx.__exit__(None, None, None)
        if self._profiler is not None:
            self._profiler.stop()
        self._finished = self._finished or self._profiler is not None or self._nvtx is not None
        self._profiler = self._nvtx = None

    @property
    def _recording(self) -> bool:
        return self._nvtx is not None or (
            self._profiler is not None and self._profiler.current_action != ProfilerAction.NONE
        )

    def _is_step(self, action_name: str) -> bool:
        """Whether the end of this action is the end of a batch: the outermost one of those that run a step."""
        step = _STEPS.get(self.stage or "", ".training_step")
        within = any(name.endswith(step) or name == "run_training_batch" for name in self._open)
        return action_name == "run_training_batch" or (action_name.endswith(step) and not within)

    def _begin(self) -> None:
        if self.emit_nvtx:
            self._nvtx = emit_nvtx_ranges(record_shapes=bool(self._profiler_kwargs["record_shapes"]))  # type: ignore[no-untyped-call]
            self._nvtx.__enter__()  # type: ignore[no-untyped-call]
        else:
            self._profile(self._profiler_kwargs["schedule"])
        if self.record_module_names and self._module is not None:
            for name, module in _parts(self._module):
                kind = type(module)
                label = f"[pl][module]{kind.__module__}.{kind.__name__}: {name}"
                self._handles += _record_forward(module, label, self)

    def _profile(self, plan: Any) -> None:
        options = {**self._profiler_kwargs, "schedule": plan, "on_trace_ready": self._on_trace_ready}
        self._profiler = profile(**options)
        self._profiler.start()
        atexit.register(
            self.stop_recording
        )  # torch's profiler ends a process that leaves it on by a segmentation fault

    def _record_short_run(self) -> None:
        """Record all batches of a run that ends before the default schedule does."""
        trainer = getattr(self._module, "trainer", None)
        if not self._by_default or self._profiler is None or trainer is None:
            return
        batches = getattr(trainer, f"num_{_BATCHES.get(self.stage or '', 'training')}_batches")
        planned = sum(batches) if isinstance(batches, list) else batches
        if self.stage == "fit":
            planned *= trainer.max_epochs if trainer.max_epochs >= 0 else math.inf
        if planned < _SCHEDULED:
            self._profiler.stop()
            self._profile(None)

    def _on_trace_ready(self, profiler: profile) -> None:
        self.function_events = profiler.events()  # type: ignore[no-untyped-call]
        events = profiler.key_averages(group_by_input_shape=self.group_by_input_shapes)
        self._table = events.table(sort_by=self.sort_by_key, row_limit=self.row_limit, **self.table_kwargs)
        on_trace_ready: Callable[[profile], None] | None = self._profiler_kwargs.get("on_trace_ready")
        if on_trace_ready is not None:
            on_trace_ready(profiler)
        elif self.export_to_chrome:
            with safe_files.exporting(self.path(f"-step{profiler.step_num}.trace.json")) as place:
                profiler.export_chrome_trace(place)

    def _check(self, profiler_kwargs: dict[str, Any]) -> None:
        arguments = set(inspect.signature(profile.__init__).parameters) - {"self", "use_cuda"}
        for name in profiler_kwargs:
            if name not in arguments:
                raise UnknownNameError("argument of PyTorchProfiler", name, arguments)
        check_word("PyTorchProfiler", "sort_by_key", self.sort_by_key, self.sort_keys)
        for name in ("sort_by", "row_limit"):
            if name in self.table_kwargs:
                raise MisconfigurationException(
                    f"table_kwargs has {name!r}.",
                    expected="arguments of `table` other than sort_by and row_limit.",
                    fix="PyTorchProfiler(sort_by_key=..., row_limit=...)",
                )
        plan = self._profiler_kwargs["schedule"]
        if plan is not None and not (callable(plan) and isinstance(plan(0), ProfilerAction)):
            expected = "a function from a step number to a torch.profiler.ProfilerAction, or None to record all"
            example = "torch.profiler.schedule(wait=1, warmup=1, active=3)"
            raise wrong_type("PyTorchProfiler", "schedule", plan, expected, example)
        if self.emit_nvtx and not torch.cuda.is_available():
            raise MisconfigurationException(
                "emit_nvtx=True, but there is no CUDA device.",
                expected="a CUDA device, and a program that is started under `nsys profile`.",
                fix="PyTorchProfiler(emit_nvtx=False)",
            )


def _parts(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The named submodules that can have hooks: not those of a compiled module, where hooks would change the graph."""
    compiled: list[str] = []
    for name, module in root.named_modules():
        path = f"{name}." if name else ""
        if path.startswith(tuple(compiled)) or isinstance(module, torch.jit.ScriptModule):
            continue
        if module._compiled_call_impl is not None:  # noqa: SLF001 - torch has no public question for it
            compiled.append(path)
        elif "_orig_mod" in dict(module.named_children()):
            compiled.append(f"{path}_orig_mod.")
        if name and path not in compiled:
            yield name, module


def _record_forward(module: nn.Module, name: str, profiler: PyTorchProfiler) -> list[Any]:
    """Record every forward of `module` under `name`; return the handles of the two hooks that do."""
    open_records: list[record_function | None] = []

    def before(*_: Any) -> None:
        record = record_function(name) if profiler._recording else None  # noqa: SLF001 - one class in two parts
        if record is not None:
            record.__enter__()  # type: ignore[no-untyped-call]
        open_records.append(record)

    def after(*_: Any) -> None:
        record = open_records.pop() if open_records else None
        if record is not None:
            record.__exit__(None, None, None)

    return [module.register_forward_pre_hook(before), module.register_forward_hook(after, always_call=True)]


if not TYPE_CHECKING:
    __getattr__ = lazy.translated_names(__name__)
