"""A resumed TensorBoardLogger: its events are those of a run that was never stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightlib.loggers import TensorBoardLogger
from lightlib.report import LightlibWarning
from tests.loggers.resumed import begun, files, resumed, saved, scalars


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
