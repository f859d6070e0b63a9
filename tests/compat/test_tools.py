"""Lightning's small functions with files, other packages and several processes."""

from __future__ import annotations

import argparse
import subprocess
import sys
from fractions import Fraction
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

import lightlib
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.strategies import SingleDeviceStrategy
from lightlib_lightning.demos import BoringModel
from lightlib_lightning.tools import collectives, fabric_loggers, measures, mnist_demo, parsing, text_demos, values
from tests.processes.ranks import ranks
from tests.runs.quiet import QUIET


def test_hyperparameters_in_files(tmp_path):
    hparams = argparse.Namespace(lr=0.1, name="adam", layers=[1, 2])
    parsing.save_hparams_to_yaml(tmp_path / "h.yaml", hparams)
    assert parsing.load_hparams_from_yaml(tmp_path / "h.yaml", use_omegaconf=False) == vars(hparams)
    parsing.save_hparams_to_tags_csv(tmp_path / "h.csv", hparams)
    assert (tmp_path / "h.csv").read_text().splitlines()[:2] == ["key,value", "lr,0.1"]
    assert parsing.load_hparams_from_tags_csv(tmp_path / "h.csv") == vars(hparams)


def test_hyperparameters_that_cannot_be_written_or_are_missing(tmp_path):
    with pytest.warns(UserWarning, match="'net' is left out"):
        parsing.save_hparams_to_yaml(tmp_path / "h.yaml", {"net": nn.Linear(1, 1), "lr": 1})
    assert parsing.load_hparams_from_yaml(tmp_path / "h.yaml", use_omegaconf=False) == {"lr": 1}
    with pytest.warns(UserWarning, match="no hyperparameters at"):
        assert parsing.load_hparams_from_yaml(tmp_path / "none.yaml") == {}
    with pytest.warns(UserWarning, match="no hyperparameters at"):
        assert parsing.load_hparams_from_tags_csv(tmp_path / "none.csv") == {}
    with pytest.raises(RuntimeError, match="does not exist"):
        parsing.save_hparams_to_yaml(tmp_path / "none" / "h.yaml", {})
    with pytest.raises(TypeError, match="Expected: a dict"):
        parsing.save_hparams_to_yaml(tmp_path / "h.yaml", [1])


def test_hyperparameters_are_kept_as_by_the_method():
    class Net(lightlib.Module):
        def __init__(self, width=3, lr=0.1):
            super().__init__()
            parsing.save_hyperparameters(self, ignore="lr")

    assert dict(Net(width=5).hparams) == {"width": 5}
    net = lightlib.Module()
    parsing.save_hyperparameters(net, given_hparams={"a": 1})
    assert dict(net.hparams) == {"a": 1}


def test_a_checkpoint_is_read_without_running_its_code(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "plain.pt")
    assert parsing.pl_load(tmp_path / "plain.pt")["a"].tolist() == [1, 1]
    torch.save({"a": Fraction(1, 3)}, tmp_path / "object.pt")
    with pytest.raises(ValueError, match="Fraction"):
        parsing.pl_load(tmp_path / "object.pt")
    assert parsing.pl_load(tmp_path / "object.pt", weights_only=False)["a"] == Fraction(1, 3)


def test_an_old_checkpoint_gets_the_present_layout():
    old = {"pytorch-lightning_version": "1.5.10", "epoch": 1, "global_step": 2}
    old["native_amp_scaling_state"] = {"scale": 4.0}
    migrated, changes = parsing.migrate_checkpoint(old)
    assert migrated is old
    assert (old["MixedPrecision"], changes) == ({"scale": 4.0}, {})
    assert "native_amp_scaling_state" not in old
    with pytest.raises(MisconfigurationException, match=r"target_version='1\.9'"):
        parsing.migrate_checkpoint(old, "1.9")


def test_what_nvidia_smi_prints_becomes_numbers(monkeypatch):
    def run(command, **options):
        assert command[1].startswith("--query-gpu=utilization.gpu,memory.used")
        assert command[-1] == "--id=GPU-7"
        return SimpleNamespace(stdout="12, 100, 900, 5, [N/A], 40, 41\n")

    monkeypatch.setattr(measures.shutil, "which", lambda name: "/bin/nvidia-smi")
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="7"))
    found = measures.get_nvidia_gpu_stats(0)
    assert found["utilization.gpu (%)"] == 12
    assert (found["fan.speed (%)"], found["temperature.gpu (°C)"]) == (0, 40)
    monkeypatch.setattr(measures.shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="nvidia-smi"):
        measures.get_nvidia_gpu_stats(0)


def test_the_use_of_the_processor(monkeypatch):
    psutil = SimpleNamespace(
        virtual_memory=lambda: SimpleNamespace(percent=1.0),
        cpu_percent=lambda: 2.0,
        swap_memory=lambda: SimpleNamespace(percent=3.0),
    )
    monkeypatch.setitem(sys.modules, "psutil", psutil)
    assert measures.get_cpu_stats() == {"cpu_vm_percent": 1.0, "cpu_percent": 2.0, "cpu_swap_percent": 3.0}
    assert measures.get_device_stats() == {"M1_vm_percent": 1.0, "M1_percent": 2.0, "M1_swap_percent": 3.0}
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(ModuleNotFoundError, match="pip install psutil"):
        measures.get_cpu_stats()


def test_packages_that_are_missing_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(MisconfigurationException, match="pip install torchvision"):
        mnist_demo.MNIST("data")
    with pytest.raises(ModuleNotFoundError, match="pip install torchvision"):
        measures.get_torchvision_model("resnet18")


def test_mnist_is_split_as_in_lightning(monkeypatch):
    images = [(torch.full((1, 28, 28), float(i)), i % 10) for i in range(30)]
    torchvision, transforms = ModuleType("torchvision"), SimpleNamespace(ToTensor=lambda: None)
    torchvision.datasets, torchvision.transforms = SimpleNamespace(MNIST=lambda *a, **k: images), transforms
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    data = mnist_demo.MNISTDataModule(val_split=10, num_workers=0, batch_size=4)
    data.setup("fit")
    parts = torch.utils.data.random_split(range(30), [20, 10], generator=torch.Generator().manual_seed(42))
    assert [image[1] for image in data.dataset_val] == [i % 10 for i in parts[1]]
    assert (len(data.train_dataloader()), len(data.val_dataloader()), data.num_classes) == (5, 2, 10)


def test_a_text_is_blocks_and_trains(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "wikitext-2.txt").write_text("a b c\nb a\n" * 20)
    text = text_demos.WikiText2(tmp_path / "data", block_size=4, download=False)
    assert (len(text), text.vocab_size) == (34, 4)
    inputs, target = text[1]
    assert inputs[1:].tolist() == target[:-1].tolist()
    assert text.dictionary.idx2word == ["a", "b", "c", "<eos>"]

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    net = text_demos.LightningTransformer(vocab_size=4)
    net.model = text_demos.Transformer(4, 6, 2, 6, 1, 0.0)
    trainer = lightlib.Trainer(**QUIET, max_steps=1)
    loader = torch.utils.data.DataLoader(text, batch_size=2)
    before = {name: one.clone() for name, one in net.model.state_dict().items()}
    trainer.fit(net, loader)

    plain = text_demos.Transformer(4, 6, 2, 6, 1, 0.0)
    plain.load_state_dict(before)
    inputs, target = next(iter(loader))
    nn.functional.nll_loss(plain(inputs, target), target.view(-1)).backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    assert all(torch.equal(one, plain.state_dict()[name]) for name, one in net.model.state_dict().items())


def test_the_loggers_of_fabric_take_its_arguments(tmp_path):
    logger = fabric_loggers.CSVLogger(root_dir=tmp_path, name="a", version=2)
    assert (logger.root_dir, logger.log_dir) == (str(tmp_path), str(tmp_path / "a" / "version_2"))
    logger.log_metrics({"x": 1.0}, 3)
    logger.save()
    assert (tmp_path / "a" / "version_2" / "metrics.csv").read_text().split() == ["step,x", "3,1.0"]
    board = fabric_loggers.TensorBoardLogger(root_dir=tmp_path, sub_dir="s")
    assert board.log_dir == str(tmp_path / "lightning_logs" / "version_0" / "s")
    assert board.root_dir == str(tmp_path)


@pytest.mark.parametrize("name", ["CSVLogger", "TensorBoardLogger"])
def test_the_loggers_of_fabric_have_lightnings_class_tree(name, tmp_path):
    for_fabric, for_trainer = getattr(fabric_loggers, name), getattr(lightlib.loggers, name)
    assert issubclass(for_fabric, lightlib.loggers.FabricLogger)
    assert not issubclass(for_fabric, lightlib.loggers.Logger)
    assert isinstance(for_trainer(tmp_path), for_fabric)
    with pytest.raises(ArgumentTypeError, match=rf"for Fabric\.(.|\n)*loggers\.{name}\(save_dir\)"):
        lightlib.Trainer(logger=for_fabric(tmp_path))

    class Mine(lightlib.loggers.Logger, for_fabric):
        """As in packages that bring Lightning's logger with changes."""

    class Logs(BoringModel):
        def on_train_epoch_end(self):
            self.log("seen", 1.0)

    logger = Mine(tmp_path, name="mine")
    limits = {"max_epochs": 1, "limit_train_batches": 2, "limit_val_batches": 0, "log_every_n_steps": 1}
    lightlib.Trainer(**{**QUIET, **limits, "logger": logger}).fit(Logs())
    folder = tmp_path / "mine" / "version_0"
    assert (logger.save_dir, logger.root_dir, logger.log_dir) == (None, str(tmp_path), str(folder))
    written = {path.name.split(".")[0] for path in folder.iterdir()} - {"hparams"}
    assert written == {"metrics" if name == "CSVLogger" else "events"}


def test_columns_of_the_rich_bar():
    rich_columns = pytest.importorskip("lightlib_lightning.tools.rich_columns")
    trainer = SimpleNamespace(training=True, sanity_checking=False)
    metrics = rich_columns.MetricsTextColumn(trainer, "white", " | ", ".2f")
    metrics.update({"loss": 0.5, "name": "x"})
    progress = rich_columns.CustomProgress(
        rich_columns.BatchesProcessedColumn("white"), rich_columns.ProcessingSpeedColumn("white"), metrics
    )
    progress.add_task("a", total=float("inf"))
    progress.add_task("b", total=4, completed=1)
    endless, finite = progress.tasks
    assert [str(column.render(endless)) for column in progress.columns] == ["0/--", "0.00it/s", "loss: 0.50 | name: x"]
    assert str(progress.columns[0].render(finite)) == "1/4"
    trainer.sanity_checking = True
    assert str(metrics.render(endless)) == ""
    assert str(rich_columns.CustomTimeColumn("white").render(endless)) == "0:00:00 • -:--:--"


def test_the_version_of_a_progress_bar():
    trainer = SimpleNamespace(loggers=[1], logger=SimpleNamespace(version="abcdefgh"))
    assert values.get_standard_metrics(trainer) == {"v_num": "efgh"}
    assert values.get_standard_metrics(SimpleNamespace(loggers=[])) == {}


def test_collectives_of_one_process():
    alone = collectives.SingleDeviceCollective().setup().create_group()
    one = torch.ones(2)
    assert alone.all_reduce(one, op="sum") is one
    assert alone.broadcast(one, src=0) is one
    assert alone.all_gather([], one) == [one]
    assert (alone.rank, alone.world_size) == (0, 1)
    with pytest.raises(RuntimeError, match="already owns a group"):
        alone.create_group()
    alone.teardown()
    with pytest.raises(RuntimeError, match="does not own a group to destroy"):
        alone.teardown()
    with pytest.raises(RuntimeError, match="does not own a group"):
        _ = alone.group
    with pytest.raises(ValueError, match="op='summe' is no operation"):
        collectives.TorchCollective().all_reduce(one, "summe")


def empty():
    return [torch.zeros(()), torch.zeros(())]


def together(rank, folder):
    """Use a TorchCollective on two ranks."""
    mine = collectives.TorchCollective().setup(backend="gloo", init_method="env://", world_size=2, rank=rank)
    found = {
        "sum": mine.all_reduce(torch.tensor(rank + 1.0)).item(),
        "max": mine.all_reduce(torch.tensor(rank + 1.0), "max").item(),
        "broadcast": mine.broadcast(torch.tensor(float(rank)), 1).item(),
        "all_gather": torch.stack(mine.all_gather(empty(), torch.tensor(float(rank)))).tolist(),
        "gather": [one.item() for one in mine.gather(torch.tensor(float(rank)), [] if rank else empty())],
        "scatter": mine.scatter(torch.zeros(()), [] if rank else [torch.tensor(5.0), torch.tensor(6.0)]).item(),
        "objects": mine.all_gather_object([None, None], {"rank": rank}),
    }
    if rank:
        mine.send(torch.tensor(9.0), 0)
    else:
        found["recv"] = mine.recv(torch.zeros(()), 1).item()
    mine.barrier()
    strategy = SimpleNamespace(
        collectives=SimpleNamespace(all_gather_object=lambda one: mine.all_gather_object([None, None], one)),
        is_global_zero=rank == 0,
    )
    found["shared"] = [
        measures.is_shared_filesystem(strategy, folder),
        measures.is_shared_filesystem(strategy, f"/{rank}"),
    ]
    found["lengths"] = [
        measures.has_len_all_ranks([1] if rank else [1, 2], strategy),
        measures.has_len_all_ranks(iter([]) if rank else [1], strategy),
    ]
    with pytest.raises(RuntimeError, match="the loader of rank 1 is empty"):
        measures.has_len_all_ranks([] if rank else [1], strategy)
    own = collectives.TorchCollective().create_group(ranks=[0, 1])
    found["own"] = [own.rank, own.world_size]
    mine.barrier()  # the other process has its group too, before the store of this one ends
    own.teardown()
    mine.teardown()
    return found | {"ended": not torch.distributed.is_initialized()}


@pytest.mark.processes
def test_collectives_of_two_processes(tmp_path):
    first, second = ranks(2, together, str(tmp_path))
    for found in (first, second):
        assert (found["sum"], found["max"], found["broadcast"], found["all_gather"]) == (3, 2, 1, [0, 1])
        assert found["objects"] == [{"rank": 0}, {"rank": 1}]
        assert found["shared"] == [True, False]
        assert found["lengths"] == [True, False]
        assert found["ended"]
    assert (first["scatter"], second["scatter"], first["recv"]) == (5, 6, 9)
    assert (first["own"], second["own"]) == ([0, 2], [1, 2])
    assert first["gather"] == [0, 1]


def test_a_single_process_shares_its_files(tmp_path):
    strategy = lightlib.Trainer(**QUIET, max_epochs=1).strategy
    assert isinstance(strategy, SingleDeviceStrategy)
    assert measures.is_shared_filesystem(strategy, tmp_path)
    assert measures.is_shared_filesystem(strategy, "s3://bucket/x")
