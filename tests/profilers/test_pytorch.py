"""PyTorchProfiler: the batches recorded, the files written, and nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lightlib
from lightlib import report
from lightlib.demos.boring_classes import BoringModel
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.profilers.pytorch import PyTorchProfiler

QUIET: dict[str, Any] = {"accelerator": "cpu", "devices": 1}
QUIET |= dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
LINEAR = "[pl][module]torch.nn.modules.linear.Linear: layer.0"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def train(profiler: PyTorchProfiler, batches: int, log_dir: Path | None = None) -> Net:
    net = Net()
    profiler.watch(net)
    profiler.setup("fit", 0, None if log_dir is None else str(log_dir))
    with profiler.profile("run_training_epoch"):
        for _ in range(batches):
            with profiler.profile("run_training_batch"), profiler.profile("[LightningModule]Net.training_step"):
                net(torch.ones(1, 4)).sum().backward()
    return net


def names(trace: Path) -> list[str]:
    return [event["name"] for event in json.loads(trace.read_text())["traceEvents"] if event.get("cat") != "Trace"]


def test_three_batches_are_recorded_and_written_as_a_trace(tmp_path: Path) -> None:
    profiler = PyTorchProfiler()
    net = train(profiler, batches=9, log_dir=tmp_path)
    text = profiler.summary()
    profiler.teardown("fit")
    (trace,) = tmp_path.iterdir()
    assert trace.name == "fit-pytorch-0-step5.trace.json"
    found = names(trace)
    assert found.count("[pl][profile][LightningModule]Net.training_step") == 3
    assert found.count(LINEAR) == 3
    for name in ("aten::linear", "[pl][profile][LightningModule]Net.training_step", LINEAR):
        assert name in text
    recorded = [event.name for event in profiler.function_events]
    assert recorded.count("[pl][profile][LightningModule]Net.training_step") == 3
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in net.modules())


@pytest.mark.parametrize(("batches", "recorded"), [(3, 1), (4, 2)])
def test_a_run_that_is_shorter_than_the_schedule_is_recorded_as_far_as_it_goes(
    tmp_path: Path, batches: int, recorded: int
) -> None:
    profiler = PyTorchProfiler(dirpath=tmp_path, filename="short")
    train(profiler, batches)
    profiler.describe()
    profiler.teardown("fit")
    (trace,) = tmp_path.glob("*.trace.json")
    assert names(trace).count("[pl][profile][LightningModule]Net.training_step") == recorded
    assert "aten::linear" in (tmp_path / "fit-short-0.txt").read_text()


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup:UserWarning")
def test_a_run_in_which_nothing_was_recorded_says_so() -> None:
    profiler = PyTorchProfiler(export_to_chrome=False)
    train(profiler, batches=1)
    with pytest.warns(
        report.PossibleUserWarning, match=r"PyTorchProfiler recorded nothing\.\n  Expected: (.|\n)*Fix: "
    ):
        profiler.describe()


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_batches_of_other_stages_are_counted_as_well(tmp_path: Path, stage: str) -> None:
    step = {"validate": "validation_step", "test": "test_step", "predict": "predict_step"}[stage]
    profiler = PyTorchProfiler(dirpath=tmp_path)
    profiler.setup(stage)
    for _ in range(8):
        with (
            profiler.profile(f"[Strategy]SingleDeviceStrategy.{step}"),
            profiler.profile(f"[LightningModule]Net.{step}"),
        ):
            torch.ones(2).sum()
    profiler.teardown(stage)
    (trace,) = tmp_path.iterdir()
    assert names(trace).count(f"[pl][profile][Strategy]SingleDeviceStrategy.{step}") == 3


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events at the end of each cycle:UserWarning")
def test_a_schedule_and_a_handler_of_ones_own() -> None:
    seen: list[int] = []
    profiler = PyTorchProfiler(
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=2),
        on_trace_ready=lambda p: seen.append(p.step_num),
        record_module_names=False,
        profile_memory=True,
    )
    train(profiler, batches=6)
    text = profiler.summary()
    assert seen == [2, 4]
    assert "[pl][module]" not in text
    assert "CPU Mem" in text


def test_rows_are_grouped_sorted_and_limited() -> None:
    profiler = PyTorchProfiler(
        schedule=None,
        export_to_chrome=False,
        group_by_input_shapes=True,
        row_limit=3,
        sort_by_key="count",
        table_kwargs={"max_name_column_width": 20},
    )
    for size in (2, 3):
        with profiler.profile("work"):
            torch.ones(size).sum()
    text = profiler.summary()
    assert "Input Shapes" in text
    assert len(text.split("\n")) < 15


def test_modules_that_are_compiled_keep_their_graph() -> None:
    net = Net()
    net.layer = torch.compile(net.layer, backend="eager")
    profiler = PyTorchProfiler(schedule=None, export_to_chrome=False)
    profiler.watch(net)
    with profiler.profile("work"):
        net.layer(torch.ones(1, 4))
        assert not net.layer._orig_mod._forward_hooks
        assert net.layer._forward_hooks
    profiler.teardown(None)


def test_a_forward_that_raises_leaves_nothing_open() -> None:
    net = Net()
    profiler = PyTorchProfiler(schedule=None, export_to_chrome=False)
    profiler.watch(net)
    with pytest.raises(RuntimeError), profiler.profile("work"):
        net(torch.ones(1, 3))
    with profiler.profile("work"):
        net(torch.ones(1, 4))
    assert LINEAR in profiler.summary()


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"sort_by_key": "cpu_tim_total"}, UnknownNameError,
         "Unknown sort_by_key of PyTorchProfiler 'cpu_tim_total'. Did you mean 'cpu"),
        ({"with_stak": True}, UnknownNameError, "Unknown argument of PyTorchProfiler 'with_stak'. Did you mean"),
        ({"schedule": 3}, ArgumentTypeError, "PyTorchProfiler(schedule=3 (int))"),
        ({"schedule": lambda step: step}, ArgumentTypeError, "PyTorchProfiler(schedule=an object of type function)"),
        ({"table_kwargs": {"row_limit": 3}}, MisconfigurationException, "table_kwargs has 'row_limit'"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_explained(arguments: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as error:
        PyTorchProfiler(**arguments)
    assert str(error.value).startswith(text)
    assert "  Expected: " in str(error.value)
    assert "  Fix: " in str(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows the error without CUDA")
def test_nvtx_needs_cuda() -> None:
    with pytest.raises(MisconfigurationException, match=r"emit_nvtx=True, but there is no CUDA device(.|\n)*Fix: "):
        PyTorchProfiler(emit_nvtx=True)


def run(stage: str, batches: int, **options: Any) -> PyTorchProfiler:
    """Run a stage under a profiler that writes `<stage>-ops.txt`."""
    profiler = PyTorchProfiler(dirpath=".", filename="ops", row_limit=-1)
    limits = {f"limit_{kind}_batches": batches for kind in ("train", "val", "test", "predict")}
    trainer = lightlib.Trainer(**QUIET, **limits, num_sanity_val_steps=0, profiler=profiler, **options)
    getattr(trainer, stage)(BoringModel())
    return profiler


@pytest.mark.parametrize(
    ("stage", "step"),
    [("fit", "training"), ("validate", "validation"), ("test", "test"), ("predict", "predict")],
)
@pytest.mark.parametrize("batches", [1, 4])
def test_a_short_run_is_recorded_from_its_first_batch(stage: str, step: str, batches: int) -> None:
    found = [event.name for event in run(stage, batches, max_epochs=1).function_events]
    assert found.count(f"[pl][profile][LightningModule]BoringModel.{step}_step") == batches
    assert sorted(path.name for path in Path().glob("*.txt")) == [f"{stage}-ops.txt"]
    assert "aten::linear" in Path(f"{stage}-ops.txt").read_text("utf-8")


@pytest.mark.parametrize(("epochs", "recorded"), [(1, 2), (2, 4), (3, 3), (-1, 3)])
def test_the_batches_of_all_epochs_count(epochs: int, recorded: int) -> None:
    limits = {"max_epochs": epochs, "limit_val_batches": 0}
    profiler = PyTorchProfiler(export_to_chrome=False)
    trainer = lightlib.Trainer(**QUIET, limit_train_batches=2, profiler=profiler, callbacks=[StopAt(6)], **limits)
    trainer.fit(BoringModel())
    found = [event.name for event in profiler.function_events]
    assert found.count("[pl][profile][LightningModule]BoringModel.training_step") == recorded


class StopAt(lightlib.Callback):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        trainer.should_stop = trainer.global_step >= self.steps


def test_use_cuda_chooses_the_activities() -> None:
    profiler = PyTorchProfiler(schedule=None, use_cuda=False, export_to_chrome=False, record_shapes=True)
    with profiler.profile("work"):
        torch.ones(2).sum()
    profiler.stop_recording()
    assert "[pl][profile]work" in {event.name for event in profiler.function_events}
