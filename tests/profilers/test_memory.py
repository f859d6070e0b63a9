"""MemoryProfiler: the memory that actions keep and need."""

from __future__ import annotations

import pytest
import torch

import lightlib
from lightlib.errors import MisconfigurationException
from lightlib.profilers import MemoryProfiler, memory
from tests.runs.bad_input import loader, with_methods
from tests.runs.plain import Net, batches, quiet_trainer
from tests.runs.quiet import QUIET

MIB = 2**20


@pytest.fixture
def used(monkeypatch):
    """Return the memory in use, as a list with one number to change."""
    used = [100 * MIB]
    monkeypatch.setattr(memory, "resident_memory", lambda: used[0])
    return used


def test_changes_are_added_up_and_the_largest_is_kept(used):
    profiler = MemoryProfiler()
    with profiler.profile("outer"):
        for change in (5, -2, 1):
            with profiler.profile("inner"):
                used[0] += change * MIB
    use = profiler.uses["inner"]
    assert (use.calls, use.kept // MIB, use.most // MIB, use.peak // MIB) == (3, 4, 5, 105)
    assert (profiler.uses["outer"].kept // MIB, profiler.uses["outer"].peak // MIB) == (4, 104)
    assert profiler.summary() == (
        "Memory (resident memory of the process; an action contains those within it)\n"
        "Action | Calls | Kept (MiB) | Most in a call (MiB) | Peak (MiB)\n"
        "---------------------------------------------------------------\n"
        "inner  | 3     | 4.0        | 5.0                  | 105.0\n"
        "outer  | 1     | 4.0        | 4.0                  | 104.0"
    )


def test_on_a_gpu_the_peak_within_an_action_is_that_of_the_allocator(monkeypatch):
    state = {"now": 10, "peak": 10}

    def use(now, peak):
        state.update(now=now, peak=max(state["peak"], peak))

    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: state["now"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: state["peak"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: state.update(peak=state["now"]))
    profiler = MemoryProfiler()
    monkeypatch.setattr(profiler, "_device", torch.device("cuda", 0))
    with profiler.profile("outer"):
        use(20, 90)
        with profiler.profile("inner"):
            use(30, 50)
        use(15, 40)
    assert (profiler.uses["inner"].kept, profiler.uses["inner"].peak) == (10, 50)
    assert (profiler.uses["outer"].kept, profiler.uses["outer"].peak) == (5, 90)
    assert "allocated on cuda:0" in profiler.summary()


def test_a_run_is_measured_by_name(tmp_path):
    from lightlib.demos.boring_classes import BoringModel

    profiler = MemoryProfiler(tmp_path, "m")
    lightlib.Trainer(**QUIET, max_epochs=1, limit_train_batches=2, limit_val_batches=0, profiler=profiler).fit(
        BoringModel()
    )
    assert profiler.uses["[LightningModule]BoringModel.training_step"].calls == 2
    assert (tmp_path / "fit-m.txt").read_text("utf-8").startswith("Memory (resident memory of the process")


def test_the_name_memory_gives_it():
    assert isinstance(lightlib.Trainer(profiler="memory").profiler, MemoryProfiler)


def test_a_further_run_starts_again_and_nothing_measured_is_no_text(used):
    profiler = MemoryProfiler()
    assert profiler.summary() == ""
    with profiler.profile("a"):
        pass
    profiler.teardown("fit")
    profiler.setup("test")
    assert profiler.uses == {}


def test_actions_that_do_not_match(used):
    profiler = MemoryProfiler()
    profiler.start("a")
    with pytest.raises(MisconfigurationException, match="was started while it was already running"):
        profiler.start("a")
    with pytest.raises(MisconfigurationException, match="'b' was stopped but is not running"):
        profiler.stop("b")


def test_the_resident_memory_grows_with_what_is_used():
    before = memory.resident_memory()
    block = torch.ones(64 * MIB // 4)
    assert memory.resident_memory() - before > 32 * MIB
    assert block.sum() == len(block)


class TestSnapshot:
    """Of the allocations on a GPU, with stand-ins for torch's functions, which need one."""

    @pytest.fixture
    def calls(self, monkeypatch):
        calls = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(memory, "record_memory", lambda most: calls.append(("record", most)))
        monkeypatch.setattr(memory, "write_memory_snapshot", lambda path: calls.append(("write", path)))
        return calls

    @pytest.mark.parametrize(
        ("error", "written"), [(torch.OutOfMemoryError("CUDA out of memory."), 1), (ValueError("another"), 0)]
    )
    def test_it_is_written_when_memory_runs_out(self, calls, error, written, tmp_path):
        def step(self, batch, batch_idx):
            raise error

        profiler = MemoryProfiler(tmp_path, "use", snapshot=True)
        with pytest.raises(type(error)):
            quiet_trainer(profiler=profiler).fit(with_methods(training_step=step), loader())
        writes = [path for kind, path in calls if kind == "write"]
        assert writes == [str(tmp_path / "fit-use.pickle")] * written
        assert [most for kind, most in calls if kind == "record"] == [100_000, None]

    def test_without_a_gpu_it_is_refused(self):
        with pytest.raises(MisconfigurationException, match="without a CUDA device"):
            quiet_trainer(profiler=MemoryProfiler(snapshot=True)).fit(Net(), batches(1))
