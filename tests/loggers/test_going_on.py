"""A resumed run's logs are those of a run that was never stopped: versions, rows, columns, events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightlib.loggers import CometLogger, CSVLogger, DummyLogger, Fanout, TensorBoardLogger, WandbLogger
from lightlib.report import LightlibWarning, rank_zero_only

KINDS = (CSVLogger, TensorBoardLogger)


def saved(*loggers):
    """Save as core does for a checkpoint; return the state after a round trip through JSON."""
    fanout = Fanout(loggers)
    fanout.save()
    return json.loads(json.dumps(fanout.state_dict()))


def resumed(states, *loggers):
    """Restore the loggers as core does before a resumed run; return the first one."""
    Fanout(loggers).load_state_dict(states)
    for logger in loggers:
        logger.prepare()
    return loggers[0]


def begun(logger, **params):
    logger.prepare()
    logger.log_hyperparams(params)
    logger.save()
    return logger


def left(logger):
    """Return the state that an ended run leaves."""
    state = saved(begun(logger))
    logger.finalize("failed")
    return state


def text(logger):
    return Path(logger.log_dir, "metrics.csv").read_bytes()


def scalars(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())


rows = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.dictionaries(
            st.sampled_from(
                ["a", "b", "val/loss", 'q"u,o'],
            ),
            st.floats(width=32),
        ),
    ),
    max_size=8,
)


class TestCSV:
    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(before=rows, lost=rows, after=rows, every=st.integers(1, 4), flushed=st.booleans())
    def test_byte_for_byte_as_if_it_had_never_stopped(self, tmp_path_factory, before, lost, after, every, flushed):
        tmp_path = tmp_path_factory.mktemp("logs")

        def log(logger, several):
            for step, metrics in several:
                logger.log_metrics(metrics, step)

        whole = begun(CSVLogger(tmp_path / "whole", flush_logs_every_n_steps=every), lr=1)
        log(whole, before)
        saved(whole)
        log(whole, after)
        whole.finalize("success")

        killed = begun(CSVLogger(tmp_path / "cut", flush_logs_every_n_steps=every), lr=1)
        log(killed, before)
        state = saved(killed)
        log(killed, lost)
        if flushed:
            killed.save()

        again = resumed(state, CSVLogger(tmp_path / "cut", flush_logs_every_n_steps=every))
        log(again, after)
        again.finalize("success")
        assert again.version == 0
        assert files(tmp_path / "cut") == files(tmp_path / "whole")
        if before or after:
            assert text(again) == text(whole)

    def test_a_line_that_was_cut_in_two_is_dropped(self, tmp_path):
        logger = begun(CSVLogger(tmp_path))
        logger.log_metrics({"x": 1.0}, 0)
        state, before = saved(logger), text(logger)
        with open(f"{logger.log_dir}/metrics.csv", "a") as file:
            file.write("1,0.")
        Path(logger.log_dir, "metrics.csv.part").write_text("step")
        again = resumed(state, CSVLogger(tmp_path))
        assert text(again) == before
        assert files(again.log_dir) == ["hparams.yaml", "metrics.csv"]

    def test_all_rows_came_after_the_checkpoint(self, tmp_path):
        logger = begun(CSVLogger(tmp_path))
        state = saved(logger)
        logger.log_metrics({"x": 1.0}, 0)
        logger.save()
        again = resumed(state, CSVLogger(tmp_path))
        assert files(again.log_dir) == ["hparams.yaml"]
        again.log_metrics({"y": 1.0}, 0)
        assert text(again) == b"step,y\n0,1.0\n"

    def test_resumed_in_the_same_process(self, tmp_path):
        logger = begun(CSVLogger(tmp_path))
        logger.log_metrics({"x": 1.0})
        state = saved(logger)
        logger.log_metrics({"x": 2.0})
        resumed(state, logger)
        logger.log_metrics({"x": 3.0})
        logger.save()
        assert text(logger) == b"step,x\n0,1.0\n1,3.0\n"

    def test_a_file_that_was_changed_is_continued_as_it_is(self, tmp_path):
        logger = begun(CSVLogger(tmp_path))
        logger.log_metrics({"x": 1.0}, 0)
        state = saved(logger)
        Path(logger.log_dir, "metrics.csv").write_text("step,x\n0,9.0\n1,9.0\n")
        with pytest.warns(
            LightlibWarning, match=r"does not match the checkpoint.*its first 1 rows.*continued unchanged\."
        ):
            again = resumed(state, CSVLogger(tmp_path))
        again.log_metrics({"x": 2.0}, 2)
        assert (again.version, text(again)) == (0, b"step,x\n0,9.0\n1,9.0\n2,2.0\n")

    def test_another_runs_file_of_the_same_version_is_left_alone(self, tmp_path):
        logger = begun(CSVLogger(tmp_path / "one"))
        logger.log_metrics({"x": 1.0}, 0)
        state = saved(logger)
        other = begun(CSVLogger(tmp_path / "other"))
        other.log_metrics({"x": 5.0}, 0)
        other.save()
        with pytest.warns(LightlibWarning, match=r"stays unchanged, and the run logs to a new version\."):
            again = resumed(state, CSVLogger(tmp_path / "other"))
        assert (again.version, text(other)) == (1, b"step,x\n0,5.0\n")

    def test_logs_that_were_moved_are_known_by_what_is_in_them(self, tmp_path):
        logger = begun(CSVLogger(tmp_path / "here"))
        logger.log_metrics({"x": 1.0}, 0)
        state = saved(logger)
        logger.log_metrics({"x": 2.0}, 500)
        (tmp_path / "here").rename(tmp_path / "there")
        again = resumed(state, CSVLogger(tmp_path / "there"))
        assert (again.version, text(again)) == (0, b"step,x\n0,1.0\n")

    def test_at_a_url(self, memory):
        logger = begun(CSVLogger("memory://runs", name="a"), lr=1)
        logger.log_metrics({"x": 1.0}, 0)
        state = saved(logger)
        logger.log_metrics({"x": 2.0, "y": 1.0}, 500)
        again = CSVLogger("memory://runs", name="a")
        assert again.earlier_log_dirs == ["memory://runs/a/version_0"]
        resumed(state, again)
        assert again.version == 0
        assert memory.cat_file("/runs/a/version_0/metrics.csv") == b"step,x\n0,1.0\n"


class TestTensorBoard:
    def log(self, logger, values, step):
        logger.log_metrics({"loss": values, "several": {"a": values, "b": -values}}, step)

    def test_each_value_once(self, tmp_path):
        """Also values of one step before and after the checkpoint, which purging by step would mix up."""

        def run(logger, first, last):
            for number in range(first, last):
                self.log(logger, float(number), number // 3)

        whole = begun(TensorBoardLogger(tmp_path / "whole"), lr=0.1)
        run(whole, 0, 10)
        whole.finalize("success")
        killed = begun(TensorBoardLogger(tmp_path / "cut"), lr=0.1)
        run(killed, 0, 4)
        state = saved(killed)
        run(killed, 4, 9)
        killed.log_metrics({"new": {"curve": 1.0}}, 9)
        killed.save()
        again = begun(resumed(state, TensorBoardLogger(tmp_path / "cut")), lr=0.1)
        run(again, 4, 10)
        again.finalize("success")
        killed.finalize("failed")
        assert again.version == 0
        for folder in ("", "several_a", "several_b"):
            expected = scalars(Path(whole.log_dir, folder))
            assert expected
            assert scalars(Path(again.log_dir, folder)) == expected
        assert files(Path(again.log_dir, "new_curve")) == []

    def test_killed_again_before_the_next_checkpoint(self, tmp_path):
        logger = begun(TensorBoardLogger(tmp_path), lr=0.1)
        logger.log_metrics({"x": 1.0}, 0)
        state = saved(logger)
        for _ in range(3):
            again = begun(resumed(state, TensorBoardLogger(tmp_path)), lr=0.1)
            again.log_metrics({"x": 2.0}, 1)
            again.save()
            assert scalars(again.log_dir) == {"hp_metric": [(0, -1.0)], "x": [(0, 1.0), (1, 2.0)]}
            assert len([name for name in files(again.log_dir) if "tfevents" in name]) == 2
            again.finalize("failed")
        logger.finalize("failed")

    def test_a_record_that_was_cut_in_two_is_dropped(self, tmp_path):
        logger = begun(TensorBoardLogger(tmp_path, default_hp_metric=False))
        logger.log_metrics({"x": 1.0}, 0)
        state = saved(logger)
        logger.finalize("failed")
        (file,) = Path(logger.log_dir).glob("*tfevents*")
        with open(file, "ab") as torn:
            torn.write(b"\x20\0\0")
        again = resumed(state, TensorBoardLogger(tmp_path))
        again.log_metrics({"x": 2.0}, 1)
        again.finalize("success")
        assert scalars(again.log_dir) == {"x": [(0, 1.0), (1, 2.0)]}

    def test_other_runs_below_and_other_files_stay(self, tmp_path):
        logger = begun(TensorBoardLogger(tmp_path, version="a"))
        state = saved(logger)
        begun(TensorBoardLogger(tmp_path, version="a/b")).finalize("success")
        Path(logger.log_dir, "notes.txt").write_text("mine")
        logger.finalize("success")
        before = files(tmp_path)
        again = resumed(state, TensorBoardLogger(tmp_path, version="a"))
        again.finalize("success")
        assert set(before) <= set(files(tmp_path))

    def test_missing_events_are_said(self, tmp_path):
        logger = begun(TensorBoardLogger(tmp_path))
        state = saved(logger)
        logger.finalize("failed")
        (file,) = Path(logger.log_dir).glob("*tfevents*")
        file.unlink()
        with pytest.warns(LightlibWarning, match=r"do not match the checkpoint.*They stay unchanged\."):
            again = resumed(state, TensorBoardLogger(tmp_path))
        again.finalize("success")
        assert again.version == 0

    def test_other_hyperparameters_are_logged(self, tmp_path):
        logger = begun(TensorBoardLogger(tmp_path), lr=0.1)
        state = saved(logger)
        logger.finalize("failed")
        again = begun(resumed(state, TensorBoardLogger(tmp_path)), lr=0.2)
        again.finalize("success")
        assert scalars(again.log_dir) == {"hp_metric": [(0, -1.0), (0, -1.0)]}
        assert Path(again.log_dir, "hparams.yaml").read_text() == "lr: 0.2\n"

    def test_sub_dir(self, tmp_path):
        logger = begun(TensorBoardLogger(tmp_path, sub_dir="train"))
        state = saved(logger)
        logger.finalize("failed")
        again = TensorBoardLogger(tmp_path, sub_dir="train")
        assert again.earlier_log_dirs == [logger.log_dir]
        resumed(state, again)
        again.finalize("success")
        assert again.log_dir == logger.log_dir


@pytest.mark.parametrize("kind", KINDS)
class TestVersions:
    def test_the_earlier_ones(self, kind, tmp_path):
        for _ in range(11):
            begun(kind(tmp_path)).finalize("success")
        Path(tmp_path, "lightning_logs", "baseline").mkdir()
        logger = kind(tmp_path)
        root = f"{tmp_path}/lightning_logs/version_"
        assert logger.earlier_log_dirs == [f"{root}{number}" for number in range(10, -1, -1)]
        assert logger.version == 11, "reading the version decides nothing yet"
        assert logger.earlier_log_dirs[0] == f"{root}11"
        begun(logger).finalize("success")
        assert logger.earlier_log_dirs == [], "now it is certain"
        assert kind(tmp_path, version=3).earlier_log_dirs == []
        assert kind(tmp_path / "new").earlier_log_dirs == []

    def test_an_empty_one_that_was_taken_before_is_given_back(self, kind, tmp_path):
        state = left(kind(tmp_path))
        logger = kind(tmp_path)
        assert logger.version == 1
        resumed(state, logger)
        logger.finalize("success")
        assert logger.version == 0
        assert sorted(path.name for path in Path(tmp_path, "lightning_logs").iterdir()) == ["version_0"]

    def test_one_that_was_asked_for_stays(self, kind, tmp_path):
        state = left(kind(tmp_path))
        logger = resumed(state, kind(tmp_path, version="mine"))
        logger.finalize("success")
        assert logger.version == "mine"

    def test_one_that_leads_elsewhere_is_refused(self, kind, tmp_path):
        state = left(kind(tmp_path))
        state[0]["state"]["version"] = "../../elsewhere"
        with pytest.warns(LightlibWarning, match=r"load_state_dict raised Misconfig.*leads out of save_dir"):
            logger = resumed(state, kind(tmp_path))
        logger.finalize("success")
        assert logger.version == 1

    def test_off_rank_zero_nothing_is_read_or_written(self, kind, tmp_path, monkeypatch):
        state = left(kind(tmp_path))
        monkeypatch.setattr(rank_zero_only, "rank", 1)
        logger = kind(tmp_path)
        fanout = Fanout([logger])
        assert (fanout.state_dict(), logger.state_dict()) == ([], {})
        fanout.load_state_dict(state)
        fanout.start_anew()
        assert logger.version is None
        logger.share(lambda value: 0)
        assert logger.version == 0


@pytest.mark.parametrize("kind", KINDS)
class TestStartAnew:
    def test_what_a_killed_start_left_is_put_aside(self, kind, tmp_path):
        for number in range(3):
            logger = kind(tmp_path, version="v")
            Fanout([logger]).start_anew()
            begun(logger).log_metrics({"x": float(number)}, 0)
            logger.finalize("failed")
        if kind is CSVLogger:
            assert text(logger) == b"step,x\n0,2.0\n"
            assert files(logger.log_dir) == ["hparams.yaml", "metrics-v1.csv", "metrics-v2.csv", "metrics.csv"]
        else:
            assert scalars(logger.log_dir) == {"hp_metric": [(0, -1.0)], "x": [(0, 2.0)]}
            assert len(files(logger.log_dir)) == 4

    def test_a_new_version_leaves_the_others_as_they_are(self, kind, tmp_path):
        begun(kind(tmp_path)).finalize("failed")
        before = files(tmp_path)
        Fanout([kind(tmp_path)]).start_anew()
        assert files(tmp_path) == before


class TestFanout:
    class Counts(DummyLogger):
        def __init__(self):
            super().__init__()
            self.count = 0

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state_dict):
            self.count = state_dict["count"]

    class Broken(Counts):
        def state_dict(self):
            raise OSError("no")

        load_state_dict = start_anew = state_dict

    def test_by_class_and_place(self):
        one, two = self.Counts(), self.Counts()
        one.count, two.count = 1, 2
        states = Fanout([one, DummyLogger(), two]).state_dict()
        assert states == [
            {"logger": "Counts", "state": {"count": 1}},
            {"logger": "DummyLogger", "state": {}},
            {"logger": "Counts", "state": {"count": 2}},
        ]
        again = [DummyLogger(), self.Counts(), self.Counts(), self.Counts()]
        Fanout(again).load_state_dict(states)
        assert [logger.count for logger in again[1:]] == [1, 2, 0]

    @pytest.mark.parametrize("states", [None, [], [3], [{"logger": "Counts"}], [{"logger": "Counts", "state": {}}]])
    def test_nothing_to_go_on_with(self, states):
        logger = self.Counts()
        Fanout([logger]).load_state_dict(states)
        assert logger.count == 0

    def test_a_logger_that_fails_ends_nothing(self):
        counts = self.Counts()
        fanout = Fanout([self.Broken(), counts])
        with pytest.warns(LightlibWarning, match=r"Broken.state_dict raised OSError: no"):
            states = fanout.state_dict()
        states[0]["state"], states[1]["state"]["count"] = {"count": 3}, 4
        with pytest.warns(LightlibWarning, match=r"Broken.load_state_dict raised"):
            fanout.load_state_dict(states)
        with pytest.warns(LightlibWarning, match=r"Broken.start_anew raised"):
            fanout.start_anew()
        assert counts.count == 4


def test_wandb_and_comet_go_on_with_the_same_run():
    assert WandbLogger().state_dict() == {}
    for kind, argument in ((WandbLogger, "id"), (CometLogger, "experiment_key")):
        state = kind(**{argument: "r"}).state_dict()
        assert state == {argument: "r"}
        logger = kind()
        logger.load_state_dict(state)
        assert logger.version == "r"
        given = kind(**{argument: "mine"})
        given.load_state_dict(state)
        assert given.version == "mine"
    new = CometLogger(mode="create")
    new.load_state_dict({"experiment_key": "r"})
    assert new.version is None
