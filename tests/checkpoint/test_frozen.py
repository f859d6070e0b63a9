"""Checkpoints without frozen weights: their content, and all that reads them."""

from __future__ import annotations

import copy
import signal

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy

import lightlib as L
from lightlib import checkpoint
from lightlib.callbacks import BackboneFinetuning, Callback, LambdaCallback, ModelCheckpoint, RestoreBest
from lightlib.errors import ArgumentTypeError, CheckpointError, MisconfigurationException
from lightlib.report import PossibleUserWarning
from tests.callbacks.checkpoint.best import RUN, Stop
from tests.runs import modules, plain
from tests.runs.plain import batches, loader, momentum, network

TRAINED = ["net.3.weight", "net.3.bias"]


def adapted(change=None):
    """A module with its first layer frozen, with other first values of it if they change."""
    module = modules.Validated(momentum)
    module.net[0].requires_grad_(False)
    if change is not None:
        module.net[0].weight.data += change
    return module


def by_hand(epochs=4):
    net = network()
    net[0].requires_grad_(False)
    optimizer = torch.optim.SGD(net[3].parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for x, y in batches(6):
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()
    return net.state_dict()


def saver(folder, **options):
    return ModelCheckpoint(folder, "{epoch}", **{"save": "trainable", "save_last": True, **options})


def fit(folder, *callbacks, module=None, **options):
    module = module or adapted()
    resume = {name: options.pop(name) for name in ("ckpt_path", "resume") if name in options}
    trainer = L.Trainer(**RUN | options, default_root_dir=folder, limit_val_batches=0, callbacks=[*callbacks])
    trainer.fit(module, loader(24), **resume)
    return module, trainer


def assert_by_hand(module, epochs=4):
    assert all(torch.equal(value, by_hand(epochs)[name]) for name, value in module.net.state_dict().items())


@pytest.mark.parametrize("options", [{}, {"async_save": True}, {"format": "directory"}, {"save_weights_only": True}])
def test_a_checkpoint_holds_the_trained_weights_and_names_the_others(tmp_path, options):
    callback = saver(tmp_path, **options)
    fit(tmp_path, callback)
    content = checkpoint.load(callback.best_model_path)
    assert sorted(content["state_dict"]) == sorted(TRAINED)
    assert sorted(content["frozen_weights"]["tensors"]) == ["net.0.bias", "net.0.weight"]
    module, trainer = adapted(), L.Trainer(**RUN, default_root_dir=tmp_path)
    trainer.validate(module, loader(1), ckpt_path=callback.best_model_path)
    assert_by_hand(module)


@pytest.mark.parametrize("options", [{}, {"async_save": True}, {"format": "directory"}])
def test_a_resumed_run_ends_with_the_weights_of_a_plain_loop(tmp_path, options):
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit(tmp_path, saver(tmp_path, **options), Stop(2))
    callback = saver(tmp_path, **options)
    module, _ = fit(tmp_path, callback, Stop(None), ckpt_path="last")
    assert_by_hand(module)
    assert sorted(checkpoint.load(callback.best_model_path)["state_dict"]) == sorted(TRAINED)


def test_a_large_base_costs_nothing(tmp_path):
    module = plain.Net(momentum)
    base = nn.Linear(6, 500_000).requires_grad_(False)  # 14 MB
    module.net = nn.Sequential(base, nn.Linear(500_000, 3, bias=False))
    module.net[1].weight = nn.Parameter(torch.zeros(3, 1).expand(3, 500_000).contiguous(), requires_grad=False)
    module.net.append(nn.Linear(3, 3))
    callback = saver(tmp_path, save_last=False)
    fit(tmp_path, callback, module=module, max_epochs=1)
    with open(callback.best_model_path, "rb") as file:
        assert len(file.read()) < 50_000


def test_it_is_loaded_into_a_module_that_is_built_in_the_same_way(tmp_path):
    callback = saver(tmp_path)

    fit(tmp_path, callback)
    module = plain.Net.load_from_checkpoint(callback.best_model_path, net=adapted().net)
    assert_by_hand(module)
    with pytest.raises(CheckpointError, match=r"builds other values of 'net\.0\.weight'"):
        plain.Net.load_from_checkpoint(callback.best_model_path, net=adapted(change=1.0).net)


def test_another_base_ends_a_resume_before_anything_is_trained_or_written(tmp_path):
    callback = saver(tmp_path)
    fit(tmp_path, callback, max_epochs=2)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.ckpt")}
    with pytest.raises(CheckpointError, match="1 cannot be restored") as error:
        fit(tmp_path, saver(tmp_path), module=adapted(change=0.5), ckpt_path="last")
    assert "configure_model" in str(error.value)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.ckpt")} == before


@pytest.mark.parametrize("suffix", ["safetensors", "ckpt"])
def test_a_source_is_found_by_its_values_under_any_names(tmp_path, suffix):
    base = {f"backbone.{name}": value for name, value in network()[0].state_dict().items()}
    source = tmp_path / f"base.{suffix}"
    save_file(base, source) if suffix == "safetensors" else torch.save(base, source)
    callback = saver(tmp_path, frozen_source=source)
    fit(tmp_path, callback)
    assert sorted(checkpoint.load(callback.best_model_path)["state_dict"]) == sorted(TRAINED)
    module = adapted(change=0.5)  # built with different ones
    L.Trainer(**RUN, default_root_dir=tmp_path).validate(module, loader(1), ckpt_path=callback.best_model_path)
    assert_by_hand(module)
    source.unlink()
    with pytest.raises(CheckpointError, match="base"):
        L.Trainer(**RUN).validate(adapted(change=0.5), loader(1), ckpt_path=callback.best_model_path)


class Writes(Callback):
    """Writes to a frozen weight in the third epoch, past torch's count of writes."""

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 2:
            pl_module.net[0].bias.data += 1.0


def test_a_frozen_weight_that_is_written_to_is_saved_from_then_on(tmp_path):
    callback = saver(tmp_path, save_top_k=-1)
    whole, _ = fit(tmp_path, callback, Writes())
    assert "net.0.bias" not in checkpoint.load(str(tmp_path / "epoch=1.ckpt"))["state_dict"]
    held = checkpoint.load(str(tmp_path / "epoch=2.ckpt"))["state_dict"]
    assert sorted(held) == sorted(["net.0.bias", *TRAINED])
    module, _ = fit(tmp_path, saver(tmp_path), Writes(), ckpt_path=str(tmp_path / "epoch=2.ckpt"))
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in module.state_dict().items())
    assert sorted(checkpoint.load(str(tmp_path / "last.ckpt"))["state_dict"]) == sorted(["net.0.bias", *TRAINED])


@pytest.mark.parametrize("places", [slice(2, 4), slice(1, 7, 3), slice(0, 8)])
def test_a_frozen_mask_that_loses_some_of_its_ones_is_saved(tmp_path, places):
    module = adapted()
    module.mask = nn.Parameter(torch.ones(8), requires_grad=False)
    masks = LambdaCallback(on_train_epoch_start=lambda trainer, module: module.mask.data[places].zero_())
    callback = saver(tmp_path)
    fit(tmp_path, masks, callback, module=module, max_epochs=1)
    assert torch.equal(checkpoint.load(callback.best_model_path)["state_dict"]["mask"], module.mask)


def with_backbone():
    module = plain.Net(lambda parameters: torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.1))
    module.backbone, module.head = module.net[0], module.net[3]
    return module


def test_a_backbone_is_saved_once_it_is_trained(tmp_path):
    def tunes():
        return BackboneFinetuning(unfreeze_backbone_at_epoch=2, lambda_func=lambda epoch: 1.0, verbose=False)

    whole, _ = fit(tmp_path / "whole", saver(tmp_path / "whole", save_top_k=-1), tunes(), module=with_backbone())
    sizes = [len(checkpoint.load(str(tmp_path / f"whole/epoch={n}.ckpt"))["state_dict"]) for n in range(4)]
    assert sizes == [4, 4, 8, 8]  # each name twice
    for epoch in (0, 2):
        path = str(tmp_path / f"whole/epoch={epoch}.ckpt")
        module, _ = fit(tmp_path / "cut", saver(tmp_path / "cut"), tunes(), module=with_backbone(), ckpt_path=path)
        assert all(torch.equal(value, whole.state_dict()[name]) for name, value in module.state_dict().items())


def test_weights_of_a_complete_checkpoint_are_saved_unless_it_is_the_source(tmp_path):
    base = adapted(change=0.5)
    L.Trainer(**RUN | {"max_epochs": 1, "limit_val_batches": 0}, default_root_dir=tmp_path).fit(base, loader(24))
    full = str(tmp_path / "full.ckpt")
    base.trainer.save_checkpoint(full)
    callback = saver(tmp_path / "a", save_last=False)
    with pytest.warns(PossibleUserWarning, match="2 frozen parameters as well"):
        fit(tmp_path, callback, ckpt_path=full, resume="weights")
    assert not checkpoint.load(callback.best_model_path)["frozen_weights"]["tensors"]
    callback = saver(tmp_path / "b", save_last=False, frozen_source=full)
    trained, _ = fit(tmp_path, callback, ckpt_path=full, resume="weights")
    assert sorted(checkpoint.load(callback.best_model_path)["state_dict"]) == sorted(TRAINED)
    module = adapted()
    L.Trainer(**RUN).validate(module, loader(1), ckpt_path=callback.best_model_path)
    assert all(torch.equal(value, trained.state_dict()[name]) for name, value in module.state_dict().items())


def test_the_best_is_restored(tmp_path):
    logs = LambdaCallback(
        on_train_epoch_end=lambda trainer, module: module.log("val_loss", abs(trainer.current_epoch - 1.0))
    )
    module, _ = fit(tmp_path, logs, saver(tmp_path, monitor="val_loss"), RestoreBest())
    assert_by_hand(module, epochs=2)


def test_other_saves_of_the_run_are_complete(tmp_path):
    fit(tmp_path, saver(tmp_path), ModelCheckpoint(tmp_path, "full-{step}", every_n_train_steps=24))
    assert len(checkpoint.load(str(tmp_path / "full-step=24.ckpt"))["state_dict"]) == 4


class Interrupts(Callback):
    """Ends a run as `kill` does."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 5:
            signal.raise_signal(signal.SIGTERM)


def test_a_run_that_is_stopped_leaves_them_out_as_well(tmp_path):
    with pytest.raises(SystemExit):
        fit(tmp_path, saver(tmp_path), Interrupts())
    interrupted = str(tmp_path / "interrupted.ckpt")
    assert sorted(checkpoint.load(interrupted)["state_dict"]) == sorted(TRAINED)
    callback = saver(tmp_path)
    assert_by_hand(fit(tmp_path, callback, ckpt_path=interrupted)[0])
    assert sorted(checkpoint.load(callback.best_model_path)["state_dict"]) == sorted(TRAINED)


def test_in_another_precision_the_rounded_values_count(tmp_path):
    callback = saver(tmp_path)
    whole, _ = fit(tmp_path, callback, precision="bf16-true")
    module = adapted()
    L.Trainer(**RUN).validate(module, loader(1), ckpt_path=callback.best_model_path)
    assert torch.equal(module.net[0].weight, whole.net[0].weight.float())
    assert not torch.equal(module.net[0].weight, network()[0].weight)


def test_tools_name_and_keep_what_is_left_out(tmp_path):
    callback = saver(tmp_path)
    fit(tmp_path, callback)
    path = callback.best_model_path
    assert "2 frozen weights" in str(checkpoint.inspect(path))
    for other in (checkpoint.publish(path, tmp_path / "released"), str(tmp_path / "moved.ckpt")):
        if other.endswith("moved.ckpt"):
            checkpoint.convert(path, other, "file", prefix="model.")
            assert "model.net.0.weight" in checkpoint.load(other)["frozen_weights"]["tensors"]
        else:
            assert_by_hand(plain.Net.load_from_checkpoint(other, net=adapted().net))
    with pytest.warns(PossibleUserWarning, match="leaves out 2 frozen weights"):
        checkpoint.export(path, tmp_path / "weights.safetensors")


def test_nothing_is_frozen(tmp_path):
    with pytest.warns(PossibleUserWarning, match="no parameter of the module is frozen"):
        fit(tmp_path, saver(tmp_path), module=plain.Net(momentum), max_epochs=1)


@pytest.mark.parametrize(
    ("error", "options", "text"),
    [
        (MisconfigurationException, {"save": "frozen"}, "'trainable'"),
        (ArgumentTypeError, {"frozen_source": 3}, "frozen_source=3"),
        (MisconfigurationException, {"save": "all", "frozen_source": "base.ckpt"}, "save='all'"),
        (CheckpointError, {"frozen_source": "nowhere.ckpt"}, "nowhere"),
    ],
)
def test_wrong_arguments(tmp_path, error, options, text):
    with pytest.raises(error, match=text):
        saver(tmp_path, **options)


def test_a_deep_copy_of_the_callback_is_its_own(tmp_path):
    callback = saver(tmp_path)
    copied = copy.deepcopy(callback)
    fit(tmp_path, callback, max_epochs=1)
    copied.dirpath = str(tmp_path / "other")
    fit(tmp_path, copied, max_epochs=1)
    assert sorted(checkpoint.load(copied.best_model_path)["state_dict"]) == sorted(TRAINED)
