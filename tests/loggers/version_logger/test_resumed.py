"""Versions of a resumed run, and of one that starts again without a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightlib.loggers import CSVLogger, Fanout
from lightlib.report import LightlibWarning, rank_zero_only
from tests.loggers.resumed import KINDS, begun, files, left, resumed, scalars, text


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
