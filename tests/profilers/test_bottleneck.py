"""The bottleneck that a profile names, and its fix."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from lightlib.profilers.bottleneck import recommendation, table
from lightlib.profilers.profiler import RunFacts
from lightlib.profilers.step_times import CATEGORIES, StepTimes

ACTIONS = {
    "data": "[TrainData].next", "transfer": "[Strategy]S.batch_to_device",
    "forward": "[LightningModule]N.training_step", "backward": "[Strategy]S.backward",
    "optimizer": "[Optimizer]SGD.step", "hooks": "[Callback]C.on_train_batch_end",
    "logging": "[Logger]CSVLogger.log_metrics", "checkpoints": "save_checkpoint", "validation": "run_validation",
    "the rest": "run_training_batch",
}  # fmt: skip


def times(**seconds):
    """Return the times of a run in which the categories took these seconds."""
    measured, now = StepTimes(), 5.0
    measured.start("run_training_batch", 0.0)
    measured.stop("run_training_batch", 5.0)
    for name in ("the_rest", *(each for each in seconds if each != "the_rest")):
        action = ACTIONS[name.replace("_", " ")]
        measured.start(action, now)
        now += seconds.get(name, 0.0)
        measured.stop(action, now)
    return measured


@pytest.mark.parametrize(
    ("facts", "reason", "fix"),
    [
        (RunFacts(num_workers=0, cores=8), "num_workers=0", "DataLoader(…, num_workers=7, persistent_workers=True)"),
        (RunFacts(num_workers=0, cores=1), "num_workers=0", "num_workers=1"),
        (RunFacts(num_workers=2, cores=8), "num_workers=2, with 8 cores", "num_workers=8"),
        (RunFacts(num_workers=8, cores=8), "every core has one", "do less for each sample"),
        (RunFacts(num_workers=None), "next batch.", "wrap the data in a DataLoader"),
    ],
)
def test_waiting_for_data(facts, reason, fix):
    lines = recommendation(times(data=72.0, forward=28.0), facts)
    assert lines[0].startswith("Bottleneck: 72% waiting for the next batch")
    assert reason in lines[0]
    assert fix in lines[1]


@pytest.mark.parametrize(
    ("seconds", "facts", "reason", "fix"),
    [
        ({"transfer": 30}, RunFacts("cuda", pin_memory=False), "pin_memory=False", "pin_memory=True"),
        ({"transfer": 30}, RunFacts("cuda", pin_memory=True), "moving batches", "smaller dtypes"),
        ({"optimizer": 90}, RunFacts(fused=False), "without a fused kernel", "fused=True"),
        ({"optimizer": 90}, RunFacts(fused=True), "optimizer steps.", "accumulate_grad_batches"),
        ({"hooks": 60}, RunFacts(), "most in [Callback]C.on_train_batch_end", "only what is due"),
        ({"logging": 40}, RunFacts(log_every_n_steps=1), "most in [Logger]CSVLogger", "log_every_n_steps=10)"),
        ({"logging": 40}, RunFacts(log_every_n_steps=50), "log_every_n_steps=50", "log_every_n_steps=100)"),
        ({"checkpoints": 50}, RunFacts(), "writing them", "async_save=True"),
        ({"checkpoints": 50}, RunFacts(async_save=True), "writing them", "save less often"),
        ({"validation": 90}, RunFacts(), "validation loaders", "check_val_every_n_epoch=2"),
        ({"the_rest": 80}, RunFacts(batch_size=2), "batches of 2", "larger batches"),
    ],
)
def test_other_bottlenecks(seconds, facts, reason, fix):
    lines = recommendation(times(**seconds, forward=20.0), facts)
    assert reason in lines[0]
    assert fix in lines[1]


def test_a_run_that_computes_has_no_bottleneck():
    found = recommendation(times(data=2.0, forward=40.0, backward=48.0, optimizer=10.0), RunFacts(num_workers=0))
    assert found == ["No bottleneck: 98% of the time is spent on forward, backward and optimizer."]


def test_the_category_that_exceeds_its_share_most_is_named():
    both = times(validation=55.0, data=40.0, forward=5.0)
    assert "waiting for the next batch" in recommendation(both, RunFacts(num_workers=0))[0]


def test_the_table_has_a_line_for_each_category_with_time():
    lines = table(times(data=3.0, forward=1.0), RunFacts(num_workers=0, cores=4))
    assert lines[0] == ("Where the time of training went: 4 s, 1 batches, 4000 ms each (without the first one: 5 s)")
    assert [line.split()[0] for line in lines[1:3]] == ["data", "forward"]
    assert "75.0 %" in lines[1]
    assert table(StepTimes(), RunFacts()) == []


def test_every_category_has_an_action():
    assert set(ACTIONS) == set(CATEGORIES)


def test_the_facts_are_those_of_the_run():
    import lightlib
    from lightlib.core.setup.timing import facts_of
    from lightlib.demos.boring_classes import BoringModel, RandomDataset
    from tests.runs.quiet import QUIET

    trainer = lightlib.Trainer(**QUIET, max_epochs=1, limit_val_batches=0, log_every_n_steps=7)
    trainer.fit(BoringModel(), DataLoader(RandomDataset(32, 8), batch_size=4))
    facts = facts_of(trainer.run)
    assert (facts.device, facts.num_workers, facts.pin_memory, facts.batch_size) == ("cpu", 0, False, 4)
    assert (facts.log_every_n_steps, facts.fused, facts.async_save) == (7, False, False)
    assert facts.cores >= 1
