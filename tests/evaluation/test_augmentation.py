"""TestTimeAugmentation: equal to a plain loop over the versions of each batch; wrong use."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

import lightlib as L
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.evaluation import TestTimeAugmentation
from tests.evaluation.modules import loader
from tests.runs.bad_input import refused
from tests.runs.plain import Net, quiet_trainer, with_methods


class Calls(Net):
    """Calls itself in every step."""

    def forward(self, x):
        return self.net(x)

    def validation_step(self, batch, batch_idx):
        self.log("loss", cross_entropy(self(batch[0]), batch[1]))

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self(batch[0])


def flipped(x):
    return x.flip(1)


def scaled(x):
    return x * 1.5


VERSIONS = (lambda x: x, flipped, scaled)


def by_hand(net, n=7, versions=VERSIONS, merge=lambda outputs: torch.stack(outputs).mean(0)):
    with torch.no_grad():
        return [(merge([net(version(x)) for version in versions]), y) for x, y in loader(n)]


def test_predictions_are_those_of_a_plain_loop():
    module = Calls()
    tta = TestTimeAugmentation([flipped, scaled])
    trainer = quiet_trainer(callbacks=[tta])
    for _ in range(2):
        found = trainer.predict(module, loader(7))
        assert all(one.equal(other) for one, (other, _) in zip(found, by_hand(module.net), strict=True))
    assert tta.num_views == 3
    x, _ = next(iter(loader(7)))
    assert module(x).equal(module.net(x))  # nothing is left behind


@pytest.mark.parametrize("stage", ["test", "val"])
def test_logged_values_are_those_of_the_merged_output(stage):
    module = Calls()
    trainer = quiet_trainer(callbacks=[TestTimeAugmentation([flipped, scaled], stages=stage)])
    (found,) = (trainer.test if stage == "test" else trainer.validate)(module, loader(8), verbose=False)
    losses = [float(cross_entropy(logits, y)) for logits, y in by_hand(module.net, 8)]
    assert found["loss"] == pytest.approx(sum(losses) / 4, rel=1e-6)


def test_other_ways_to_merge():
    module = Calls()
    for merge, expected in (
        ("max", lambda outputs: torch.stack(outputs).amax(0)),
        (lambda outputs: outputs[-1] - outputs[0], lambda outputs: outputs[-1] - outputs[0]),
    ):
        trainer = quiet_trainer(callbacks=[TestTimeAugmentation([flipped, scaled], merge=merge, original=False)])
        found = trainer.predict(module, loader(7))
        hand = by_hand(module.net, versions=VERSIONS[1:], merge=expected)
        assert all(one.equal(other) for one, (other, _) in zip(found, hand, strict=True))


class Several(L.Module):
    """Two inputs and a dict of outputs, of which one has the shape of the input."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(6, 6)

    def forward(self, x, y, scale=1.0):
        return {"mask": self.net(x) * scale, "all": [self.net(x).sum(1), y]}

    def predict_step(self, batch, batch_idx):
        return self(*batch, scale=2.0)


def test_outputs_are_undone_and_keep_their_structure():
    module = Several()

    def undo(outputs):
        return {**outputs, "mask": outputs["mask"].flip(1)}

    tta = TestTimeAugmentation([(lambda x, y: (x.flip(1), y + 1.0), undo)])
    batches = [(x, y.float()) for x, y in loader(3, size=3)]
    (found,) = quiet_trainer(callbacks=[tta]).predict(module, batches)
    ((x, y),) = batches
    with torch.no_grad():
        plain, other = module.net(x), module.net(x.flip(1))
    assert found["mask"].equal(torch.stack([plain * 2.0, (other * 2.0).flip(1)]).mean(0))
    assert found["all"][0].equal(torch.stack([plain.sum(1), other.sum(1)]).mean(0))
    assert found["all"][1].equal(torch.stack([y, y + 1.0]).mean(0))


def test_a_submodule():
    net = torch.nn.Linear(6, 3)
    module = L.Module.from_model(net, torch.nn.CrossEntropyLoss())
    found = quiet_trainer(callbacks=[TestTimeAugmentation([flipped, scaled], module="model")]).predict(
        module, loader(7)
    )
    assert all(one.equal(other) for one, (other, _) in zip(found, by_hand(net), strict=True))


def test_training_and_validation_are_left_alone():
    nets = []
    for callbacks in ([], [TestTimeAugmentation([flipped])]):
        module = Calls()
        trainer = quiet_trainer(callbacks=callbacks)
        trainer.fit(module, loader(8), loader(4))
        nets.append((module.net[0].weight, trainer.callback_metrics["loss"]))
    assert all(one.equal(other) for one, other in zip(*nets, strict=True))


def test_steps_must_call_the_model():
    net2 = with_methods(Calls, test_step=lambda self, batch, batch_idx: self.net(batch[0]))
    with refused(
        MisconfigurationException,
        "TestTimeAugmentation: a step of Given did not call Given, so nothing was augmented.",
        "steps that call it: self(x)***",
        "TestTimeAugmentation(…, module='net')***",
    ):
        quiet_trainer(callbacks=[TestTimeAugmentation([flipped])]).test(net2, loader(4), verbose=False)


def test_no_hook_is_left_after_an_error():
    module = Calls()

    def broken(x):
        raise ValueError("broken on purpose")

    with pytest.raises(ValueError, match="broken on purpose"):
        quiet_trainer(callbacks=[TestTimeAugmentation([broken])]).predict(module, loader(4))
    assert len(module._forward_hooks) == 0


def test_outputs_of_other_shapes():
    tta = TestTimeAugmentation([lambda x: x[:1]])
    with pytest.raises(
        MisconfigurationException, match=r"cannot merge outputs with tensors of shapes \[\(2, 3\)\], \[\(1, 3"
    ):
        quiet_trainer(callbacks=[tta]).predict(Calls(), loader(4))


def test_bad_input():
    with pytest.raises(ArgumentTypeError, match=r"TestTimeAugmentation\(augmentations="):
        TestTimeAugmentation(flipped)
    with pytest.raises(MisconfigurationException, match="at least one augmentation"):
        TestTimeAugmentation([])
    for wrong in ("flip", (flipped, "flip"), (flipped, flipped, flipped)):
        with pytest.raises(ArgumentTypeError, match="TestTimeAugmentation got the augmentation"):
            TestTimeAugmentation([wrong])
    with pytest.raises(UnknownNameError, match="merge of TestTimeAugmentation"):
        TestTimeAugmentation([flipped], merge="median")
    with pytest.raises(ArgumentTypeError, match=r"TestTimeAugmentation\(merge=3"):
        TestTimeAugmentation([flipped], merge=3)
    with pytest.raises(ArgumentTypeError, match=r"TestTimeAugmentation\(module=3"):
        TestTimeAugmentation([flipped], module=3)
    with pytest.raises(UnknownNameError, match="stages of TestTimeAugmentation"):
        TestTimeAugmentation([flipped], stages="train")
    with pytest.raises(UnknownNameError, match="submodule of Calls"):
        quiet_trainer(callbacks=[TestTimeAugmentation([flipped], module="nett")]).predict(Calls(), loader(4))
