"""A resumed CSVLogger: its rows are those of a run that was never stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightlib.loggers import CSVLogger
from lightlib.report import LightlibWarning
from tests.loggers.resumed import begun, files, resumed, saved, text

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
