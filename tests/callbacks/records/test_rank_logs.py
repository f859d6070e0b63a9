"""RankLogFiles: a file for each rank, read back."""

from __future__ import annotations

import logging
import re
import warnings

import fsspec
import pytest

from lightlib import report
from lightlib.callbacks import Callback, RankLogFiles
from lightlib.core.trainer import Trainer
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.loggers import CSVLogger
from lightlib.report import LightlibWarning
from tests.processes.ranks import ranks
from tests.runs.plain import QUIET, Net, loader

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} \[rank (\d)\] (\w+) ([\w.]+): (.*)")


class Speaks(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        logging.getLogger("mine").warning("rank %d, epoch %d", trainer.global_rank, trainer.current_epoch)


def lines_of(path):
    found = [LINE.fullmatch(line) for line in path.read_text().splitlines()]
    assert all(found), path.read_text()
    return [match.groups() for match in found]


def fit(files, **settings):
    Trainer(**{**QUIET, "max_epochs": 2, **settings}, callbacks=[files, Speaks()]).fit(Net(), loader(8))


@pytest.mark.processes
def test_two_ranks_write_two_files(tmp_path):
    ranks(2, _of_each_rank, tmp_path)
    for rank in (0, 1):
        lines = lines_of(tmp_path / "logs" / f"log.rank{rank}")
        assert {line[0] for line in lines} == {str(rank)}
        assert [line[3] for line in lines if line[2] == "mine"] == [f"rank {rank}, epoch {epoch}" for epoch in (0, 1)]
        assert (tmp_path / "copies" / f"log.rank{rank}").read_text() == (
            tmp_path / "logs" / f"log.rank{rank}"
        ).read_text()
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["log.rank1"]


def _of_each_rank(rank, folder):
    settings = {"devices": 2, "strategy": "ddp"}
    fit(RankLogFiles(folder / "logs", upload_to=folder / "copies"), **settings)
    fit(RankLogFiles(folder / "one", ranks=[1]), **settings)


def test_copies_at_a_url(tmp_path):
    memory = fsspec.filesystem("memory")
    fit(RankLogFiles(tmp_path, upload_to="memory://copies/run"))
    assert memory.cat_file("/copies/run/log.rank0") == (tmp_path / "log.rank0").read_bytes()
    memory.rm("/copies", recursive=True)


def test_a_copy_that_fails_is_one_warning(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(LightlibWarning, match=r"log\.rank0 could not be copied to .*file/log\.rank0: ") as caught:
        fit(RankLogFiles(tmp_path, upload_to=tmp_path / "file"))
    assert len(caught) == 1
    assert "rank 0, epoch 1" in (tmp_path / "log.rank0").read_text()


def test_the_folder_is_that_of_the_run(tmp_path):
    logger = CSVLogger(tmp_path / "logs")
    fit(RankLogFiles(), logger=logger)
    assert lines_of(tmp_path / "logs" / "lightning_logs" / "version_0" / "log.rank0")
    fit(RankLogFiles(), default_root_dir=tmp_path)
    assert lines_of(tmp_path / "log.rank0")


def test_messages_of_lightlib_and_warnings_and_levels(tmp_path, caplog):
    caplog.set_level("INFO", "lightlib")

    class Reports(Callback):
        def on_train_start(self, trainer, pl_module):
            report.info("for all to see")
            warnings.warn("careful", UserWarning, stacklevel=1)
            logging.getLogger("mine").info("below the level of the root")

    with pytest.warns(UserWarning, match="careful"):
        Trainer(**QUIET, max_epochs=1, callbacks=[RankLogFiles(tmp_path), Reports()]).fit(Net(), loader(8))
    text = (tmp_path / "log.rank0").read_text()
    assert "INFO lightlib: for all to see" in text
    assert "below the level" not in text
    quiet = tmp_path / "quiet"
    fit(RankLogFiles(quiet, level="ERROR"))
    assert (quiet / "log.rank0").read_text() == ""


def test_warnings_are_still_shown(tmp_path):
    class Warns(Callback):
        def on_train_start(self, trainer, pl_module):
            warnings.warn("careful", UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shown = warnings.showwarning
        Trainer(**QUIET, max_epochs=1, callbacks=[RankLogFiles(tmp_path), Warns()]).fit(Net(), loader(8))
        assert warnings.showwarning is shown
    assert [str(warning.message) for warning in caught] == ["careful"]
    assert "WARNING py.warnings: " in (tmp_path / "log.rank0").read_text()
    assert "UserWarning: careful" in (tmp_path / "log.rank0").read_text()


def test_the_run_is_named_now_and_then(tmp_path):
    fit(RankLogFiles(tmp_path, name_every_n_lines=2), max_epochs=5)
    texts = [line[3] for line in lines_of(tmp_path / "log.rank0")]
    places = [index for index, text in enumerate(texts) if text == f"the run of {tmp_path}"]
    assert places == list(range(0, len(texts), 3))


def test_a_second_call_continues_the_file_and_no_handler_stays(tmp_path):
    before = list(logging.getLogger().handlers)
    files = RankLogFiles(tmp_path)
    fit(files, max_epochs=1)
    first = (tmp_path / "log.rank0").read_text()
    fit(files, max_epochs=1)
    assert (tmp_path / "log.rank0").read_text().startswith(first)
    assert list(logging.getLogger().handlers) == before


def test_it_ends_with_a_run_that_fails(tmp_path):
    class Fails(Callback):
        def on_train_start(self, trainer, pl_module):
            raise RuntimeError("broken")

    before = list(logging.getLogger().handlers)
    with pytest.raises(RuntimeError, match="broken"):
        Trainer(**QUIET, max_epochs=1, callbacks=[RankLogFiles(tmp_path), Fails()]).fit(Net(), loader(8))
    assert list(logging.getLogger().handlers) == before


def test_bad_input():
    with pytest.raises(MisconfigurationException, match=r"level='LOUD'(.|\n)*DEBUG, INFO"):
        RankLogFiles(level="LOUD")
    with pytest.raises(ArgumentTypeError, match=r"folder=3"):
        RankLogFiles(3)
    with pytest.raises(
        MisconfigurationException, match=r"folder='s3://logs'(.|\n)*RankLogFiles\(upload_to='s3://logs'\)"
    ):
        RankLogFiles("s3://logs")
    with pytest.raises(ArgumentTypeError, match=r"ranks='0'"):
        RankLogFiles(ranks="0")
    with pytest.raises(MisconfigurationException, match=r"name_every_n_lines=0"):
        RankLogFiles(name_every_n_lines=0)
