"""Progress bars: their text, how often they draw, the cost of a batch, and nothing left behind."""

from __future__ import annotations

import io
import math
import re
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from lightlib.callbacks.progress import progress_bar, timed
from lightlib.callbacks.progress.progress_bar import (
    PlainProgressBar,
    ProgressBar,
    RichProgressBar,
    RichProgressBarTheme,
    TimedProgressBar,
    TQDMProgressBar,
    default_progress_bar,
)
from lightlib.callbacks.timer import Timer
from lightlib.core.metrics.results import Results
from lightlib.core.metrics.slots import Table
from lightlib.core.progress.plan import Plan
from lightlib.errors import MisconfigurationException
from lightlib.report import LightlibWarning

pytest.importorskip("rich")
pytest.importorskip("tqdm")

MODULE: Any = object()


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timed, "monotonic", clock)
    return clock


class FakeTrainer:
    """The attributes that a bar reads of a trainer, and a training that calls hooks as the loop does."""

    def __init__(self, clock: Clock | None = None, batches: float = 10, epochs: int | None = 3, **other: Any) -> None:
        self.clock = clock or Clock()
        self.progress = types.SimpleNamespace(epoch=0, epoch_batch=0, batch=0, step=0)
        self.num_training_batches = batches
        self.run: Any = None
        self.max_epochs, self.max_steps = epochs, -1
        self.num_val_batches: list[float] = [4]
        self.num_sanity_val_batches: Any = [2]
        self.num_test_batches: list[float] = [4, 6]
        self.num_predict_batches: list[float] = [5]
        self.plan: Plan | None = Plan(num_batches=batches, validate_every=math.inf)
        self.state = types.SimpleNamespace(fn="fit")
        self.sanity_checking = False
        self.is_global_zero = True
        self.loggers: list[Any] = []
        self.callbacks: list[Any] = []
        self.metrics: dict[str, Any] = {"loss": 0.12345}
        self.reads = 0
        self.data_wait = 0.0
        self.start = self.clock.now
        self.__dict__.update(other)

    @property
    def progress_bar_metrics(self) -> dict[str, Any]:
        self.reads += 1
        return dict(self.metrics)

    @property
    def elapsed(self) -> float:
        return self.clock.now - self.start

    @property
    def current_epoch(self) -> int:
        return self.progress.epoch

    @property
    def global_step(self) -> int:
        return self.progress.step

    def batch(self, bar: ProgressBar, seconds: float = 1.0) -> None:
        self.clock.now += seconds
        self.data_wait += seconds / 8
        self.progress.epoch_batch += 1
        self.progress.batch += 1
        self.progress.step += 1
        bar.on_train_batch_end(self, MODULE, {}, None, self.progress.epoch_batch - 1)

    def validate(self, bar: ProgressBar, batches: int = 4, seconds: float = 1.0) -> None:
        bar.on_validation_start(self, MODULE)
        for index in range(batches):
            self.clock.now += seconds
            bar.on_validation_batch_end(self, MODULE, {}, None, index)
        bar.on_validation_end(self, MODULE)

    def epoch(self, bar: ProgressBar, batches: int = 10, seconds: float = 1.0, validate: bool = False) -> None:
        bar.on_train_epoch_start(self, MODULE)
        for _ in range(batches):
            self.batch(bar, seconds)
        if validate:
            self.validate(bar)
        bar.on_train_epoch_end(self, MODULE)
        self.progress.epoch += 1
        self.progress.epoch_batch = 0
        bar.on_fit_epoch_end(self, MODULE)

    def fit(self, bar: ProgressBar, epochs: int = 3, **epoch: Any) -> None:
        bar.setup(self, MODULE, "fit")
        bar.on_train_start(self, MODULE)
        for _ in range(epochs):
            self.epoch(bar, **epoch)
        bar.on_train_end(self, MODULE)
        bar.teardown(self, MODULE, "fit")

    def test(self, bar: ProgressBar, seconds: float = 1.0) -> None:
        self.state.fn = "test"
        bar.setup(self, MODULE, "test")
        bar.on_test_start(self, MODULE)
        for loader, batches in enumerate(self.num_test_batches):
            for index in range(int(batches)):
                self.clock.now += seconds
                bar.on_test_batch_end(self, MODULE, None, None, index, loader)
        bar.on_test_end(self, MODULE)
        bar.teardown(self, MODULE, "test")


class Recorder(TimedProgressBar):
    """A bar that keeps the moments it should draw."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, Any]] = []

    def draw(self, stage: str, moment: Any) -> None:
        self.seen.append((stage, moment))


def screen(text: str) -> list[str]:
    """Return the screen of a terminal after `text`; it understands the sequences that the bars use."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part.startswith("\x1b["):
            count = int(re.sub(r"\D", "", part) or 1)
            if part.endswith("A"):
                row = max(0, row - count)
            elif part.endswith("K"):
                lines[row] = "" if part == "\x1b[2K" else lines[row][:column]
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]


# the base


def test_reading_the_trainer_before_a_run_says_when_it_is_there() -> None:
    with pytest.raises(MisconfigurationException, match=r"ProgressBar.trainer was read before a run began(.|\n)*Fix: "):
        _ = ProgressBar().trainer


def test_descriptions_and_totals_are_those_of_the_trainer() -> None:
    bar, trainer = ProgressBar(), FakeTrainer()
    bar.setup(trainer, MODULE, "fit")
    assert bar.total_train_batches == 10
    assert (bar.total_val_batches, bar.total_val_batches_current_dataloader) == (4, 4)
    assert bar.total_test_batches_current_dataloader == 4
    assert bar.total_predict_batches_current_dataloader == 5
    trainer.sanity_checking, trainer.num_sanity_val_batches = True, 2
    assert bar.total_val_batches == 2
    trainer.sanity_checking, trainer.plan = False, Plan(validate_every=math.inf, validate_every_epochs=((0, 2),))
    assert bar.total_val_batches == 0  # there is no validation in the first epoch
    trainer.progress.epoch = 1
    assert bar.total_val_batches == 4
    words = (bar.sanity_check_description, bar.train_description, bar.validation_description)
    assert words == ("Sanity checking", "Epoch", "Validation")
    assert (bar.test_description, bar.predict_description) == ("Testing", "Predicting")


@pytest.mark.parametrize(("version", "shown"), [(3, 3), ("version-abcd", "abcd"), (None, None)])
def test_metrics_include_the_version_of_the_first_logger(version: Any, shown: Any) -> None:
    trainer = FakeTrainer(loggers=[types.SimpleNamespace(version=version)])
    expected = {"loss": 0.12345} if shown is None else {"loss": 0.12345, "v_num": shown}
    assert ProgressBar().get_metrics(trainer, MODULE) == expected


def test_a_metric_with_the_name_of_the_version_is_shown_with_a_warning() -> None:
    trainer = FakeTrainer(loggers=[types.SimpleNamespace(version=3)], metrics={"v_num": 1.5})
    with pytest.warns(LightlibWarning, match=r"'v_num' was logged with prog_bar=True(.|\n)*Fix: rename it"):
        assert ProgressBar().get_metrics(trainer, MODULE) == {"v_num": 1.5}


def test_only_rank_zero_shows_something(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    bars = [PlainProgressBar(), RichProgressBar(), TQDMProgressBar()]
    for bar in bars:
        FakeTrainer(clock, is_global_zero=False).fit(bar)
        FakeTrainer(clock, is_global_zero=False).test(bar)
        assert bar.is_disabled
    assert capsys.readouterr() == ("", "")


def test_a_bar_of_ones_own_needs_no_more_than_the_hooks_it_draws_in(capsys: pytest.CaptureFixture[str]) -> None:
    class Percent(ProgressBar):
        def __init__(self) -> None:
            super().__init__()
            self.enable = True

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
            self.print(f"{(batch_idx + 1) / self.total_train_batches:.0%}", end=" ")

    FakeTrainer(batches=2).fit(Percent(), epochs=1, batches=2)
    assert capsys.readouterr().out == "50% 100% "


# when it draws


def test_the_bar_is_drawn_by_time_and_reads_metrics_only_then(clock: Clock) -> None:
    bar, trainer = Recorder(), FakeTrainer(clock, batches=1000)
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    bar.on_train_epoch_start(trainer, MODULE)
    for _ in range(1000):
        trainer.batch(bar, seconds=0.001)  # one second: ten drawings, and the one before the first batch
    assert 10 <= len(bar.seen) <= 11
    assert trainer.reads == len(bar.seen)


@pytest.mark.parametrize("bar", [PlainProgressBar(), RichProgressBar(), TQDMProgressBar(), Recorder()])
def test_a_batch_costs_two_calls(bar: TimedProgressBar) -> None:
    trainer, calls = FakeTrainer(), []
    bar.setup(trainer, MODULE, "fit")
    bar._due = math.inf  # not due: what nearly every batch sees
    hooks: list[Callable[[], None]] = [
        lambda: bar.on_train_batch_end(trainer, MODULE, {}, None, 3),
        lambda: bar.on_validation_batch_end(trainer, MODULE, {}, None, 3, 0),
        lambda: bar.on_test_batch_end(trainer, MODULE, {}, None, 3, 0),
        lambda: bar.on_predict_batch_end(trainer, MODULE, {}, None, 3, 0),
    ]
    for hook in hooks:
        calls.clear()
        sys.setprofile(lambda frame, event, argument: calls.append(event))
        hook()
        sys.setprofile(None)
        # in addition to the hook and the clock, the lambda around it and sys.setprofile are called
        assert len([event for event in calls if event in {"call", "c_call"}]) - 2 <= 2


@pytest.mark.parametrize("kind", [PlainProgressBar, RichProgressBar, TQDMProgressBar])
def test_no_bar_has_other_hooks_per_batch(kind: type[TimedProgressBar]) -> None:
    from lightlib.callbacks.callback import Callback

    per_batch = [name for name in vars(Callback) if "_batch_" in name or name.startswith(("on_before", "on_after"))]
    overridden = {name for name in per_batch if getattr(kind, name) is not getattr(Callback, name)}
    assert overridden == {f"on_{stage}_batch_end" for stage in ("train", "validation", "test", "predict")}
    assert kind.on_accumulation_end is Callback.on_accumulation_end


def test_switched_off_in_the_middle_a_bar_shows_nothing_until_switched_on(clock: Clock) -> None:
    bar, trainer = Recorder(), FakeTrainer(clock)
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    bar.disable()
    bar.seen.clear()
    for _ in range(3):
        trainer.batch(bar)
    assert bar.seen == []
    bar.enable()
    for _ in range(3):
        trainer.batch(bar)
    assert [moment.batch for _, moment in bar.seen] == [4, 5, 6]


# text of the bar


def last(bar: Recorder) -> Any:
    return bar.seen[-1][1]


def test_the_remaining_time_is_that_of_all_epochs(clock: Clock) -> None:
    bar, trainer = Recorder(), FakeTrainer(clock)
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    bar.on_train_epoch_start(trainer, MODULE)
    trainer.batch(bar, seconds=100)  # a slow start, which is not the pace
    for _ in range(4):
        trainer.batch(bar, seconds=2)
    moment = last(bar)
    assert (moment.title, moment.batch, moment.total) == ("Epoch 1/3", 5, 10)
    assert moment.remaining == pytest.approx(25 * 2)
    assert moment.rate == pytest.approx(0.5)
    assert moment.data_share == pytest.approx(1 / 8)


def test_the_remaining_time_includes_validations_and_the_rate_does_not(clock: Clock) -> None:
    bar, trainer = Recorder(), FakeTrainer(clock, plan=Plan(num_batches=10, validate_every=4))
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    bar.on_train_epoch_start(trainer, MODULE)
    for _ in range(4):
        trainer.batch(bar)
    trainer.validate(bar, seconds=3.0)  # 12 seconds
    trainer.batch(bar)
    stage, moment = bar.seen[-1]
    assert (stage, moment.batch) == ("train", 5)
    assert moment.rate == pytest.approx(1.0)
    assert moment.remaining == pytest.approx(25 + 5 * 12)  # one more in this epoch, and two in each later epoch
    assert ("validate", 4, 4) in [(stage, moment.batch, moment.total) for stage, moment in bar.seen]


def test_max_steps_ends_the_run_before_the_epochs_do(clock: Clock) -> None:
    bar, trainer = Recorder(), FakeTrainer(clock, max_steps=7)
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    for _ in range(3):
        trainer.batch(bar)
    assert last(bar).remaining == pytest.approx(4)


def test_a_timer_ends_the_run_before_the_epochs_do(clock: Clock) -> None:
    class Short(Timer):
        def time_remaining(self, stage: str = "train") -> float | None:
            return 5.0

    bar, trainer = Recorder(), FakeTrainer(clock, callbacks=[Timer(), Short()])
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    for _ in range(3):
        trainer.batch(bar)
    assert last(bar).remaining == 5.0


@pytest.mark.parametrize(("batches", "epochs"), [(math.inf, 3), (10, None), (10, -1), (math.inf, math.inf)])
def test_without_an_end_there_is_no_remaining_time(clock: Clock, batches: float, epochs: Any) -> None:
    bar, trainer = Recorder(), FakeTrainer(clock, batches=batches, epochs=epochs)
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    for _ in range(3):
        trainer.batch(bar)
    assert last(bar).remaining is None
    assert last(bar).title == ("Epoch 1/3" if epochs == 3 else "Epoch 1")


def test_a_part_of_an_epoch_counts_as_one_in_the_title(clock: Clock) -> None:
    bar, trainer = Recorder(), FakeTrainer(clock, batches=10, epochs=1.5)
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    for _ in range(12):
        trainer.batch(bar)
    assert last(bar).title.endswith("/2")


def test_a_resume_within_an_epoch_counts_what_was_done_but_not_its_time(clock: Clock) -> None:
    bar, trainer = Recorder(), FakeTrainer(clock)
    trainer.progress = types.SimpleNamespace(epoch=1, epoch_batch=5, batch=15, step=15)
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)  # on_train_epoch_start is not called: the epoch has begun
    trainer.batch(bar)
    trainer.batch(bar)
    moment = last(bar)
    assert (moment.title, moment.batch, moment.remaining) == ("Epoch 2/3", 7, pytest.approx(13))


def test_evaluation_shows_the_loader_and_the_time_of_all_loaders(clock: Clock) -> None:
    bar, trainer = Recorder(), FakeTrainer(clock)
    trainer.test(bar)
    moments = [moment for _, moment in bar.seen]
    assert moments[0].title == "Testing loader 1/2"
    second = next(moment for moment in moments if moment.title == "Testing loader 2/2")
    assert (second.batch, second.total, second.remaining) == (1, 6, pytest.approx(5))
    assert second.data_share is None
    assert second.metrics == {"loss": 0.12345}


def test_evaluation_shows_the_name_of_a_loader(clock: Clock) -> None:
    bar, trainer = Recorder(), FakeTrainer(clock)
    trainer.run = types.SimpleNamespace(results=Results())
    trainer.run.results.use(Table(training=False, endings=("/clean", "/noisy")))
    trainer.test(bar)
    titles = {moment.title for _, moment in bar.seen}
    assert titles == {"Testing clean 1/2", "Testing noisy 2/2"}


def test_a_bar_begins_at_the_first_loader_that_is_read(clock: Clock) -> None:
    bar, trainer = TQDMProgressBar(), FakeTrainer(clock)
    trainer.num_val_batches = [0, 3]
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    bar.on_validation_start(trainer, MODULE)
    assert bar.val_progress_bar.total == 3


def test_evaluation_with_loaders_of_unknown_length(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = FakeTrainer(clock, num_predict_batches=[math.inf])
    bar = PlainProgressBar()
    bar.setup(trainer, MODULE, "predict")
    trainer.state.fn = "predict"
    bar.on_predict_start(trainer, MODULE)
    for index in range(25):
        clock.now += 1
        bar.on_predict_batch_end(trainer, MODULE, None, None, index)
    bar.on_predict_end(trainer, MODULE)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "Predicting | 25/? | elapsed 00:00:25 | 1.00it/s | loss=0.123"


# plain


def test_plain_lines_come_now_and_then_and_for_every_epoch(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = FakeTrainer(clock, loggers=[types.SimpleNamespace(version=0)])
    trainer.fit(PlainProgressBar(), epochs=3)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "Epoch 1/3 | 2/10 | ETA 00:00:28 | 1.00it/s | data 12% | loss=0.123 v_num=0",  # soon
        "Epoch 1/3 | 10/10 | ETA 00:00:20 | 1.00it/s | data 12% | loss=0.123 v_num=0",
        "Epoch 2/3 | 2/10 | ETA 00:00:18 | 1.00it/s | data 12% | loss=0.123 v_num=0",  # ten seconds later
        "Epoch 2/3 | 10/10 | ETA 00:00:10 | 1.00it/s | data 12% | loss=0.123 v_num=0",
        "Epoch 3/3 | 2/10 | ETA 00:00:08 | 1.00it/s | data 12% | loss=0.123 v_num=0",
        "Epoch 3/3 | 10/10 | elapsed 00:00:30 | 1.00it/s | data 12% | loss=0.123 v_num=0",
    ]


def test_the_last_second_of_a_run_has_an_eta_until_its_end(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = FakeTrainer(clock)
    trainer.fit(PlainProgressBar(), epochs=3, seconds=0.02)
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [words[1:3] for words in lines] == [
        ["10/10", "ETA 00:00:00"], ["10/10", "ETA 00:00:00"], ["10/10", "elapsed 00:00:00"],
    ]  # fmt: skip


def test_a_short_epoch_with_a_long_validation_has_the_rate_of_its_batches(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = FakeTrainer(clock)
    trainer.fit(PlainProgressBar(interval=600), epochs=2, seconds=0.01, validate=True)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Epoch")]
    epochs = [line.split(" | ")[:2] for line in lines]
    assert epochs == [["Epoch 1/3", "10/10"], ["Epoch 2/3", "1/10"], ["Epoch 2/3", "10/10"]]  # the first one was due
    assert all("| 100it/s |" in line for line in lines)


def test_plain_shows_no_short_validation_and_no_sanity_check(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    bar, trainer = PlainProgressBar(interval=60), FakeTrainer(clock)
    bar.setup(trainer, MODULE, "fit")
    trainer.sanity_checking = True
    trainer.validate(bar, batches=2, seconds=0.1)
    trainer.sanity_checking = False
    trainer.fit(bar, epochs=1, validate=True)
    assert [line.split(" | ")[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["Epoch 1/3", "2/10"],
        ["Epoch 1/3", "10/10"],
    ]


def test_plain_leaves_a_line_when_a_run_ends_within_an_epoch(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    bar, trainer = PlainProgressBar(interval=60), FakeTrainer(clock)
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    bar.on_train_epoch_start(trainer, MODULE)
    for _ in range(4):
        trainer.batch(bar, 0.1)
    bar.on_train_epoch_end(trainer, MODULE)
    bar.on_train_end(trainer, MODULE)
    bar.teardown(trainer, MODULE, "fit")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("Epoch 1/3 | 4/10 | ")


def test_plain_has_no_control_characters(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = FakeTrainer(clock)
    trainer.fit(PlainProgressBar(), validate=True)
    trainer.test(PlainProgressBar())
    out = capsys.readouterr().out
    assert {character for character in out if not character.isprintable()} == {"\n"}
    assert out.splitlines()[-1].startswith("Testing loader 2/2 | 6/6 | ")


def test_a_run_that_ends_within_an_epoch_has_no_time_left(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    bar, trainer = PlainProgressBar(interval=60), FakeTrainer(clock, max_steps=4)
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    bar.on_train_epoch_start(trainer, MODULE)
    for _ in range(4):
        trainer.batch(bar, 1.0)
    bar.on_train_epoch_end(trainer, MODULE)
    bar.on_train_end(trainer, MODULE)
    assert capsys.readouterr().out.splitlines()[-1].startswith("Epoch 1/3 | 4/10 | elapsed 00:00:04 | ")


@pytest.mark.parametrize("interval", [0, -1.0, math.nan])
def test_plain_refuses_an_interval_of_nothing(interval: float) -> None:
    with pytest.raises(MisconfigurationException, match=r"interval=.*\n  Expected: seconds above 0\.\n  Fix: "):
        PlainProgressBar(interval)


# rich


def rich_bar(width: int, **other: Any) -> tuple[RichProgressBar, io.StringIO]:
    file = io.StringIO()
    console = {"file": file, "force_terminal": True, "width": width, "color_system": None, "legacy_windows": False}
    return RichProgressBar(console_kwargs=console, **other), file


@pytest.mark.parametrize("width", [30, 60, 100, 200])
def test_rich_fits_into_the_width_with_all_it_has_to_say(clock: Clock, width: int) -> None:
    bar, file = rich_bar(width)
    trainer = FakeTrainer(clock, batches=938, epochs=10, metrics={"loss": 0.12345, "accuracy": 0.987, "lr": 3e-5})
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    for _ in range(469):
        trainer.batch(bar)
    shown = screen(file.getvalue())
    bar.teardown(trainer, MODULE, "fit")
    assert max(map(len, shown)) < width
    words = " ".join(shown)
    for word in ("Epoch 1/10", "469/938", "ETA 02:28:31", "1.00it/s", "data 12%", "loss=0.123", "lr=3.00e-05"):
        assert word in words
    bars = re.search("━+", words)
    assert bool(bars) == (width >= 60)


def test_rich_at_sixty_columns_looks_like_this(clock: Clock) -> None:
    bar, file = rich_bar(60)
    trainer = FakeTrainer(clock, batches=938, epochs=10)
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    for _ in range(469):
        trainer.batch(bar)
    bar.on_validation_start(trainer, MODULE)
    for index in range(3):
        clock.now += 1
        bar.on_validation_batch_end(trainer, MODULE, None, None, index)
    shown = screen(file.getvalue())
    bar.teardown(trainer, MODULE, "fit")
    assert shown == [
        "Epoch 1/10 ━━━━╸     469/938 ETA 02:28:31 1.00it/s data 12%",
        "loss=0.123",
        "Validation ━━━━━━━━━━━━━━━━╸      3/4 ETA 00:00:01 1.00it/s",
    ]


@pytest.mark.parametrize(("leave", "left"), [(False, ["Epoch 3/3"]), (True, ["Epoch 1/3", "Epoch 2/3", "Epoch 3/3"])])
def test_rich_leaves_the_last_line_or_one_for_every_epoch(clock: Clock, leave: bool, left: list[str]) -> None:
    bar, file = rich_bar(100, leave=leave)
    trainer = FakeTrainer(clock)
    bar.setup(trainer, MODULE, "fit")
    trainer.sanity_checking = True
    trainer.validate(bar, batches=2)
    trainer.sanity_checking = False
    trainer.fit(bar, validate=True)
    shown = [line for line in screen(file.getvalue()) if line]
    assert [line[:9] for line in shown] == left
    assert all("10/10" in line and "loss=0.123" in line for line in shown)
    assert file.getvalue().rindex("\x1b[?25h") > file.getvalue().rindex("\x1b[?25l")  # the cursor is shown


def test_rich_gives_the_terminal_back_after_an_exception(clock: Clock) -> None:
    bar, file = rich_bar(100)
    trainer, stdout = FakeTrainer(clock), sys.stdout
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    trainer.batch(bar)
    assert sys.stdout is not stdout  # so that a print of the user's does not break the line
    bar.on_exception(trainer, MODULE, KeyboardInterrupt())
    bar.teardown(trainer, MODULE, "fit")
    assert sys.stdout is stdout
    assert file.getvalue().rindex("\x1b[?25h") > file.getvalue().rindex("\x1b[?25l")  # the cursor is shown
    assert screen(file.getvalue())[-1] == ""
    assert screen(file.getvalue())[0].startswith("Epoch 1/3")


def test_rich_ends_its_line_in_a_file_too(clock: Clock) -> None:
    file = io.StringIO()
    trainer = FakeTrainer(clock)
    trainer.fit(RichProgressBar(console_kwargs={"file": file, "width": 100}), validate=True)
    assert file.getvalue().startswith("Epoch 3/3")
    assert file.getvalue().count("\n") == 1
    assert file.getvalue().endswith("\n")


def test_rich_shows_a_validation_before_its_first_batch_is_done(clock: Clock) -> None:
    bar, file = rich_bar(60)
    trainer = FakeTrainer(clock)
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    for _ in range(10):
        trainer.batch(bar)
    clock.now += 1
    bar.on_validation_start(trainer, MODULE)
    shown = screen(file.getvalue())
    bar.teardown(trainer, MODULE, "fit")
    assert "10/10" in shown[0]
    assert re.fullmatch("Validation +0/4 elapsed 00:00:00", shown[-1])


@pytest.mark.parametrize("through", ["bar.print", "print"])
def test_printing_goes_above_the_rich_bar(clock: Clock, through: str) -> None:
    bar, file = rich_bar(100)
    trainer = FakeTrainer(clock)
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    for _ in range(5):
        trainer.batch(bar)
    (bar.print if through == "bar.print" else print)("a [bold]word", "of\nthe user", sep="-")
    shown = screen(file.getvalue())
    bar.teardown(trainer, MODULE, "fit")
    assert shown[:2] == ["a [bold]word-of", "the user"]
    assert shown[2].startswith("Epoch 1/3")


def test_rich_with_an_unknown_total_and_a_theme(clock: Clock) -> None:
    theme = RichProgressBarTheme(metrics_format=".5f", metrics_text_delimiter=" · ")
    bar, file = rich_bar(100, theme=theme)
    trainer = FakeTrainer(clock, batches=math.inf, epochs=None, metrics={"loss": 0.5, "n": 3})
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    for _ in range(5):
        trainer.batch(bar)
    shown = screen(file.getvalue())
    bar.teardown(trainer, MODULE, "fit")
    assert re.fullmatch(r"Epoch 1 ━+ 5/\? elapsed 00:00:05 1\.00it/s data 12% loss=0\.50000 · n=3", shown[0])


def test_rich_is_drawn_without_a_thread_and_switched_off_by_a_rate_of_nothing(clock: Clock) -> None:
    import threading

    before = threading.active_count()
    bar, file = rich_bar(100)
    trainer = FakeTrainer(clock)
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    assert threading.active_count() == before
    bar.teardown(trainer, MODULE, "fit")
    off, file = rich_bar(100, refresh_rate=0)
    assert off.is_disabled
    FakeTrainer(clock).fit(off)
    assert file.getvalue() == ""
    with pytest.raises(MisconfigurationException, match=r"refresh_rate=-1(.|\n)*Expected: drawings per second"):
        RichProgressBar(refresh_rate=-1)


# tqdm


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    from tqdm import std

    def set_width(width: int) -> None:
        monkeypatch.setattr(std, "_screen_shape_wrapper", lambda: lambda file: (width, 40))

    return set_width


@pytest.mark.parametrize("width", [60, 100])
def test_tqdm_fits_into_the_width(
    clock: Clock, columns: Callable[[int], None], capsys: pytest.CaptureFixture[str], width: int
) -> None:
    columns(width)
    bar, trainer = TQDMProgressBar(), FakeTrainer(clock, batches=938, epochs=10)
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    for _ in range(469):
        trainer.batch(bar)
    shown = screen(capsys.readouterr().out)
    bar.teardown(trainer, MODULE, "fit")
    assert max(map(len, shown)) <= width
    expected = {
        60: "Epoch 1/10: 469/938, ETA 02:28:31, loss=0.123, 1.00it/s",
        100: "Epoch 1/10: " + "█" * 18 + "▌" + " " * 18 + " 469/938, ETA 02:28:31, 1.00it/s, data 12%, loss=0.123",
    }[width]
    assert [re.sub("[█▏▎▍▌▋▊▉ ]+", " ", line) for line in shown if line] == [re.sub("[█▌ ]+", " ", expected)]


@pytest.mark.parametrize(("leave", "left"), [(False, ["Epoch 3/3"]), (True, ["Epoch 1/3", "Epoch 2/3", "Epoch 3/3"])])
def test_tqdm_leaves_the_last_bar_or_one_for_every_epoch(
    clock: Clock, capsys: pytest.CaptureFixture[str], leave: bool, left: list[str]
) -> None:
    bar, trainer = TQDMProgressBar(leave=leave), FakeTrainer(clock)
    trainer.fit(bar, validate=True)
    shown = [line for line in screen(capsys.readouterr().out) if line]
    assert [line[:9] for line in shown] == left
    assert all("10/10" in line and "loss=0.123" in line for line in shown)


@pytest.mark.parametrize(("leave", "left"), [(False, ["Epoch 3/3"]), (True, ["Epoch 1/3", "Epoch 2/3", "Epoch 3/3"])])
def test_tqdm_leaves_a_line_of_text_where_its_bars_are_widgets(
    clock: Clock, capsys: pytest.CaptureFixture[str], leave: bool, left: list[str]
) -> None:
    class Widgets(TQDMProgressBar):
        def init_train_tqdm(self) -> Any:
            bar = super().init_train_tqdm()
            bar.container = object()  # as a bar of a notebook
            return bar

    trainer = FakeTrainer(clock)
    trainer.fit(Widgets(leave=leave))
    lines = [line for line in capsys.readouterr().out.splitlines() if " | " in line]
    assert [line.partition(" | ")[0] for line in lines] == left
    assert all(" | 10/10 | " in line and line.endswith("loss=0.123") for line in lines)


def test_tqdm_has_the_surface_that_subclasses_use(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    class Bar(TQDMProgressBar):
        def init_validation_tqdm(self) -> Any:
            bar = super().init_validation_tqdm()
            bar.set_description("running validation...")
            return bar

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_epoch_start(trainer, pl_module)
            self.train_progress_bar.set_description(f"My epoch {trainer.current_epoch}")

        def get_metrics(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
            return {"mine": 1}

    FakeTrainer(clock).fit(Bar(), epochs=1, validate=True)
    out = capsys.readouterr().out
    assert "running validation...: " in out
    assert "My epoch 0: " in out
    assert "mine=1" in out
    assert "Epoch 1/3" not in screen(out)[-2]


def test_tqdm_refresh_rate_is_a_number_of_batches(clock: Clock) -> None:
    bar, trainer = TQDMProgressBar(refresh_rate=4), FakeTrainer(clock)
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    shown = []
    for _ in range(10):
        trainer.batch(bar)
        shown.append(bar.train_progress_bar.n)
    bar.teardown(trainer, MODULE, "fit")
    assert shown == [0, 0, 0, 4, 4, 4, 4, 8, 8, 10]


def test_tqdm_says_when_a_bar_is_not_there_and_what_its_arguments_are(clock: Clock) -> None:
    bar = TQDMProgressBar()
    with pytest.raises(MisconfigurationException, match=r"The test bar of TQDMProgressBar was read(.|\n)*Fix: "):
        _ = bar.test_progress_bar
    with pytest.raises(MisconfigurationException, match=r"refresh_rate=-2(.|\n)*Expected: an int >= 0"):
        TQDMProgressBar(refresh_rate=-2)
    with pytest.raises(MisconfigurationException, match=r"process_position=-1"):
        TQDMProgressBar(process_position=-1)
    assert TQDMProgressBar(refresh_rate=0).is_disabled


def test_tqdm_prints_above_the_bar_and_closes_after_an_exception(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    import threading

    before = threading.active_count()
    bar, trainer = TQDMProgressBar(), FakeTrainer(clock)
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    trainer.batch(bar)
    trainer.batch(bar)
    assert threading.active_count() == before
    bar.print("a word", "of the user")
    bar.on_exception(trainer, MODULE, KeyboardInterrupt())
    bar.teardown(trainer, MODULE, "fit")
    out = capsys.readouterr().out
    shown = screen(out)
    assert shown[0] == "a word of the user"
    assert shown[1].startswith("Epoch 1/3: ")
    assert out.endswith("\n")
    bar.print("later", end="!")
    assert capsys.readouterr().out == "later!"


# the choice


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(progress_bar, "sys", types.SimpleNamespace(stdout=Terminal(), modules=sys.modules))


@pytest.mark.usefixtures("terminal")
def test_rich_is_chosen_in_a_terminal() -> None:
    assert type(default_progress_bar()) is RichProgressBar


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("CI", "true"), ("TERM", "dumb")])
def test_plain_is_chosen_where_the_place_asks_for_it(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert type(default_progress_bar()) is PlainProgressBar


@pytest.mark.usefixtures("terminal")
def test_plain_is_chosen_for_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar.sys, "stdout", io.StringIO())
    assert type(default_progress_bar()) is PlainProgressBar
    monkeypatch.setattr(progress_bar.sys, "stdout", None)
    assert type(default_progress_bar()) is PlainProgressBar


@pytest.mark.usefixtures("terminal")
def test_without_rich_tqdm_is_chosen_and_without_both_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"tqdm"}
    monkeypatch.setattr(progress_bar, "find_spec", lambda name: name in installed or None)
    assert type(default_progress_bar()) is TQDMProgressBar
    installed.clear()
    assert type(default_progress_bar()) is PlainProgressBar


@pytest.mark.usefixtures("terminal")
def test_a_module_of_the_name_of_ipython_without_its_functions_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace())
    assert type(default_progress_bar()) is RichProgressBar


def test_in_a_notebook_tqdm_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert type(default_progress_bar()) is TQDMProgressBar
    monkeypatch.setattr(progress_bar, "find_spec", lambda name: None)
    assert type(default_progress_bar()) is PlainProgressBar
