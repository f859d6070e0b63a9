"""load_from_checkpoint of modules and data modules: hyperparameters, overrides, paths, mismatches."""

from __future__ import annotations

import io
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import fsspec
import pytest
import torch
from torch import nn

from lightlib.core.module import loading
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.errors import CheckpointError
from lightlib.report import PossibleUserWarning
from tests.runs.plain import Net, batches, network, quiet_trainer, same_weights


class Sized(Net):
    """Its width is a hyperparameter without a default; `note` is one that changes nothing."""

    def __init__(self, width, note="a"):
        super().__init__()
        self.save_hyperparameters()
        self.extra = nn.Linear(width, 1)


class Anything(Net):
    def __init__(self, **kwargs):
        super().__init__()
        self.save_hyperparameters()


class Numbers(DataModule):
    def __init__(self, size=4, note="a"):
        super().__init__()
        self.save_hyperparameters()
        self.position = 0

    def train_dataloader(self):
        return batches(2, self.hparams.size)

    def state_dict(self):
        return {"position": 7}

    def load_state_dict(self, state_dict):
        self.position = state_dict["position"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.ckpt"


def save(module, path, **arguments):
    trainer = quiet_trainer(**arguments)
    trainer.fit(module, datamodule=Numbers(size=2))
    trainer.save_checkpoint(path)
    return module


class TestHyperparameters:
    def test_build_the_module(self, path):
        module = save(Sized(3, note="b"), path)
        loaded = Sized.load_from_checkpoint(path)
        assert type(loaded) is Sized
        assert loaded.hparams == {"width": 3, "note": "b"}
        assert same_weights(loaded, module)
        assert loaded.training

    def test_arguments_take_the_place_of_saved_ones(self, path):
        save(Sized(3), path)
        assert Sized.load_from_checkpoint(path, note="c").hparams == {"width": 3, "note": "c"}

    def test_saved_ones_that_the_class_no_longer_has_are_left_out(self, path):
        save(Sized(3), path)
        content = torch.load(path, weights_only=True)
        content["hyper_parameters"]["gone"] = 1
        torch.save(content, path)
        assert Sized.load_from_checkpoint(path).hparams == {"width": 3, "note": "a"}

    @pytest.mark.parametrize("key", ["hparams", "module_arguments"])
    def test_under_the_keys_of_very_old_files(self, path, key):
        save(Sized(3, note="b"), path)
        content = torch.load(path, weights_only=True)
        content[key] = content.pop("hyper_parameters")
        torch.save(content, path)
        assert Sized.load_from_checkpoint(path).hparams == {"width": 3, "note": "b"}

    def test_the_key_of_today_comes_first(self, path):
        save(Sized(3, note="b"), path)
        content = torch.load(path, weights_only=True)
        content["hparams"] = {"note": "not of Lightning"}
        torch.save(content, path)
        assert Sized.load_from_checkpoint(path).hparams == {"width": 3, "note": "b"}

    def test_a_class_that_takes_anything_gets_everything(self, path):
        save(Anything(a=1, b=2), path)
        assert Anything.load_from_checkpoint(path, b=3, c=4).hparams == {"a": 1, "b": 3, "c": 4}

    def test_none_were_saved(self, path):
        save(Net(), path)
        assert isinstance(Net.load_from_checkpoint(path), Net)


@dataclass
class Config:
    width: int = 3
    note: str = "a"


class ByAttribute(Net):
    """Takes one object with attributes."""

    def __init__(self, config):
        super().__init__()
        self.save_hyperparameters(config)
        self.extra = nn.Linear(config.width, 1)


class ByKey(Net):
    """Takes one mapping."""

    def __init__(self, config):
        super().__init__()
        self.save_hyperparameters(config)
        self.extra = nn.Linear(config["width"], 1)


class ByPath(Net):
    """Takes a configuration of several levels among its arguments."""

    def __init__(self, config, note="a"):
        super().__init__()
        self.save_hyperparameters()
        self.extra = nn.Linear(config.layers[0].width, config.out)


def of_omegaconf():
    omegaconf = pytest.importorskip("omegaconf")
    return omegaconf.OmegaConf.create({"width": 2, "out": 1, "layers": [{"width": "${width}"}, {"width": 5}]})


OBJECTS = pytest.mark.parametrize(
    ("kind", "config"),
    [(ByKey, {"width": 3, "note": "a"}), (ByAttribute, Config()), (ByAttribute, Namespace(width=3, note="a"))],
    ids=["dict", "dataclass", "namespace"],
)


class TestObject:
    @OBJECTS
    def test_one_object_holds_all(self, path, kind, config):
        module = save(kind(config), path)
        loaded = kind.load_from_checkpoint(path)
        assert loaded.hparams == {"width": 3, "note": "a"}
        assert same_weights(loaded, module)

    @pytest.mark.parametrize("omega", [True, False])
    def test_one_among_others_is_read_by_attributes_again(self, path, omega):
        layers = [Namespace(width=2), Namespace(width=5)]
        config = of_omegaconf() if omega else Namespace(width=2, out=1, layers=layers)
        module = save(ByPath(config), path)
        saved = torch.load(path, weights_only=True)["hyper_parameters"]
        assert saved == {"config": {"width": 2, "out": 1, "layers": [{"width": 2}, {"width": 5}]}, "note": "a"}
        loaded = ByPath.load_from_checkpoint(path)
        assert loaded.hparams.config.layers[1].width == 5
        assert same_weights(loaded, module)

    @OBJECTS
    def test_one_of_its_entries_can_be_replaced(self, path, kind, config):
        save(kind(config), path)
        assert kind.load_from_checkpoint(path, note="b").hparams == {"width": 3, "note": "b"}

    @OBJECTS
    def test_the_whole_object_can_be_given(self, path, kind, config):
        save(kind({"width": 3} if kind is ByKey else Config(note="b")), path)
        assert kind.load_from_checkpoint(path, config=config).hparams == {"width": 3, "note": "a"}


class TestFile:
    def test_a_yaml_file_in_place_of_the_saved_ones(self, path, tmp_path):
        save(Sized(3), path)
        (tmp_path / "hparams.yaml").write_text("width: 3\nnote: from the file\n")
        for file in (tmp_path / "hparams.yaml", str(tmp_path / "hparams.yaml")):
            assert Sized.load_from_checkpoint(path, hparams_file=file).hparams.note == "from the file"

    def test_arguments_come_before_the_file(self, path, tmp_path):
        save(Sized(3), path)
        (tmp_path / "hparams.yaml").write_text("width: 3\nnote: from the file\n")
        assert Sized.load_from_checkpoint(path, hparams_file=tmp_path / "hparams.yaml", note="x").hparams.note == "x"

    @pytest.mark.parametrize("text", ["key,value\nwidth,3\n", "- 1\n- 2\n"])
    def test_something_else_than_a_mapping(self, path, tmp_path, text):
        save(Sized(3), path)
        (tmp_path / "hparams.csv").write_text(text)
        with pytest.raises(CheckpointError, match=r"hparams.csv"):
            Sized.load_from_checkpoint(path, hparams_file=tmp_path / "hparams.csv")

    def test_one_that_is_not_there(self, path):
        save(Sized(3), path)
        with pytest.raises(CheckpointError, match=r"nothing.yaml"):
            Sized.load_from_checkpoint(path, hparams_file="nothing.yaml")


class TestPlaces:
    def test_string_path_and_open_file(self, path):
        module = save(Sized(3), path)
        with open(path, "rb") as file:
            for place in (str(path), Path(path), file, io.BytesIO(path.read_bytes())):
                assert same_weights(Sized.load_from_checkpoint(place), module)

    def test_remote(self):
        try:
            module = save(Sized(3), "memory://folder/a.ckpt")
            assert same_weights(Sized.load_from_checkpoint("memory://folder/a.ckpt"), module)
            resumed = Sized(3)
            trainer = quiet_trainer(max_epochs=2)
            trainer.fit(resumed, datamodule=Numbers(size=2), ckpt_path="memory://folder/a.ckpt")
            assert trainer.global_step == 4
        finally:
            fsspec.filesystem("memory").store.clear()

    def test_missing(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"no checkpoint '.*nothing\.ckpt'"):
            Sized.load_from_checkpoint(tmp_path / "nothing.ckpt")

    def test_map_location(self, path):
        save(Sized(3), path)
        seen = []
        places = [
            "cpu",
            torch.device("cpu"),
            {"cpu": "cpu"},
            lambda storage, location: seen.append(location) or storage,
        ]
        for place in places:
            assert Sized.load_from_checkpoint(path, map_location=place).device == torch.device("cpu")
        assert set(seen) == {"cpu"}

    @pytest.mark.parametrize(
        ("location", "count", "stays"),
        [("cpu", 0, True), ("cuda:0", 0, True), ("cuda:0", 1, False), ("cuda:3", 1, True), ("cuda:3", 4, False)],
    )
    def test_weights_of_a_device_that_is_absent_stay_on_the_cpu(self, monkeypatch, location, count, stays):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        storage = object()
        assert loading._present_device(storage, location) is (storage if stays else None)

    def test_weights_of_another_machines_gpu_stay_on_the_cpu(self, monkeypatch):
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
        storage = object()
        assert loading._present_device(storage, "mps") is storage


class TestStrict:
    def test_names_must_match(self, path):
        save(Net(), path)
        with pytest.raises(CheckpointError, match=r"does not fit Sized:\s+Missing key\(s\)[\s\S]*extra\.weight"):
            Sized.load_from_checkpoint(path, width=3)
        with pytest.warns(PossibleUserWarning, match=r"Sized keeps the initial values of 'extra\.weight'"):
            loaded = Sized.load_from_checkpoint(path, width=3, strict=False)
        assert loaded.extra.weight.shape == (1, 3)

    def test_a_file_without_weights_is_told(self, path):
        save(Net(), path)
        content = torch.load(path, weights_only=True)
        content["state_dict"] = {}
        torch.save(content, path)
        with pytest.warns(
            PossibleUserWarning, match=r"a\.ckpt' holds no weights: Net keeps those it was initialised with"
        ):
            Net.load_from_checkpoint(path, strict=False)

    def test_the_modules_own_wish(self, path):
        class Loose(Sized):
            strict_loading = False

        save(Net(), path)
        assert isinstance(Loose.load_from_checkpoint(path, width=3), Loose)
        with pytest.raises(CheckpointError, match="does not fit Loose"):
            Loose.load_from_checkpoint(path, width=3, strict=True)

    def test_strict_loading_is_also_obeyed_by_the_trainer(self, path):
        save(Net(), path)
        module = Sized(3)
        module.strict_loading = False
        quiet_trainer().predict(ForPrediction(3, loose=True), batches(1), ckpt_path=path)
        with pytest.raises(CheckpointError, match="does not fit ForPrediction"):
            quiet_trainer().predict(ForPrediction(3), batches(1), ckpt_path=path)

    def test_shapes(self, path):
        save(Sized(3), path)
        with pytest.raises(CheckpointError, match=r"size mismatch for extra.weight"):
            Sized.load_from_checkpoint(path, width=4)


class ForPrediction(Sized):
    def __init__(self, width, loose=False):
        super().__init__(width)
        self.strict_loading = not loose

    def predict_step(self, batch):
        return self.net(batch[0])


class TestHooks:
    def test_the_model_is_configured_before_its_weights_are_loaded(self, path):
        class Late(Net):
            def __init__(self):
                super().__init__()
                self.net = None

            def configure_model(self):
                if self.net is None:
                    self.net = network()

            def on_load_checkpoint(self, checkpoint):
                seen.append(self.net is not None and checkpoint["global_step"])

        seen = []
        module = save(Late(), path)
        assert same_weights(Late.load_from_checkpoint(path), module)
        assert seen == [2]

    def test_the_class_says_what_it_does(self):
        assert Sized.__dict__.get("load_from_checkpoint") is None
        assert "Build a new object from a checkpoint" in Module.__dict__["load_from_checkpoint"].__doc__


class TestDataModule:
    def test_hyperparameters_and_state(self, path):
        save(Sized(3), path)
        loaded = Numbers.load_from_checkpoint(path)
        assert type(loaded) is Numbers
        assert loaded.hparams == {"size": 2, "note": "a"}
        assert loaded.position == 7

    def test_arguments_take_the_place_of_saved_ones(self, path):
        save(Sized(3), path)
        assert Numbers.load_from_checkpoint(path, note="b").hparams == {"size": 2, "note": "b"}

    def test_a_file_without_its_state(self, path):
        trainer = quiet_trainer()
        trainer.fit(Sized(3), batches(1))
        trainer.save_checkpoint(path)
        loaded = Numbers.load_from_checkpoint(path)
        assert (loaded.hparams, loaded.position) == ({"size": 4, "note": "a"}, 0)
