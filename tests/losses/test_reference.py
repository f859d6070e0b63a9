"""ReferenceModel in a run: it stays as it was, in eval mode, out of checkpoints, and is built again."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lightlib import checkpoint
from lightlib.callbacks import ModelCheckpoint
from lightlib.errors import ArgumentTypeError
from lightlib.losses import ReferenceModel
from tests.runs.modules import Validated
from tests.runs.plain import batches, loader, network, quiet_trainer


class Difference(nn.Module):
    """The scores of a policy minus those of its reference, which has dropout."""

    def __init__(self):
        super().__init__()
        self.policy, self.reference = network(), ReferenceModel(network(dropout=0.5))
        self.modes = set()

    def forward(self, x):
        self.modes.add((self.training, self.policy.training, *(part.training for part in self.reference.modules())))
        return self.policy(x) - self.reference(x)


def module():
    result = Validated(lambda _: torch.optim.AdamW(result.net.policy.parameters(), 0.01), net=Difference())
    return result


def test_it_is_a_frozen_copy_in_eval_mode():
    model = network(dropout=0.5).train()
    reference, x = ReferenceModel(model), torch.ones(2, 6)
    expected = model.eval()(x)
    model.train()
    with torch.no_grad():
        model[0].weight.add_(1)
    assert reference.train().train(True)(x).equal(expected)
    assert not reference(x).requires_grad
    assert not any(part.training for part in reference.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(ArgumentTypeError, match=r"model=5(?s:.)*ReferenceModel\(self.model\)"):
        ReferenceModel(5)


def test_a_run_trains_as_a_plain_loop_and_keeps_it_out_of_checkpoints(tmp_path):
    trained, saver = module(), ModelCheckpoint(tmp_path, save="trainable")
    options = {"enable_checkpointing": True, "max_epochs": 2, "callbacks": [saver]}
    quiet_trainer(**options).fit(trained, loader(24), loader(8))
    policy, reference = network(), network().requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), 0.01)
    for x, y in batches(6) * 2:
        optimizer.zero_grad()
        cross_entropy(policy(x) - reference(x), y).backward()
        optimizer.step()
    found = trained.net.state_dict()
    for name, value in policy.state_dict().items():
        assert found[f"policy.{name}"].equal(value)
        assert found[f"reference.model.{name}"].equal(reference.state_dict()[name])
    in_eval = (False,) * 6  # the reference, its model, and four layers
    assert trained.net.modes == {(True, True, *in_eval), (False, False, *in_eval)}
    saved = checkpoint.load(saver.best_model_path)["state_dict"]
    assert set(saved) == {f"net.policy.{name}" for name in policy.state_dict()}
    again = module()
    quiet_trainer().validate(again, loader(8), ckpt_path=saver.best_model_path)
    assert all(again.net.state_dict()[name].equal(value) for name, value in found.items())
