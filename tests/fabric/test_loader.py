"""A loop with a Fabric that is killed within an epoch continues with the same numbers."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import lightlib as L
from lightlib.errors import CheckpointError, MisconfigurationException
from tests.processes import programs
from tests.processes.ranks import ranks
from tests.runs.plain import loader, network

PROGRAM = '''
import json, os, signal, sys
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
import lightlib as L

class Noisy(Dataset):
    """Samples with noise that the workers draw."""
    def __len__(self):
        return 26
    def __getitem__(self, index):
        return torch.full((6,), float(index)) / 26 + torch.randn(6), index % 3

kill_at, workers, precision = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
fabric = L.Fabric(accelerator="cpu", devices=1, precision=precision)
fabric.seed_everything(1, verbose=False)
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
model, optimizer = fabric.setup(net, torch.optim.Adam(net.parameters(), lr=0.05))
scheduler = torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 4, 0.5)
loader = fabric.setup_dataloaders(DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=workers))
state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader, "step": 0, "seen": []}
if os.path.exists("run.ckpt"):
    assert fabric.load("run.ckpt", state) == {}
while loader.epoch < 3:
    for x, y in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        scheduler.step()
        state["step"] += 1
        state["seen"].append([float(x.sum()), float(loss)])
        if state["step"] % 3 == 0:
            fabric.save("run.ckpt", state)
        if state["step"] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
weights = {name: value.tolist() for name, value in model.state_dict().items()}
print(json.dumps({"seen": state["seen"], "weights": weights, "rate": scheduler.get_last_lr()}))
'''


def run_of(folder: Path, kill_at: int, workers: int, precision: str):
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(PROGRAM)
    return programs.run("program.py", str(kill_at), str(workers), precision, cwd=folder)


@pytest.mark.processes
@pytest.mark.parametrize(("workers", "precision"), [(0, "32-true"), (2, "32-true"), (0, "16-mixed")])
def test_a_killed_run_continues_with_the_same_batches_and_numbers(tmp_path, workers, precision):
    whole = run_of(tmp_path / "whole", 0, workers, precision)
    assert whole.returncode == 0, whole.stderr
    for kill_at in (5, 7, 13):  # within the first epoch, at its end, and within the second
        killed = run_of(tmp_path / "killed", kill_at, workers, precision)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = run_of(tmp_path / "killed", 0, workers, precision)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout) == json.loads(whole.stdout)


def trained(rank, path, strategy, size, stop):
    """Train for 12 steps; save at `stop`, or continue from there if it is negative."""
    fabric = L.Fabric(accelerator="cpu", devices=size, strategy=strategy)
    fabric.launch()
    torch.manual_seed(1 + rank)
    net = network(0.5)
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    data = fabric.setup_dataloaders(loader(40, 4, shuffle=True))
    state = {"model": model, "optimizer": optimizer, "data": data, "losses": []}
    if stop < 0:
        fabric.load(path, state)
    while len(state["losses"]) < 12:
        for x, y in data:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            fabric.backward(loss)
            optimizer.step()
            state["losses"].append(float(loss.detach()))
            if len(state["losses"]) == stop:
                fabric.save(path, state)
            if len(state["losses"]) == 12:
                break
    return state["losses"]


@pytest.mark.processes
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero1"])
def test_several_processes_continue_exactly(tmp_path, strategy):
    path = str(tmp_path / "run.ckpt")
    whole = ranks(2, trained, path, strategy, 2, 7)
    resumed = ranks(2, trained, path, strategy, 2, -1)
    assert [losses[7:] for losses in resumed] == [losses[7:] for losses in whole]
    assert resumed[1][:7] == whole[0][:7]  # plain values are those of rank 0
    assert whole[0] != whole[1]


def seen(rank, path, loads, count):
    fabric = L.Fabric(accelerator="cpu", strategy="ddp")
    fabric.launch()
    data = fabric.setup_dataloaders(DataLoader(range(24), batch_size=2, shuffle=True))
    torch.manual_seed(3)
    if loads:
        fabric.load(path, {"data": data})
    found = []
    for batch in data:
        found.append(batch.tolist())
        if len(found) == count:
            fabric.save(path, {"data": data})
            break
    return found


@pytest.mark.processes
def test_another_number_of_processes_reads_the_rest(tmp_path):
    path = str(tmp_path / "data.ckpt")
    first = ranks(2, seen, path, False, 4)
    rest = ranks(1, seen, path, True, 100)
    samples = [sample for rank in first + rest for batch in rank for sample in batch]
    assert sorted(samples) == list(range(24))


class TestLoader:
    @pytest.fixture
    def fabric(self):
        return L.Fabric(accelerator="cpu", devices=1)

    def test_a_pass_that_is_left_early_is_an_epoch(self, fabric):
        data = fabric.setup_dataloaders([1, 2, 3])
        for _ in data:
            break
        assert list(data) == [1, 2, 3]
        assert data.epoch == 2

    def test_a_state_after_the_last_batch_gives_an_empty_rest(self, fabric):
        data = fabric.setup_dataloaders(DataLoader(range(4), batch_size=2))
        for batch in data:
            if batch[0] == 2:
                state = data.state_dict()
        other = fabric.setup_dataloaders(DataLoader(range(4), batch_size=2))
        other.load_state_dict(state)
        assert list(other) == []
        assert len(list(other)) == 2

    def test_between_two_epochs_the_next_order_is_restored(self, fabric):
        data = fabric.setup_dataloaders(DataLoader(range(20), batch_size=2, shuffle=True))
        list(data)
        fabric.save("between.ckpt", {"data": data})
        wanted = [batch.tolist() for batch in data]
        torch.manual_seed(99)
        other = fabric.setup_dataloaders(DataLoader(range(20), batch_size=2, shuffle=True))
        fabric.load("between.ckpt", {"data": other})
        assert [batch.tolist() for batch in other] == wanted

    def test_the_same_order_as_torch(self, fabric):
        torch.manual_seed(4)
        plain = DataLoader(range(20), batch_size=3, shuffle=True)
        wanted = [batch.tolist() for _ in range(2) for batch in plain]
        torch.manual_seed(4)
        ours = fabric.setup_dataloaders(DataLoader(range(20), batch_size=3, shuffle=True))
        assert [batch.tolist() for _ in range(2) for batch in ours] == wanted

    def test_samplers_are_told_the_epoch(self, fabric):
        epochs = []

        class Sampler(torch.utils.data.SequentialSampler):
            def set_epoch(self, epoch):
                epochs.append(epoch)

        data = fabric.setup_dataloaders(DataLoader(range(4), sampler=Sampler(range(4))))
        list(data), list(data)
        assert epochs == [0, 1]

    @pytest.mark.processes
    def test_workers_of_two_loaders_draw_different_numbers(self, fabric):
        one, other = fabric.setup_dataloaders(*(DataLoader(Noise(), num_workers=1) for _ in range(2)))
        assert float(next(iter(one))) != float(next(iter(other)))

    def test_its_attributes_are_the_loaders(self, fabric):
        given = DataLoader(range(5), batch_size=2)
        data = fabric.setup_dataloaders(given)
        assert data.dataset == range(5)
        assert len(data) == 3
        assert data.device == torch.device("cpu")

    def test_one_iteration_at_a_time(self, fabric):
        data = fabric.setup_dataloaders([1, 2, 3])
        first = iter(data)
        next(first)
        next(iter(data))
        with pytest.raises(MisconfigurationException, match="after another one over it had begun"):
            next(first)

    def test_a_stream_has_no_length(self, fabric):
        data = fabric.setup_dataloaders(iter([1, 2]))
        with pytest.raises(TypeError, match="has no length"):
            len(data)
        assert list(data) == [1, 2]

    @pytest.mark.parametrize("wrong", [{}, None, 3, {"epoch": 1, "data": {}}])
    def test_a_strange_state(self, fabric, wrong):
        with pytest.raises(CheckpointError, match=r"state of a list is .*\n  Expected: .*\n  Fix: "):
            fabric.setup_dataloaders([1]).load_state_dict(wrong)


class Noise(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.randn(())


def three(rank, path, stop):
    """Train on three processes: their sums depend on the arrangement of DDP's buckets."""
    fabric = L.Fabric(accelerator="cpu", devices=3, strategy=L.strategies.DDPStrategy(bucket_cap_mb=0.0005))
    fabric.launch()
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(9, 9) for _ in range(5)))
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    data = fabric.setup_dataloaders(DataLoader(torch.randn(36, 9), batch_size=2, shuffle=True))
    state = {"model": model, "optimizer": optimizer, "data": data, "step": 0}
    if not stop:
        fabric.load(path, state)
    for x in data:
        optimizer.zero_grad()
        fabric.backward(model(x).square().mean())
        optimizer.step()
        state["step"] += 1
        if state["step"] == stop:
            fabric.save(path, state)
    return state["step"], net.state_dict(), model._placement.strategy.state_dict()


@pytest.mark.processes
def test_three_processes_add_up_in_the_same_buckets(tmp_path):
    path = str(tmp_path / "run.ckpt")
    whole, resumed = ranks(3, three, path, 3)[0], ranks(3, three, path, 0)[0]
    assert whole[0] == resumed[0] == 6
    assert whole[2] == resumed[2]
    assert whole[2]["replicate"]["order"][0] == "4.weight" or whole[2]["replicate"]["order"][0] == "4.bias"
    assert all(value.equal(resumed[1][name]) for name, value in whole[1].items())


def own_order(rank, path, loads):
    """Read in an order that each process draws itself; save after three batches, or continue from there."""
    fabric = L.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    torch.manual_seed(rank)
    given = (DataLoader(range(12), batch_size=2, shuffle=True), DataLoader(Stream(), batch_size=2))
    data, streamed = fabric.setup_dataloaders(*given, use_distributed_sampler=False)
    state = {"data": data, "streamed": streamed}
    if loads:
        fabric.load(path, state)
    found = []
    for batch, other in zip(data, streamed, strict=True):
        found.append((batch.tolist(), other.tolist()))
        if len(found) == 3 and not loads:
            fabric.save(path, state)
    return found, float(torch.rand(()))


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(12))


@pytest.mark.processes
def test_each_process_continues_in_an_order_of_its_own(tmp_path):
    path = str(tmp_path / "run.ckpt")
    whole, resumed = ranks(2, own_order, path, False), ranks(2, own_order, path, True)
    assert [found[3:] for found, _ in whole] == [found for found, _ in resumed]
    assert [number for _, number in whole] == [number for _, number in resumed]
    assert whole[0][0] != whole[1][0]
