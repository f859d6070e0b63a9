"""`Trainer(global_batch_size=…)`: fewer samples than processes, a rest, and changes of their number."""

# ruff: noqa: RUF001  a multiplication sign is meant

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import lightlib as L
from lightlib.callbacks import Callback
from tests.core.setup.test_batch_sizes import Sizes
from tests.processes.ranks import ranks
from tests.runs.plain import Net, loader, momentum, samples
from tests.runs.quiet import QUIET

pytestmark = pytest.mark.processes


def fitted(rank: int, size: int, batch: int, samples: int) -> Any:
    """Return the error, or the samples of each batch and of each step of this process, with the warnings."""
    module = Sizes()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trainer = L.Trainer(**QUIET, strategy="ddp", devices=2, max_epochs=1, global_batch_size=size)
            trainer.fit(module, loader(samples, batch))
        except Exception as error:  # noqa: BLE001  what is tested
            return str(error), module.sizes
    return module.sizes, module.steps, [str(one.message) for one in caught if "Global batch" in str(one.message)]


def test_fewer_samples_than_processes() -> None:
    for text, sizes in ranks(2, fitted, 1, 1, 8):
        assert "global_batch_size=1 is less than the 2 processes" in text
        assert sizes == []  # before training


def test_one_sample_for_each_process() -> None:
    for sizes, steps, said in ranks(2, fitted, 2, 4, 8):
        assert (sizes, steps, said) == ([1] * 4, [1] * 4, [])


def test_a_rest_is_rounded_on_both() -> None:
    found = ranks(2, fitted, 65, 32, 128)
    assert [(sizes, steps) for sizes, steps, _ in found] == [([32, 32], [32, 32])] * 2
    assert any("Global batch 64 = 2 processes × 32 × 1 accumulated; 65 was requested." in one for one in found[0][2])


class Used(Callback):
    """Adds the numbers of the samples that this process has used to a list."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.numbers += (batch[0][:, None] == samples(48)[0]).all(-1).nonzero()[:, 1].tolist()


class Saves(Callback):
    """Saves before the first batch, and ends the run."""

    def __init__(self, path: str) -> None:
        self.path = path

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.save_checkpoint(self.path)
        trainer.should_stop = True


class Shuffled(IterableDataset):
    """The same samples in an order of its own."""

    def __iter__(self) -> Any:
        x, y = samples(48)
        for index in torch.randperm(48, generator=torch.Generator().manual_seed(1)).tolist():
            yield x[index], y[index]


def numbered(kind: str) -> DataLoader:
    if kind == "stream":
        return DataLoader(Shuffled(), 2)
    return DataLoader(TensorDataset(*samples(48)), 2, shuffle=True, generator=torch.Generator().manual_seed(1))


def trained(rank: int, kind: str, processes: int, path: str | None, saved: str, begun: bool) -> Any:
    """Train for two steps, save before the first batch, or train to the end, and save."""
    module, used, saves = Net(momentum), Used(), [Saves(saved)] if path and not begun else []
    trainer = L.Trainer(
        **QUIET, strategy="ddp", devices=processes, max_epochs=1, global_batch_size=12, callbacks=[used, *saves],
        max_steps=-1 if path else 2,
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(module, numbered(kind), ckpt_path=path)
    if not saves:
        trainer.save_checkpoint(saved)
    changed = [str(one.message) for one in caught if "is not the one" in str(one.message)]
    return used.numbers, module.state_dict(), changed


@pytest.mark.parametrize("kind", ["map", "stream"])
@pytest.mark.parametrize("sizes", [(2, 3, 2), (2, 3, 3), (3, 2, 1), (2, 1, 2)], ids=str)
def test_a_save_before_the_first_batch_of_another_number_of_processes(tmp_path, kind, sizes):
    """Its progress counts batches of the new processes, and its position in the data those of the old ones."""
    paths = [None, *(str(tmp_path / f"{name}.ckpt") for name in ("first", "again", "last"))]
    first, _, last = (
        ranks(size, trained, kind, size, path, saved, number == 2)
        for number, (size, path, saved) in enumerate(zip(sizes, paths, paths[1:], strict=False))
    )
    used = [index for one, _, _ in [*first, *last] for index in one]
    assert sorted(used) == list(range(48))
    assert not [text for _, _, texts in last for text in texts]

    plain = Net(momentum)
    optimizer, batches = plain.configure_optimizers(), list(numbered(kind))
    for step in range(4):
        optimizer.zero_grad()
        plain.loss([torch.cat(parts) for parts in zip(*batches[6 * step : 6 * step + 6], strict=True)]).backward()
        optimizer.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(last[0][1][name], value, rtol=1e-5, atol=1e-6)
