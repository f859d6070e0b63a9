"""Notes on the error of a batch: one that is None, dtypes that differ, and lack of memory."""

from __future__ import annotations

import sys
import traceback

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightlib import Fabric
from lightlib.errors import MisconfigurationException
from tests.runs.bad_input import Net, Validated, loader, trainer, with_methods

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes from Python 3.11 on")
TRAINING = (
    "\n  Expected: weights, gradients, activations and batches that fit.\n"
    '  Fix: Trainer(accumulate_grad_batches="auto"), which trains each batch in micro-batches that fit, with the same '
    "samples per step; callbacks=[BatchSizeFinder()] finds the largest batch size.\n"
    "    Otherwise Trainer(activation_checkpointing=True), precision='bf16-mixed', or on several devices "
    "strategy='fsdp'."
)


def note_of(kind, call, *arguments, **options):
    """Return the only note of the error of a call, which its traceback shows."""
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    (note,) = getattr(caught.value, "__notes__", ["none"])
    assert note == "none" or note in "".join(traceback.format_exception(caught.value))
    return note


def raising(error, after=0):
    """Return a step that raises an error at the batch of this number."""

    def step(self, batch, batch_idx):
        if batch_idx == after:
            raise error
        return self.loss(batch)

    return step


class Unpacks(Net):
    def validation_step(self, batch, batch_idx):
        self.log("val", self.loss(batch))

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self.layer(batch[0])


class TestNone:
    """A `collate_fn` that returns None."""

    @pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.processes)])
    def test_of_training(self, workers):
        nothing = DataLoader(loader().dataset, 2, collate_fn=_none, num_workers=workers)
        module = Net()
        before = module.layer.weight.clone()
        note = note_of(TypeError, trainer().fit, module, nothing)
        assert note == (
            "Batch 0 of the training data is None.\n  Expected: a batch, which the step gets.\n"
            "  Fix: return one from the loader's `collate_fn`, or from the data set."
        )
        assert module.layer.weight.equal(before)

    def test_of_a_later_batch(self):
        x, y = torch.ones(1, 2), torch.ones(1, 1)
        note = note_of(TypeError, trainer().fit, Net(), [(x, y), (x, y), None])
        assert note.startswith("Batch 2 of the training data is None.")

    @pytest.mark.parametrize(
        ("verb", "kind"),
        [("validate", "validation"), ("test", "test"), ("predict", "prediction"), ("fit", "validation")],
    )
    def test_of_evaluations(self, verb, kind):
        nothing = DataLoader(loader().dataset, 2, collate_fn=_none)
        data = (loader(), nothing) if verb == "fit" else (nothing,)
        note = note_of(TypeError, getattr(trainer(), verb), Unpacks(), *data)
        assert note.startswith(f"Batch 0 of the {kind} data is None.")

    def test_a_step_may_take_it(self):
        module = with_methods(training_step=lambda self, batch, batch_idx: self.layer.weight.sum())
        run = trainer(max_epochs=1)
        run.fit(module, DataLoader(loader().dataset, 2, collate_fn=_none))
        assert run.global_step == 2


class TestDtypes:
    """Weights and data of different floating dtypes."""

    @pytest.mark.parametrize(
        ("dtype", "words"), [(torch.float16, "16-true"), (torch.bfloat16, "bf16-true"), (torch.float64, "64-true")]
    )
    def test_a_module_that_was_converted(self, dtype, words):
        name = str(dtype).removeprefix("torch.")
        note = note_of(RuntimeError, trainer().fit, Net().to(dtype), loader())
        assert note == (
            f"The weights of Net are {name}, and its data are float32.\n  Expected: one dtype, or mixed precision.\n"
            f"  Fix: Trainer(precision='{words}'), which converts weights and data, in place of converting the module."
        )
        if dtype is not torch.float16:  # which is slow on the CPU, with a warning
            trainer(precision=words).fit(Net(), loader())

    @pytest.mark.parametrize(("dtype", "words"), [(torch.float64, "64-true"), (torch.bfloat16, "bf16-true")])
    def test_data_of_another_dtype(self, dtype, words):
        data = DataLoader(TensorDataset(torch.ones(4, 2, dtype=dtype), torch.ones(4, 1, dtype=dtype)))
        note = note_of(RuntimeError, trainer().fit, Net(), data)
        name = str(dtype).removeprefix("torch.")
        assert note.startswith(f"The weights of Net are float32, and its data are {name}.\n")
        assert note.endswith(f"Fix: convert the data with tensor.float(), or Trainer(precision={words!r}).")
        trainer(precision=words).fit(Net(), data)

    def test_of_a_target(self):
        data = DataLoader(TensorDataset(torch.ones(4, 2), torch.ones(4, 1).double()))
        loss = with_methods(loss=lambda self, batch: (self.layer(batch[0]) @ batch[1]).sum())
        note = note_of(RuntimeError, trainer().fit, loss, data)
        assert note.startswith("The weights of Given are float32, and its data are float32 and float64.")

    def test_other_errors_get_no_note(self):
        wrong = DataLoader(TensorDataset(torch.ones(4, 3), torch.ones(4, 1)))
        assert note_of(RuntimeError, trainer().fit, Net(), wrong) == "none"
        same = with_methods(training_step=raising(RuntimeError("expected scalar type Float but found Half")))
        assert note_of(RuntimeError, trainer().fit, same, loader()) == "none"

    def test_under_fabric(self):
        x = torch.ones(1, 2)
        half = Fabric(accelerator="cpu").setup(torch.nn.Linear(2, 1).half())
        assert note_of(RuntimeError, half, x) == (
            "The weights of Linear are float16, and its data are float32.\n  Expected: one dtype, or mixed precision.\n"
            "  Fix: Fabric(precision='16-true'), which converts weights and data, in place of converting the module."
        )
        layer = torch.nn.Conv2d(1, 1, 1)
        note = note_of(RuntimeError, Fabric(accelerator="cpu").setup(layer), torch.ones(1, 1, 2, 2).double())
        assert "Fabric(precision='64-true')" in note
        lstm = Fabric(accelerator="cpu").setup(torch.nn.LSTM(2, 2).bfloat16())
        assert "Fabric(precision='bf16-true')" in note_of(ValueError, lstm, torch.ones(1, 1, 2))
        for words in ("bf16-true", "64-true"):
            model = Fabric(accelerator="cpu", precision=words).setup(torch.nn.Linear(2, 1))
            assert model(x).dtype is torch.float32


class TestMemory:
    """Errors of torch for lack of memory."""

    @pytest.mark.parametrize(
        "error",
        [
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
            RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"),
        ],
    )
    @pytest.mark.parametrize("after", [0, 2])
    def test_of_training(self, error, after):
        error.__dict__.pop("__notes__", None)
        module = with_methods(training_step=raising(error, after))
        note = note_of(RuntimeError, trainer().fit, module, loader())
        sizes = "parameters 12 B, gradients 12 B, optimizer state 0 B, batch of 1 sample 12 B"  # of 3 numbers each
        assert note == f"Given ran out of memory in training. This process holds: {sizes}.{TRAINING}"

    @pytest.mark.parametrize("verb", ["fit", "validate"])
    def test_of_validation(self, verb):
        module = with_methods(Validated, validation_step=raising(torch.OutOfMemoryError("CUDA out of memory.")))
        data = (loader(),) * (2 if verb == "fit" else 1)
        note = note_of(RuntimeError, getattr(trainer(), verb), module, *data)
        assert note.startswith("Given ran out of memory in validation. This process holds: parameters 12 B, ")
        assert note.endswith("Fix: a smaller batch_size of the validation loader.")

    def test_of_prediction(self):
        module = with_methods(predict_step=raising(MemoryError()))
        note = note_of(MemoryError, trainer().predict, module, loader())
        assert note.startswith(
            "Given ran out of memory in prediction. This process holds: parameters 12 B, batch of 1 sample 12 B.\n"
        )
        assert "trainer.predict(…, return_predictions=False)" in note


def test_errors_of_lightlib_keep_their_text():
    error = MisconfigurationException("CUDA out of memory.")
    assert (
        note_of(MisconfigurationException, trainer().fit, with_methods(training_step=raising(error)), loader())
        == "none"
    )


def _none(samples):
    return None
