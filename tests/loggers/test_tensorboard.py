"""TensorBoardLogger, read back with tensorboard's own reader."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.loggers import TensorBoardLogger
from lightlib.report import PossibleUserWarning


@pytest.fixture
def board(tmp_path):
    made = []

    def make(**arguments):
        made.append(TensorBoardLogger(arguments.pop("save_dir", tmp_path), **arguments))
        return made[-1]

    yield make
    for logger in made:
        logger.finalize("success")


def read(directory):
    events = EventAccumulator(str(directory))
    events.Reload()
    return events


def scalars(logger):
    logger.save()
    events = read(logger.log_dir)
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_scalars(board):
    logger = board()
    names = ["val/loss", "größe", "a{b}", "../x", "a b"]
    logger.log_metrics(dict.fromkeys(names, 0.5), 3)
    logger.log_metrics({"val/loss": torch.tensor(0.25), "n": 2}, 4)
    expected = {name: [(3, 0.5)] for name in names}
    assert scalars(logger) == expected | {"val/loss": [(3, 0.5), (4, 0.25)], "n": [(4, 2.0)]}


def test_the_same_as_add_scalar(board):
    logger = board()
    values = [0.1, 1e-30, 1e300, -1e300, float("inf"), 3]
    for step, value in enumerate(values):
        logger.log_metrics({"ours": value}, step)
        logger.experiment.add_scalar("torch", value, step)
    found = scalars(logger)
    assert found["ours"] == found["torch"]


def test_steps_and_prefix(board):
    logger = board(prefix="p")
    logger.log_metrics({"x": 1.0})
    logger.log_metrics({"x": 1.0}, 9)
    logger.log_metrics({"x": 1.0})
    assert scalars(logger) == {"p-x": [(0, 1.0), (9, 1.0), (10, 1.0)]}


def test_directories(board, tmp_path):
    logger = board(name="run", version=2, sub_dir="train/a", filename_suffix=".end")
    assert (logger.name, logger.version, logger.save_dir) == ("run", 2, str(tmp_path))
    assert (logger.root_dir, logger.sub_dir) == (str(tmp_path / "run"), "train/a")
    assert logger.log_dir == str(tmp_path / "run" / "version_2" / "train" / "a")
    logger.prepare()
    (file,) = Path(logger.log_dir).iterdir()
    assert file.name.endswith(".end")


def test_a_subclass_says_where_it_writes(tmp_path):
    class Mine(TensorBoardLogger):
        @property
        def name(self):
            return "mine"

        @property
        def version(self):
            return f"{super().version}-of-today"

    logger = Mine(tmp_path)
    logger.log_metrics({"x": 1.0})
    logger.log_hyperparams({"lr": 1.0})
    logger.save()
    assert logger.log_dir == str(tmp_path / "mine" / "0-of-today")
    assert scalars(logger)["x"] == [(0, 1.0)]
    assert Path(logger.log_dir, "hparams.yaml").read_text() == "lr: 1.0\n"
    state = logger.state_dict()
    assert state["version"] == "0-of-today"
    logger.load_state_dict(state)
    assert logger.log_dir == str(tmp_path / "mine" / "0-of-today")
    logger.finalize("success")


def test_a_subclass_may_choose_the_whole_directory(tmp_path):
    class Mine(TensorBoardLogger):
        @property
        def log_dir(self):
            return str(tmp_path / "here")

    logger = Mine(tmp_path)
    logger.log_metrics({"x": 1.0})
    logger.save()
    assert sorted(path.name.partition(".")[0] for path in (tmp_path / "here").iterdir()) == ["events", "hparams"]
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    logger.finalize("success")


def test_hparams_are_there_without_any(board):
    logger = board(version=0)
    logger.prepare()
    logger.save()
    assert Path(logger.log_dir, logger.NAME_HPARAMS_FILE).read_text() == "{}\n"
    assert repr(logger).startswith("TensorBoardLogger(save_dir=")


def test_several_curves_in_one_diagram(board):
    logger = board(version=0)
    logger.log_metrics({"a/loss": {"train": 1.0, "val": 2.0}, "x": 3.0}, 5)
    logger.save()
    assert [e.value for e in read(f"{logger.log_dir}/a_loss_val").Scalars("a/loss")] == [2.0]
    assert scalars(logger) == {"x": [(5, 3.0)]}


def test_no_name_leads_out_of_the_directory(board, tmp_path):
    logger = board(save_dir=tmp_path / "logs")
    logger.log_metrics({"../x": {"/../../../out": 1.0, "..\\out": 2.0}, "/../../../out": {"..": 1.0}}, 0)
    logger.save()
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    assert [path.name for path in (tmp_path / "logs" / "lightning_logs").iterdir()] == ["version_0"]
    assert all(Path(logger.log_dir) in path.parents for path in tmp_path.rglob("events*"))


def test_what_is_no_number(board):
    with pytest.raises(ArgumentTypeError, match="The metric 'x' is 'text'"):
        board().log_metrics({"x": "text"}, 0)
    with pytest.raises(ArgumentTypeError, match="The metric 'x/a' is None"):
        board().log_metrics({"x": {"a": None}}, 0)


def test_images_and_all_else_through_the_writer(board):
    logger = board()
    logger.experiment.add_image("input", torch.rand(3, 4, 5), 7)
    logger.save()
    (image,) = read(logger.log_dir).Images("input")
    assert (image.step, image.width, image.height) == (7, 5, 4)


def hparams(logger):
    logger.save()
    data = read(logger.log_dir).PluginTagToContent("hparams")
    values = HParamsPluginData.FromString(data["_hparams_/session_start_info"]).session_start_info.hparams
    metrics = HParamsPluginData.FromString(data["_hparams_/experiment"]).experiment.metric_infos
    plain = {name: getattr(value, value.WhichOneof("kind")) for name, value in values.items()}
    return plain, [metric.name.tag for metric in metrics]


def test_hyperparameters(board):
    logger = board()
    logger.log_hyperparams({"lr": 0.1, "model": {"width": 3, "act": torch.nn.ReLU, "token": "x"}, "flag": True})
    values, metrics = hparams(logger)
    assert values == {
        "lr": 0.1,
        "model/width": 3.0,
        "model/act": "torch.nn.modules.activation.ReLU",
        "model/token": "***",
        "flag": True,
    }
    assert metrics == ["hp_metric"]
    assert scalars(logger) == {"hp_metric": [(0, -1.0)]}
    written = yaml.safe_load(Path(logger.log_dir, "hparams.yaml").read_text())
    assert written["model"] == {"width": 3, "act": "torch.nn.modules.activation.ReLU", "token": "***"}


@pytest.mark.parametrize(("metrics", "names"), [({"acc": 0.5, "loss": 1}, ["acc", "loss"]), (0.5, ["hp_metric"])])
def test_hyperparameters_with_metrics(board, metrics, names):
    logger = board(default_hp_metric=False)
    logger.log_hyperparams({"lr": 0.1})
    assert scalars(logger) == {}
    logger.log_hyperparams({"lr": 0.1}, metrics, step=2)
    assert hparams(logger) == ({"lr": 0.1}, names)
    assert scalars(logger)[names[0]] == [(2, 0.5)]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
        self.example_input_array = None

    def forward(self, x, scale=1.0):
        random.random()
        return {"out": self.layer(x) * scale + torch.rand(4)}


INPUTS = [torch.rand(2, 4), (torch.rand(2, 4), torch.ones(1)), {"scale": torch.ones(1), "x": torch.rand(2, 4)}]


@pytest.mark.parametrize("inputs", INPUTS)
def test_graph(board, inputs, capsys):
    logger, net = board(log_graph=True), Net()
    net.example_input_array = inputs
    net.layer[1].eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.get_rng_state()
    logger.log_graph(net)
    assert torch.equal(torch.get_rng_state(), state)
    assert [part.training for part in net.layer] == [True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    logger.save()
    assert "layer" in str(read(logger.log_dir).Graph())
    assert capsys.readouterr().out == ""


def test_a_graph_that_cannot_be_traced_is_a_warning(board, capsys):
    class Broken(Net):
        def forward(self, x):
            return undefined  # noqa: F821

    logger = board(log_graph=True)
    match = r"The graph of Broken is not logged, because it cannot be traced: NameError: .*undefined.*\n  Fix: Tensor"
    with pytest.warns(PossibleUserWarning, match=match):
        logger.log_graph(Broken(), torch.rand(2, 4))
    with pytest.warns(PossibleUserWarning, match="cannot be traced"):
        logger.log_graph(Net(), torch.rand(2, 5))
    assert capsys.readouterr().out == ""
    logger.log_metrics({"x": 1.0}, 0)
    assert scalars(logger) == {"x": [(0, 1.0)]}


def test_a_graph_with_arguments_by_keyword_only(board):
    class Keywords(Net):
        def forward(self, *, x):
            return self.layer(x)

    with pytest.warns(PossibleUserWarning, match="the tracer cannot give x to forward by position"):
        board(log_graph=True).log_graph(Keywords(), {"x": torch.rand(2, 4)})


def test_a_graph_without_input_is_a_warning(board):
    with pytest.warns(PossibleUserWarning, match=r"The graph of Net is not logged.*self\.example_input_array"):
        board(log_graph=True).log_graph(Net())


def test_no_graph_unless_asked_for(board):
    logger = board()
    logger.log_graph(Net(), torch.rand(2, 4))
    logger.save()
    assert not read(logger.prepare() or logger.log_dir).Tags()["graph"]


def test_the_logger_is_used_again_after_a_run(board):
    logger = board()
    logger.log_metrics({"x": 1.0}, 0)
    writer = logger.experiment
    logger.finalize("success")
    assert logger.version == 0
    logger.log_metrics({"x": 2.0}, 1)
    assert logger.experiment is not writer
    assert scalars(logger) == {"x": [(0, 1.0), (1, 2.0)]}
    logger.experiment.close()
    logger.log_metrics({"x": 3.0}, 2)
    assert scalars(logger)["x"][-1] == (2, 3.0)


def test_after_a_failed_write_a_new_file_is_opened(board, monkeypatch):
    logger = board()
    logger.log_metrics({"x": 1.0}, 0)
    writer = logger.experiment
    writer.flush()  # the writer's thread writes at any time

    def full(*args):
        raise OSError("No space left on device")

    monkeypatch.setattr(writer.file_writer, "add_summary", full)
    with pytest.raises(OSError, match="No space left"):
        logger.log_metrics({"x": 2.0}, 1)
    logger.log_metrics({"x": 3.0}, 2)
    assert scalars(logger) == {"x": [(0, 1.0), (2, 3.0)]}
    writer.close()


def test_without_the_package(board, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(
        MisconfigurationException,
        match=r"needs the package tensorboard,.*\n.*\n  Fix: pip install 'tensorboard>=2.14', or use another",
    ):
        board().prepare()


def test_at_a_url(board, memory):
    logger = board(save_dir="memory://runs", name="a")
    logger.log_metrics({"x": 1.0}, 0)
    logger.log_hyperparams({"lr": 0.1})
    logger.finalize("success")
    assert logger.log_dir == "memory://runs/a/version_0"
    files = [path.rsplit("/", 1)[1] for path in memory.find("/runs/a/version_0")]
    assert "hparams.yaml" in files
    assert any(name.startswith("events.out.tfevents") for name in files)
