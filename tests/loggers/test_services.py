"""Service loggers with the real packages in their local modes; values are read back from their files.

Skipped where a package is not installed: `make test` installs none of them.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import os
from pathlib import Path

import pytest
import torch

from lightlib.core.trainer import Trainer
from lightlib.loggers import AimLogger, ClearMLLogger, DVCLiveLogger, MLFlowLogger, TrackioLogger, WandbLogger
from lightlib.loggers.media import Audio, Figure, Histogram, Image, Table, Text
from tests.processes.ranks import ranks
from tests.runs.plain import QUIET, Net, loader
from tests.runs.saves_at import SavesAt

pytestmark = pytest.mark.processes  # clients leave threads and variables behind


class Logs(Net):
    def __init__(self, media=()):
        super().__init__()
        self.media = media
        self.save_hyperparameters({"lr": 0.1, "nested": {"api_key": "secret-4711"}})

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("train/loss", loss)
        return loss

    def on_train_epoch_end(self):
        for number, item in enumerate(self.media):
            self.trainer.log_media(f"more{number}", item)
        self.trainer.log_media("examples/first", Image(torch.full((3, 2, 2), 0.5)))
        self.trainer.log_media("scores", Table(["class", "recall"], [["cat", 0.5]]))
        self.trainer.log_media("note", Text("done"))
        self.trainer.log_media("weights", Histogram(self.net[0].weight))


def fit(logger, *callbacks, steps=5, media=(), **arguments):
    settings = {**QUIET, "logger": logger, "log_every_n_steps": 1, "max_epochs": 1, "limit_train_batches": steps}
    Trainer(**settings, callbacks=list(callbacks)).fit(Logs(media), loader(20), **arguments)
    if hasattr(logger, "wait"):
        assert logger.wait()


def losses():
    """The losses of a plain loop."""
    model = Logs()
    optimizer, found = model.configure_optimizers(), []
    for x, y in loader(20):
        loss = torch.nn.functional.cross_entropy(model.net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def secretless(folder):
    for path in Path(folder).rglob("*"):
        assert not path.is_file() or b"secret-4711" not in path.read_bytes(), path


def run(name, function, folder):
    """Call a function in a process of its own, if its package is installed."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"the package {name} is not installed")
    ranks(1, function, folder)


def test_dvclive(tmp_path):
    run("dvclive", _dvclive, tmp_path)


def _live(folder):
    return DVCLiveLogger(dir=folder / "live", save_dvc_exp=False, dvcyaml=None)


def _rows(folder):
    with Path(folder, "live", "plots", "metrics", "train", "loss.tsv").open() as file:
        return [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(file, delimiter="\t")]


def _dvclive(rank, folder):
    fit(_live(folder))
    assert _rows(folder) == list(enumerate(losses(), 1))
    assert "lr: 0.1" in (folder / "live" / "params.yaml").read_text()
    assert (folder / "live" / "plots" / "images" / "examples" / "first" / "00000005.png").exists()
    secretless(folder)


def test_with_dvclive_a_resumed_run_has_each_value_once(tmp_path):
    run("dvclive", _dvclive_resumed, tmp_path)


def _dvclive_resumed(rank, folder):
    fit(_live(folder), SavesAt(folder / "saved.ckpt", 3))
    fit(_live(folder), ckpt_path=folder / "saved.ckpt")
    assert _rows(folder) == list(enumerate(losses(), 1))


def test_dvclive_records_nan(tmp_path):
    run("dvclive", _dvclive_nan, tmp_path)


def _dvclive_nan(rank, folder):
    logger = _live(folder)
    logger.prepare()
    logger.log_metrics({"x": math.nan}, 0)
    logger.finalize("success")
    assert logger.wait()
    assert "nan" in Path(folder, "live", "plots", "metrics", "x.tsv").read_text()


def test_aim(tmp_path):
    run("aim", _aim, tmp_path)


def test_aim_continues_the_run(tmp_path):
    run("aim", _aim_resumed, tmp_path)


def _aim(rank, folder):
    logger = AimLogger(folder, "digits", "first")
    assert logger.experiment.hash, "opened before the run"
    fit(logger, media=[Figure(_Drawn()), Audio([0.5], 8000)])
    (found,) = ranks(1, _read_aim, folder)
    assert found["losses"] == list(enumerate(losses(), 1))
    assert (found["name"], found["experiment"], found["hash"]) == ("first", "digits", logger.version)
    assert (found["hparams"]["lr"], found["hparams"]["nested/api_key"]) == (0.1, "***")
    assert found["media"] == {
        "examples/first": "images", "note": "texts", "weights": "distributions", "more0": "images", "more1": "audios",
    }  # fmt: skip
    assert found["pixel"] == (128, 128, 128)
    secretless(folder)


def _aim_resumed(rank, folder):
    first, again = AimLogger(folder), AimLogger(folder)
    assert first.experiment.hash, "opened before the run"
    fit(first, SavesAt(folder / "saved.ckpt", 3))
    fit(again, ckpt_path=folder / "saved.ckpt")
    assert again.version == first.version
    (found,) = ranks(1, _read_aim, folder)
    assert found["losses"] == list(enumerate(losses(), 1)), "values after the checkpoint are replaced"


class _Drawn:
    """A stand-in for a figure of matplotlib."""

    def savefig(self, file, **options):
        file.write(Image(torch.ones(3, 2, 2)).encoded())


def _read_aim(rank, folder):
    """Read the only run with Aim, in a process of its own: the writer's caches are not those of a reader."""
    aim = importlib.import_module("aim")
    repo = aim.Repo(str(folder))
    (name,) = repo.list_all_runs()
    importlib.import_module("aim.sdk.index_manager").RepoIndexManager(repo).index(name)  # as `aim up` does
    found = aim.Run(name, repo=repo, read_only=True)
    (values,) = [metric.data.items_list() for metric in found.metrics() if metric.name == "train/loss"]
    infos = found.collect_sequence_info(("images", "texts", "distributions", "audios"))
    context = importlib.import_module("aim.storage.context").Context({})
    (image,) = found.get_image_sequence("examples/first", context).data.values_list()[0]
    return {
        "hash": found.hash,
        "name": found.name,
        "experiment": found.experiment,
        "hparams": dict(found["hparams"]),
        "losses": list(zip(values[0], values[1][0], strict=True)),
        "media": {one["name"]: kind for kind, some in infos.items() for one in some},
        "pixel": image.to_pil_image().convert("RGB").getpixel((0, 0)),
    }


def test_trackio(tmp_path):
    run("trackio", _trackio, tmp_path)


def _trackio(rank, folder):
    os.environ["TRACKIO_DIR"] = str(folder)
    storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    fit(TrackioLogger("digits", "first", auto_log_cpu=False))
    rows = storage.get_logs("digits", "first")
    assert [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row] == list(enumerate(losses(), 1))
    config = storage.get_run_config("digits", "first")
    assert (config["lr"], config["nested/api_key"]) == (0.1, "***")
    assert any("note" in row for row in rows)
    assert list(folder.rglob("*.png"))
    secretless(folder)


def test_trackio_continues_the_run(tmp_path):
    run("trackio", _trackio_resumed, tmp_path)


def _trackio_resumed(rank, folder):
    os.environ["TRACKIO_DIR"] = str(folder)
    storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    first, again = (TrackioLogger("digits", auto_log_cpu=False) for _ in range(2))
    fit(first, SavesAt(folder / "saved.ckpt", 3))
    fit(again, ckpt_path=folder / "saved.ckpt")
    assert again.version == first.version
    steps = [row["step"] for row in storage.get_logs("digits", first.version) if "train/loss" in row]
    assert sorted(steps) == [1, 2, 3, 4, 4, 5, 5], "values after the checkpoint appear twice"


def test_clearml_offline(tmp_path):
    run("clearml", _clearml, tmp_path)


def _clearml(rank, folder):
    os.environ.update(CLEARML_CACHE_DIR=str(folder), CLEARML_OFFLINE_MODE="1")
    # Its thread that looks for a repository sometimes hangs in a fork (clearml 2.1.12).
    off = dict.fromkeys(("detect_repository", "matplotlib", "pytorch", "tensorboard"), False)
    logger = ClearMLLogger("digits", "first", offline=True, auto_connect_frameworks=off)
    task = logger.experiment
    session = Path(task.get_offline_mode_folder())
    fit(logger)
    events = [json.loads(line) for line in (session / "metrics.jsonl").read_text().splitlines()]
    values = [one for event in events for one in (event if isinstance(event, list) else [event])]
    scalars = [
        (one["iter"], one["value"]) for one in values if (one.get("metric"), one.get("variant")) == ("train", "loss")
    ]
    assert scalars == list(enumerate(losses(), 1))
    assert "nested/api_key" in (session / "task.json").read_text()
    secretless(session)


def test_mlflow_works_out_of_the_box_with_sqlite(tmp_path):
    run("mlflow", _mlflow, tmp_path)


def _mlflow(rank, folder):
    os.chdir(folder)
    logger = MLFlowLogger("digits")
    fit(logger)
    client = importlib.import_module("mlflow").MlflowClient(f"sqlite:///{folder}/mlruns/mlflow.db")
    history = client.get_metric_history(logger.run_id, "train/loss")
    assert [(metric.step, metric.value) for metric in history] == list(enumerate(losses(), 1))
    found = client.get_run(logger.run_id)
    assert (found.data.params["lr"], found.data.params["nested/api_key"]) == ("0.1", "***")
    assert found.info.status == "FINISHED"
    (image,) = client.list_artifacts(logger.run_id, "media/examples/first")
    assert image.path.endswith("00000005.png")
    secretless(folder)


def test_wandb_offline(tmp_path):
    run("wandb", _wandb, tmp_path)


def _wandb(rank, folder):
    os.environ["WANDB_SILENT"] = "true"
    fit(WandbLogger(save_dir=folder, project="digits", offline=True))
    importlib.import_module("wandb").teardown()  # waits for its process, which writes the file after `finish`
    (file,) = folder.rglob("*.wandb")
    assert b"train/loss" in file.read_bytes()
    assert list(folder.rglob("*.png"))
    secretless(folder)
