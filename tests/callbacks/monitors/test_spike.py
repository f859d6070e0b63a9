"""SpikeDetection: the batches at which Lightning 2.6.6 raises, on all ranks and after a resume."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lightlib
from lightlib.callbacks import SpikeDetection
from lightlib.callbacks.monitors import spike
from lightlib.callbacks.monitors.spike import FabricSpikeDetection, TrainingSpikeException
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from tests.callbacks.fake_trainer import FakeStrategy
from tests.processes.ranks import ranks
from tests.runs import plain
from tests.runs.modules import Regression
from tests.runs.plain import quiet_trainer, with_methods
from tests.runs.quiet import QUIET

FABRIC = SimpleNamespace(strategy=FakeStrategy(), global_rank=0)
# Arguments, losses, and the batches at which SpikeDetection of lightning.fabric 2.6.6 raised.
LIGHTNING = [
    ({}, [0.634, 1.264, 0.995, 1.152, 1.782, 1.336, 3.787, 0.945, 0.729, 4.204, 0.525, 1.439, 0.717, 0.529], [6, 9]),
    ({"rtol": 0.5}, [0.938, 0.733, 0.719, 2.369, 1.338, 1.142, 1.493, 0.621, 1.221, 1.436, 1.33, 0.803, 1.382, 1.005],
     [3, 4, 6, 9]),
    ({"rtol": None, "atol": 1.0},
     [0.535, 1.297, 0.673, 1.203, 0.875, 1.008, 1.021, 2.969, 0.543, 1.483, 0.894, 1.002, 1.271, 1.36], [7]),
    ({"rtol": 0.5, "atol": 0.6, "window": 3, "warmup": 4},
     [1.014, 1.078, 0.769, 4.371, 1.284, 1.386, 1.309, 1.061, 0.556, 1.07, 1.005, 0.857, 1.038, 1.112], []),
    ({"mode": "max", "rtol": 0.3},
     [0.528, 0.677, 1.361, 1.297, 0.755, 3.519, 1.55, 1.256, 0.609, 2.533, 0.66, 0.668, 1.212, 0.822],
     [3, 8, 10, 11, 13]),
    ({"finite_only": False, "rtol": 0.5},
     [0.524, 0.921, 0.609, 1.01, 1.106, math.nan, 0.646, 0.66, math.inf, 0.721, 1.298, 0.723, 0.895, 0.821],
     [1, 3, 4, 8, 10]),
    ({"warmup": 0}, [0.559, 1.468, 0.806, 0.81, 1.244, 2.257, 4.136, 1.319, 1.07, 1.368, 1.204, 0.878, 0.706, 0.933],
     [6]),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "losses", "expected"), LIGHTNING)
def test_the_spikes_are_those_of_lightning(arguments, losses, expected):
    detection, found = FabricSpikeDetection(**arguments), []
    for batch, loss in enumerate(losses):
        try:
            detection.on_train_batch_end(FABRIC, torch.tensor(loss), None, batch)
        except TrainingSpikeException as error:
            found.append(error.batch_idx)
    assert found == expected
    assert detection.bad_batches == [number for batch in expected for number in (batch - 1, batch)]


def test_a_loss_that_is_not_finite_is_a_spike():
    detection = FabricSpikeDetection()
    assert [detection.is_spike(loss, batch) for batch, loss in enumerate([1.0, math.nan, -math.inf, 1.0])] == [
        False, True, True, False,
    ]  # fmt: skip


class Net(Regression):
    """Its loss is the batch, so the data have the spikes."""

    def loss(self, batch):
        return batch[0].mean() + 0 * self.net(batch[0]).sum()


class Saves(lightlib.Callback):
    """Saves after every batch."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.save_checkpoint(self.folder / f"step={trainer.global_step}.ckpt")


def losses(*values):
    return DataLoader(TensorDataset(torch.tensor(values).reshape(-1, 1)))


def trainer(*callbacks, **arguments):
    return lightlib.Trainer(**{**QUIET, "max_epochs": 1, **arguments}, callbacks=list(callbacks))


def test_a_run_ends_and_the_batches_are_added_to_the_file(tmp_path):
    file = tmp_path / "skip_batches.json"
    file.write_text("[7, 8]")
    detection = SpikeDetection()
    with pytest.raises(TrainingSpikeException, match=r"Training spike detected in batch 3[\s\S]*skip_batches.json"):
        trainer(detection, default_root_dir=tmp_path).fit(Net(), losses(1.0, 1.1, 1.0, 9.0, 1.0))
    assert detection.bad_batches == [2, 3]
    assert json.loads(file.read_text()) == [7, 8, 2, 3]


def test_another_file_of_that_name_stays(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text('{"a": 1}x')
    with pytest.raises(MisconfigurationException, match=r"mine.json', which is no list of batches"):
        trainer(SpikeDetection(exclude_batches_path=file)).fit(Net(), losses(1.0))
    assert file.read_text() == '{"a": 1}x'


def test_a_resumed_run_has_the_same_mean(tmp_path):
    values = [1.0, 1.2, 0.9, 1.1, 1.3, 1.2, 2.9, 1.0]
    whole = SpikeDetection(window=4, rtol=1.0)
    with pytest.raises(TrainingSpikeException) as expected:
        trainer(whole, default_root_dir=tmp_path / "a").fit(Net(), losses(*values))
    with pytest.raises(TrainingSpikeException):
        trainer(SpikeDetection(window=4, rtol=1.0), Saves(tmp_path), default_root_dir=tmp_path / "b").fit(
            Net(), losses(*values)
        )
    for file in sorted(tmp_path.glob("step=[1-5].ckpt")):
        resumed = SpikeDetection(window=4, rtol=1.0)
        with pytest.raises(TrainingSpikeException) as caught:
            trainer(resumed, default_root_dir=tmp_path / "c").fit(Net(), losses(*values), ckpt_path=file)
        assert caught.value.batch_idx == expected.value.batch_idx
        assert resumed.state_dict() == whole.state_dict()


def test_a_batch_without_a_loss_is_left_out():
    def training_step(self, batch, batch_idx):
        return None if batch_idx == 1 else Net.training_step(self, batch, batch_idx)

    detection = SpikeDetection()
    trainer(detection).fit(with_methods(Net, training_step), losses(1.0, 50.0, 1.0))
    assert detection.state_dict()["values"] == [1.0, 1.0]


def on_two(rank: int, folder: str) -> tuple[str, int]:
    values = [1.0, 1.0, 1.0, 1.0, 1.0, 90.0, 1.0, 1.0]  # the second rank reads the odd ones
    detection = SpikeDetection(exclude_batches_path=folder)
    try:
        trainer(detection, strategy="ddp").fit(Net(), losses(*values))
    except RuntimeError as error:
        return str(error).splitlines()[0], len(detection.bad_batches)
    return "", 0


@pytest.mark.processes
def test_all_ranks_end_at_the_same_batch(tmp_path):
    found: Any = ranks(2, on_two, str(tmp_path))
    assert all("Training spike detected in batch 2" in message or "failed first" in message for message, _ in found)
    assert [number for _, number in found] == [2, 2]
    assert json.loads(Path(tmp_path, "skip_batches.json").read_text()) == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"mode": "auto"}, MisconfigurationException, "Unknown mode of SpikeDetection 'auto'"),
        ({"window": 0}, MisconfigurationException, r"SpikeDetection\(window=0\)"),
        ({"warmup": 1.5}, ArgumentTypeError, r"SpikeDetection\(warmup=1.5 \(float\)\)"),
        ({"rtol": "2"}, ArgumentTypeError, r"SpikeDetection\(rtol='2'"),
        ({"atol": -1.0}, MisconfigurationException, r"SpikeDetection\(atol=-1.0"),
        ({"exclude_batches_path": 3}, ArgumentTypeError, r"SpikeDetection\(exclude_batches_path=3"),
    ],
)
def test_wrong_arguments(arguments, kind, message):
    with pytest.raises(kind, match=message):
        SpikeDetection(**arguments)


def test_the_error_names_the_batch_the_step_and_the_layers():
    data = plain.batches(4)
    data[3][0][:, 2] *= 1e4
    with pytest.raises(TrainingSpikeException) as raised:
        quiet_trainer(callbacks=[SpikeDetection(rtol=0.5)]).fit(plain.Net(net=torch.nn.Linear(6, 3)), data)
    (note,) = raised.value.__notes__
    assert note.startswith("epoch 0, batch 3, optimizer step 4: the loss ")
    assert "the largest gradients for their weights: net (gradient " in note


def test_layers_with_gradients_that_are_not_finite_come_first():
    module = plain.Net()
    trainer = quiet_trainer()
    trainer.fit(module, plain.batches(1))
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    module.net[3].weight.grad[0, 0] = math.nan
    text = spike._suspects(trainer, module)
    assert text.index("net.3 (gradient nan") < text.index("net.0 (gradient ")
