"""WandbLogger, against a stand-in for the client."""

from __future__ import annotations

import os
import pickle
import sys
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

from lightlib.errors import MisconfigurationException
from lightlib.loggers import DummyExperiment, WandbLogger, media
from lightlib.report import LightlibWarning, rank_zero_only
from tests.runs.plain import Net, batches, quiet_trainer


class Media:
    def __init__(self, data=None, **arguments):
        self.data, self.arguments = data, arguments


class Artifact:
    def __init__(self, name, type, metadata):  # noqa: A002 - the client's name
        self.name, self.type, self.metadata, self.files = name, type, metadata, []

    def add_file(self, path, name, policy):
        self.files.append(("file", path, name, policy))

    def add_dir(self, path, name, policy):
        self.files.append(("dir", path, name, policy))


@pytest.fixture
def wandb(monkeypatch):
    module = ModuleType("wandb")
    module.run = None
    module.Image, module.Audio, module.Video, module.Table = (type(n, (Media,), {}) for n in ("I", "A", "V", "T"))
    module.Artifact = Artifact
    module.Api = MagicMock()
    module.init = MagicMock(side_effect=lambda **arguments: MagicMock(id=arguments["id"] or "new"))
    monkeypatch.setitem(sys.modules, "wandb", module)
    for name in ("WANDB_PROJECT", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    return module


def test_how_a_run_is_started(wandb, tmp_path):
    logger = WandbLogger(name="n", save_dir=tmp_path / "a", project="p", version="v", group="g", tags=["t"])
    assert (logger.version, logger.name, logger.save_dir) == ("v", "p", str(tmp_path / "a"))
    wandb.init.assert_not_called()
    logger.prepare()
    wandb.init.assert_called_once_with(
        name="n", project="p", dir=str(tmp_path / "a"), id="v", resume="allow", group="g", tags=["t"]
    )
    assert (tmp_path / "a").is_dir()
    calls = logger.experiment.define_metric.call_args_list
    assert [call.args for call in calls] == [("trainer/global_step",), ("*",)]
    assert calls[1].kwargs == {"step_metric": "trainer/global_step", "step_sync": True}


def test_with_tensorboard_the_x_axis_is_that_of_its_events(wandb, tmp_path):
    logger = WandbLogger(save_dir=tmp_path, sync_tensorboard=True)
    logger.log_metrics({"x": 1.0}, 3)
    (call,) = logger.experiment.define_metric.call_args_list
    assert (call.args, call.kwargs) == (("*",), {"step_metric": "global_step"})
    logger.experiment.log.assert_called_once_with({"x": 1.0})


def test_a_run_of_the_environment_has_its_folder_before_it_starts(wandb, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "job-7")
    logger = WandbLogger(save_dir=tmp_path, project="p")
    assert (logger.run_dir("root"), logger.earlier_run_dirs("root")) == (str(tmp_path / "p" / "job-7"), [])


def test_each_run_has_a_folder_which_is_found_again(wandb, tmp_path):
    logger = WandbLogger(save_dir=tmp_path, project="p")
    assert logger.run_dir("root") is None  # there is no id yet
    assert logger.earlier_run_dirs("root") == []
    for run in ("old", "older", "new"):
        (tmp_path / "p" / run / ("other" if run == "older" else "checkpoints")).mkdir(parents=True)
    os.utime(tmp_path / "p" / "old" / "checkpoints", (1, 1))
    assert logger.earlier_run_dirs("root") == [str(tmp_path / "p" / run) for run in ("new", "old")]
    logger.prepare()
    assert logger.run_dir("root") == str(tmp_path / "p" / "new")
    asked = WandbLogger(save_dir=tmp_path, project="p", id="mine")
    assert (asked.run_dir("root"), asked.earlier_run_dirs("root")) == (str(tmp_path / "p" / "mine"), [])


def test_what_it_is_can_be_read(wandb, tmp_path):
    assert repr(WandbLogger("n", id="v", project="p")) == "WandbLogger(name='n', id='v', project='p')"
    wandb.init.assert_not_called()


def test_other_arguments(wandb, tmp_path, monkeypatch):
    WandbLogger(dir=tmp_path, id="i", offline=True, anonymous=True).prepare()
    arguments = wandb.init.call_args.kwargs
    assert (arguments["id"], arguments["mode"], arguments["anonymous"]) == ("i", "offline", "allow")
    assert (arguments["project"], arguments["dir"]) == ("lightning_logs", str(tmp_path))
    monkeypatch.setenv("WANDB_PROJECT", "from environment")
    assert WandbLogger().name == "from environment"
    with pytest.raises(MisconfigurationException, match="an offline run cannot upload checkpoints"):
        WandbLogger(offline=True, log_model=True)


def test_metrics_and_hyperparameters(wandb):
    logger = WandbLogger(prefix="p")
    logger.log_metrics({"x/{y}": 0.5}, 3)
    logger.log_metrics({"x": 1.0})
    assert [call.args[0] for call in logger.experiment.log.call_args_list] == [
        {"p-x/{y}": 0.5, "trainer/global_step": 3},
        {"p-x": 1.0},
    ]
    logger.log_hyperparams({"a": {"b": 1, "secret": "s"}})
    logger.experiment.config.update.assert_called_once_with({"a": {"b": 1, "secret": "***"}}, allow_val_change=True)
    logger = WandbLogger(sync_tensorboard=True)
    logger.log_metrics({"x": 1.0}, 3)
    logger.experiment.log.assert_called_once_with({"x": 1.0})


def test_media(wandb):
    logger = WandbLogger()
    logger.log_image("i", ["a", "b"], step=2, caption=["one", "two"])
    logger.log_audio("a", ["x"], sample_rate=[16000])
    logger.log_video("v", ["y"])
    logger.log_text("t", columns=["c"], data=[["d"]])
    image, audio, video, text = [call.args[0] for call in logger.experiment.log.call_args_list]
    assert image["trainer/global_step"] == 2
    assert [(i.data, i.arguments) for i in image["i"]] == [("a", {"caption": "one"}), ("b", {"caption": "two"})]
    assert audio["a"][0].arguments == {"sample_rate": 16000}
    assert isinstance(video["v"][0], wandb.Video)
    assert text["t"].arguments["columns"] == ["c"]
    with pytest.raises(MisconfigurationException, match=r"log_image\('i'\) got 1 items but 2 values of 'caption'"):
        logger.log_image("i", ["a"], caption=["one", "two"])
    with pytest.raises(MisconfigurationException, match=r"log_video\('i'\) got a str.\n  Expected: a list"):
        logger.log_video("i", "a")


def test_watch_and_artifacts(wandb):
    logger, model = WandbLogger(), object()
    logger.watch(model)
    logger.experiment.watch.assert_called_once_with(model, log="gradients", log_freq=100, log_graph=True)
    logger.unwatch(model)
    logger.experiment.unwatch.assert_called_once_with(model)
    logger.use_artifact("a:v0", "model")
    logger.experiment.use_artifact.assert_called_once_with("a:v0", type="model")
    wandb.Api.return_value.artifact.return_value.download.return_value = "here"
    assert WandbLogger.download_artifact("a:v0", "there") == "here"
    wandb.run = logger.experiment
    logger.experiment.use_artifact.return_value.download.return_value = "used"
    assert WandbLogger.download_artifact("a:v0") == "used"


def test_a_run_in_progress_is_continued(wandb):
    wandb.run = MagicMock(id="old")
    logger = WandbLogger()
    with pytest.warns(LightlibWarning, match=r"A wandb run is in progress already \(old\)"):
        logger.prepare()
    assert logger.version == "old"
    given = MagicMock(id="given")
    assert WandbLogger(experiment=given).version == "given"


def uploads(logger):
    return [(call.args[0], call.kwargs["aliases"]) for call in logger.experiment.log_artifact.call_args_list]


def test_checkpoints_at_the_end(wandb, checkpoints):
    logger = WandbLogger(log_model=True, id="run")
    logger.after_save_checkpoint(checkpoints)
    assert uploads(logger) == []
    logger.finalize("failed")
    assert uploads(logger) == []
    logger.finalize("success")
    logger.finalize("success")
    ((artifact, aliases),) = uploads(logger)
    assert (artifact.name, artifact.type, aliases) == ("model-run", "model", ["latest", "best"])
    assert artifact.files == [("file", checkpoints.best_model_path, "model.ckpt", "mutable")]
    assert artifact.metadata["score"] == 0.5
    assert artifact.metadata["ModelCheckpoint"]["monitor"] == "val_loss"


def test_checkpoints_at_once(wandb, checkpoints, tmp_path):
    logger = WandbLogger(log_model="all", checkpoint_name="mine", add_file_policy="immutable")
    (tmp_path / "sharded").mkdir()
    checkpoints.last_model_path = str(tmp_path / "sharded")
    logger.after_save_checkpoint(checkpoints)
    assert {artifact.name for artifact, _ in uploads(logger)} == {"mine"}
    kinds = [file for artifact, _ in uploads(logger) for file in artifact.files]
    assert ("dir", str(tmp_path / "sharded"), "model.ckpt", "immutable") in kinds
    assert len(kinds) == 2


def test_other_ranks(wandb, monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = WandbLogger()
    logger.prepare()
    logger.log_metrics({"x": 1.0}, 0)
    logger.log_image("x", ["a"])
    assert isinstance(logger.experiment, DummyExperiment)
    wandb.init.assert_not_called()
    logger.share(lambda value: "id of rank zero")
    assert logger.version == "id of rank zero"


def test_pickled_it_continues_the_run(wandb):
    logger = WandbLogger(experiment=SimpleNamespace(id="x"))
    copy = pickle.loads(pickle.dumps(logger))
    copy.prepare()
    assert wandb.init.call_args.kwargs["id"] == "x"


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MisconfigurationException, match=r"needs the package wandb,.*\n.*\n  Fix: pip install 'wandb>="):
        WandbLogger().prepare()


def test_checkpoints_go_to_the_folder_of_the_run_and_auto_finds_them_there(wandb, tmp_path):
    def fit(ckpt_path, epochs):
        logger = WandbLogger(save_dir=tmp_path, project="p")
        trainer = quiet_trainer(logger=logger, enable_checkpointing=True, max_epochs=epochs)
        trainer.fit(Net(), batches(2), ckpt_path=ckpt_path)
        return trainer

    first = fit(None, 1)
    assert first.checkpoint_callback.dirpath == str(tmp_path / "p" / "new" / "checkpoints")
    wandb.init.side_effect = lambda **arguments: MagicMock(id=arguments["id"] or "another")
    assert fit("auto", 2).checkpoint_callback.dirpath == first.checkpoint_callback.dirpath
    assert os.listdir(first.checkpoint_callback.dirpath) == ["epoch=1-step=4.ckpt"]
    assert fit(None, 1).checkpoint_callback.dirpath == str(tmp_path / "p" / "another" / "checkpoints")


def test_items_become_the_objects_of_the_client(wandb):
    wandb.Histogram = type("Histogram", (Media,), {})
    logger, pixels = WandbLogger(), torch.arange(12, dtype=torch.uint8).reshape(3, 2, 2)
    items = [media.Image(pixels, "a"), media.Image(pixels[:1]), media.Histogram([0.0, 1.0], bins=2), media.Text("t")]
    items += [media.Table(["c"], [[1]]), media.Audio([0.5], 8000), media.Figure(SimpleNamespace(savefig=print))]
    for item in items:
        logger.log_media("x", item, 4)
    logged = [call.args[0] for call in logger.experiment.log.call_args_list]
    assert {values["trainer/global_step"] for values in logged} == {4}
    image, grey, histogram, text, table, audio, figure = [values["x"] for values in logged]
    assert (image.data.tolist(), image.arguments) == (pixels.permute(1, 2, 0).tolist(), {"caption": "a"})
    assert (grey.data.tolist(), grey.arguments) == ([[0, 1], [2, 3]], {"caption": None})
    assert histogram.arguments == {"np_histogram": ([1, 1], [0.0, 0.5, 1.0])}
    assert (text.data, text.arguments) == ([["t"]], {"columns": ["text"]})
    assert (table.data, table.arguments) == ([[1]], {"columns": ["c"]})
    assert (audio.data.tolist(), audio.arguments) == ([[0.5]], {"sample_rate": 8000})
    assert figure.data is items[-1].figure
