"""Batches and data of NumPy arrays, compared with tensors; and objects that give batches."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightlib.callbacks import Callback
from lightlib.conventions import following
from lightlib.data.arrays import as_tensors, holds_arrays, tensor_of, with_tensors
from lightlib.errors import MisconfigurationException
from lightlib_lightning.order import LIGHTNING
from tests.runs.plain import Net, Unsized, batches, quiet_trainer, same_weights, samples, with_methods

ZEROS = [[0.0, 0.0], [0.0, 0.0]]


def array():
    return np.array(ZEROS)


def tensor():
    return torch.Tensor(ZEROS)


@dataclass
class Pair:
    x: object
    y: object


LITERALS = {  # the forms of batches that Determined's guide lists
    "array": array,
    "tensor": tensor,
    "tuple": lambda: (array(), array()),
    "list": lambda: [tensor(), array()],
    "dict of arrays": lambda: {"data": array(), "label": array()},
    "dict of tensors": lambda: {"data": tensor(), "label": tensor()},
    "dict of a tuple": lambda: {"data": tensor(), "label": (tensor(), array())},
    "nested": lambda: {"data": [{"first": array()}, {"second": tensor()}], "label": (tensor(), array())},
    "dataclass": lambda: Pair(array(), [tensor()]),
}


class Keeps(Net):
    not_in_checkpoint = ("got",)

    def __init__(self):
        super().__init__()
        self.got = []

    def training_step(self, batch, batch_idx):
        self.got.append(batch)

    def validation_step(self, batch, batch_idx):
        self.got.append(batch)

    def predict_step(self, batch, batch_idx):
        return batch


def leaves(value):
    if isinstance(value, Pair):
        value = [value.x, value.y]
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for one in value for leaf in leaves(one)] if isinstance(value, (list, tuple)) else [value]


class TestBatches:
    @pytest.mark.parametrize("form", LITERALS)
    @pytest.mark.parametrize("make", [list, Unsized, lambda b: DataLoader(b, batch_size=None, collate_fn=lambda x: x)])
    def test_every_form_arrives_as_tensors_on_the_device(self, form, make):
        given = LITERALS[form]()
        trainer = quiet_trainer()
        (got,) = trainer.predict(Keeps(), make([given]))
        assert type(got) is type(given) or isinstance(given, np.ndarray)
        found = leaves(got)
        assert len(found) == len(leaves(given))
        for leaf in found:
            assert isinstance(leaf, Tensor)
            assert leaf.device == trainer.strategy.root_device
            assert leaf.tolist() == ZEROS

    def test_in_training_and_validation(self):
        def training_step(self, batch, batch_idx):
            Keeps.training_step(self, batch, batch_idx)
            return Net.training_step(self, batch, batch_idx)

        arrays = [(x.numpy(), y.numpy()) for x, y in batches(3)]
        module, plain = with_methods(Keeps, training_step), Net()
        quiet_trainer(max_epochs=2).fit(module, arrays, arrays)
        quiet_trainer(max_epochs=2).fit(plain, batches(3))
        assert all(isinstance(leaf, Tensor) for batch in module.got for leaf in batch)
        assert len(module.got) == 12
        assert same_weights(module, plain)

    def test_of_other_kinds_they_stay(self):
        names = np.array(["a", "b"])
        (got,) = quiet_trainer().predict(Keeps(), [{"x": array(), "names": names}])
        assert got["names"] is names
        assert isinstance(got["x"], Tensor)

    def test_under_compat_they_stay(self):
        with following(LIGHTNING):
            (got,) = quiet_trainer().predict(Keeps(), [array()])
        assert isinstance(got, np.ndarray)

    def test_with_a_transfer_hook_they_stay(self):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            assert isinstance(batch, np.ndarray)
            return torch.from_numpy(batch)

        (got,) = quiet_trainer().predict(with_methods(Keeps, on_before_batch_transfer), [array()])
        assert got.tolist() == ZEROS

    def test_memory_is_shared_where_torch_allows(self):
        one = array()
        assert tensor_of(one).data_ptr() == one.ctypes.data
        for odd in (one[::-1], np.broadcast_to(one, (2, 2, 2)), one.astype(">f8"), one.T):
            np.testing.assert_array_equal(tensor_of(odd).numpy(), odd)

    def test_tensors_cost_nothing(self):
        def calls_of(iterator):
            next(iterator)
            counted = []
            before = sys.getprofile()
            sys.setprofile(lambda frame, event, argument: counted.append(event) if event == "call" else None)
            try:
                for _ in iterator:
                    pass
            finally:
                sys.setprofile(before)
            return len(counted)

        assert calls_of(with_tensors(iter(batches(20)))) == 1, "when the batches end"
        assert list(with_tensors(iter([]))) == []

    def test_whether_there_are_any(self):
        assert holds_arrays({"a": [1, (array(),)]})
        assert not holds_arrays([tensor(), "a", None, np.array(["a"])])
        same = [tensor(), 3]
        assert as_tensors(same)[0] is same[0]


def curve(module, data):
    """Losses of a run that reads in order."""
    trainer = quiet_trainer(max_epochs=2, limit_val_batches=0)
    module.losses = []
    trainer.fit(module, data)
    return module.losses


class Weighted(Net):
    not_in_checkpoint = ("losses",)

    def __init__(self):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            super().__init__(net=nn.Linear(6, 3))

    def training_step(self, batch, batch_idx):
        x, y, weight = batch
        loss = (nn.functional.cross_entropy(self.net(x), y, reduction="none") * weight).mean()
        self.losses.append(float(loss.detach()))
        return loss


class Sequence:
    """Batches by index, as keras.utils.Sequence gives them."""

    def __init__(self, items):
        self.items, self.ended = items, 0

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]

    def on_epoch_end(self):
        self.ended += 1
        self.items = self.items[1:] + self.items[:1]


class TfData:
    """A stand-in for tf.data.Dataset."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def as_numpy_iterator(self):
        return iter(self.items)


class TestData:
    def test_five_forms_of_the_same_data(self):
        x, y = samples(16)
        weight = torch.linspace(0.5, 1.5, 16)
        arrays = tuple(one.numpy() for one in (x, y, weight))
        items = [tuple(one[at : at + 4] for one in arrays) for at in range(0, 16, 4)]
        plain = curve(Weighted(), [tuple(map(torch.from_numpy, item)) for item in items])
        rotating = Sequence(items)
        rotating.on_epoch_end = lambda: None
        forms = [items, Unsized(items), rotating, TfData(items), DataLoader(items, batch_size=None)]
        assert [curve(Weighted(), form) == plain for form in forms] == [True] * 5
        assert len(plain) == 8
        module = Weighted()
        module.batch_size = 16
        whole, _ = curve(module, arrays)
        with torch.no_grad():
            expected = (nn.functional.cross_entropy(Weighted().net(x), y, reduction="none") * weight).mean()
        assert whole == pytest.approx(float(expected), rel=1e-6)

    @pytest.mark.parametrize("as_array", [np.asarray, torch.as_tensor], ids=["NumPy", "tensors"])
    def test_x_as_a_dict_or_a_list(self, as_array):
        rows = np.arange(12.0).reshape(6, 2)
        data = {"a": as_array(rows), "b": as_array(rows * 10)}
        module = Keeps()
        module.batch_size = 4
        got = quiet_trainer().predict(module, (data, as_array(rows[:, 0])))
        assert [batch[0]["a"].shape for batch in got] == [(4, 2), (2, 2)]
        assert all(batch[0]["b"].equal(batch[0]["a"] * 10) for batch in got)
        assert torch.cat([batch[1] for batch in got]).tolist() == rows[:, 0].tolist()
        got = quiet_trainer().predict(module, ([data["a"], data["b"]], as_array(rows[:, 0])))
        assert got[0][0][1].equal(got[0][0][0] * 10)

    def test_a_dict_of_arrays_keeps_its_rows_together(self):
        x = np.arange(40.0)
        module = Keeps()
        with pytest.warns(UserWarning, match="loss"):
            quiet_trainer(max_epochs=1, limit_val_batches=0).fit(module, {"x": x, "y": x + 1})
        drawn = torch.cat([batch["x"] for batch in module.got])
        assert torch.cat([batch["y"] for batch in module.got]).equal(drawn + 1)
        assert drawn.tolist() != x.tolist(), "shuffled"

    def test_a_sequence_is_notified_of_epochs_and_resumes(self, tmp_path):
        class Saves(Callback):
            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                trainer.save_checkpoint(tmp_path / f"{trainer.global_step}.ckpt")

        items = [(x.numpy(), y.numpy(), np.ones(4, "float32")) for x, y in batches(3)]
        complete, data = Weighted(), Sequence(list(items))
        complete.losses = []
        quiet_trainer(max_epochs=3, limit_val_batches=0, callbacks=[Saves()]).fit(complete, data)
        assert data.ended == 2
        for step in (1, 3, 4, 8):
            module = Weighted()
            module.losses = []
            trainer = quiet_trainer(max_epochs=3, limit_val_batches=0)
            trainer.fit(module, Sequence(list(items)), ckpt_path=tmp_path / f"{step}.ckpt")
            assert module.losses == complete.losses[step:], step
            assert same_weights(module, complete)

    def test_a_generator(self):
        got = quiet_trainer().predict(Keeps(), (array() + i for i in range(3)))
        assert [batch[0, 0].item() for batch in got] == [0.0, 1.0, 2.0]

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            (({"a": np.zeros((3, 2))}, np.zeros(4)), r"arrays of the shapes \(3, 2\), \(4,\)"),
            ({"a": np.zeros(3), "b": np.zeros(())}, r"arrays of the shapes \(3,\), \(\)"),
            ({"a": np.array(["x"])}, "cannot be made into tensors: an array has the dtype <U1"),
        ],
    )
    def test_errors(self, data, text):
        with pytest.raises(MisconfigurationException, match=text):
            quiet_trainer(limit_val_batches=0).fit(Keeps(), data)
