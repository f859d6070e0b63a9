"""Streams in limited epochs, next to each other, and as validation data: killed and resumed."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import lightlib as L
from lightlib.callbacks import ModelCheckpoint

SAMPLES = 24


class Death(BaseException):
    """Ends a run within a step, as a kill does: nothing is saved after it."""


class Stream(IterableDataset):
    """Numbers, by worker; without a position."""

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        yield from range(first, SAMPLES, step)


class WithPosition(Stream):
    """A stream with a state: its position, with which its next pass begins, as a Hugging Face data set does."""

    def __init__(self):
        self.position = self.begins = 0

    def __iter__(self):
        begins, self.begins = self.begins, 0
        for number in range(begins, SAMPLES):
            self.position = number + 1
            yield number

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.begins = state["position"]


class Reads(L.Module):
    not_in_checkpoint = ("trained", "validated", "dies_at")

    def __init__(self, make, train, dies_at):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.make, self.train_loader, self.dies_at = make, train, dies_at
        self.trained, self.validated = [], []

    def train_dataloader(self):
        return self.train_loader()

    def val_dataloader(self):
        return self.make()

    def training_step(self, batch, batch_idx):
        self.trained.append((self.trainer.global_step, str(batch)))
        if self.dies_at == self.trainer.global_step:
            raise Death
        return self.layer(torch.ones(1, 1)).mean()

    def validation_step(self, batch, batch_idx):
        self.validated.append((self.trainer.global_step, batch_idx, batch.tolist()))
        if self.dies_at == (self.trainer.global_step, batch_idx):
            raise Death

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def run(folder, make, train, dies_at=None, **options):
    """Return the module after a run, which may have been killed."""
    torch.manual_seed(1)
    module = Reads(make, train, dies_at)
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0, default_root_dir=folder,
        callbacks=[ModelCheckpoint(folder / "saved", every_n_train_steps=1, save_top_k=-1)], **options,
    )  # fmt: skip
    if dies_at is None:
        trainer.fit(module, ckpt_path="auto")
    else:
        with pytest.raises(Death):
            trainer.fit(module, ckpt_path="auto")
    return module


def assert_resumes_equally(tmp_path, make, train, deaths, **options):
    whole = run(tmp_path / "whole", make, train, **options)
    for death in deaths:
        folder = tmp_path / f"killed at {death}"
        killed = run(folder, make, train, death, **options)
        resumed = run(folder, make, train, **options)
        begins = resumed.trained[0][0]
        assert 0 < begins <= (death if isinstance(death, int) else death[0])
        assert [row for row in killed.trained if row[0] < begins] + resumed.trained == whole.trained
        validated = {row[:2]: row[2] for row in (*killed.validated, *resumed.validated)}
        assert validated == {row[:2]: row[2] for row in whole.validated}


def loader(kind, workers=0, **options):
    return DataLoader(kind(), 4, num_workers=workers, **options)


@pytest.mark.parametrize("kind", [Stream, WithPosition])
@pytest.mark.filterwarnings("ignore:.*(does not have many workers|IterableDataset)")
class TestStreams:
    def test_killed_within_a_validation(self, kind, tmp_path):
        make = partial(loader, kind)
        deaths = [(2, 1), (4, 3), (6, 5), (8, 0), (10, 5)]
        assert_resumes_equally(tmp_path, make, make, deaths, val_check_interval=2)

    @pytest.mark.parametrize("mode", ["min_size", "max_size_cycle", "max_size", "sequential"])
    def test_two_streams_read_together(self, kind, mode, tmp_path):
        def both():
            return L.CombinedLoader({"a": loader(kind), "b": DataLoader(kind(), 3)}, mode)

        options = {"limit_val_batches": 0}
        assert_resumes_equally(tmp_path, partial(loader, kind), both, [2, 5, 8, 11], **options)

    def test_a_limited_epoch(self, kind, tmp_path):
        make = partial(loader, kind)
        assert_resumes_equally(tmp_path, make, make, [1, 3, 4, 6], limit_train_batches=4, limit_val_batches=2)

    @pytest.mark.processes
    def test_workers_that_stay(self, kind, tmp_path):
        if kind is WithPosition:
            pytest.skip("its state is within the workers")
        make = partial(loader, kind, 2, persistent_workers=True)
        assert_resumes_equally(tmp_path, make, make, [2, 8], limit_val_batches=1)


@pytest.mark.filterwarnings("ignore:.*(does not have many workers|IterableDataset)", "ignore::DeprecationWarning")
def test_a_library_with_states_killed_within_a_validation(tmp_path):
    datasets = pytest.importorskip("datasets", reason="an optional library")

    def make():
        data = datasets.Dataset.from_dict({"id": list(range(SAMPLES))}).to_iterable_dataset(num_shards=3)
        return DataLoader(data.shuffle(seed=5, buffer_size=5), 4, collate_fn=numbers)

    assert_resumes_equally(tmp_path, make, make, [(4, 3), (10, 5)], val_check_interval=2)


def numbers(samples):
    return torch.tensor([sample["id"] for sample in samples])


@pytest.mark.filterwarnings("ignore:.*(does not have many workers|IterableDataset)", "ignore::DeprecationWarning")
@pytest.mark.parametrize(("together", "options"), [(True, {}), (False, {"limit_train_batches": 4})])
def test_an_epoch_of_litdata_that_ends_early(together, options, tmp_path):
    litdata = pytest.importorskip("litdata", reason="an optional library")
    writing = pytest.importorskip("litdata.streaming.writer")
    folder = tmp_path / "data"
    folder.mkdir()
    writer = writing.BinaryWriter(str(folder), chunk_size=8)
    for number in range(SAMPLES):
        writer[number] = number
    writer.done()
    writer.merge()

    def make():
        return litdata.StreamingDataLoader(litdata.StreamingDataset(str(folder), shuffle=True), batch_size=4)

    def train():
        return L.CombinedLoader([make(), make()], "max_size_cycle") if together else make()

    assert_resumes_equally(tmp_path, make, train, [2, 5], limit_val_batches=0, **options)
