"""ModelPruning: torch's pruning in a plain loop, numbers of Lightning, resumed runs, bad arguments."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import EMAWeightAveraging, ModelPruning
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.strategies import DeepSpeedStrategy
from tests.runs.modules import Regression
from tests.runs.quiet import QUIET
from tests.runs.saves_at import SavesAt

STEPS, EPOCHS = 6, 3
LIGHTNINGS_SUMS = [-0.0870995, 1.146749, 0.845452, 0.176611]
LIGHTNINGS_ZEROS = [9, 2, 6, 0]


class Net(Regression):
    """Two layers; AdamW keeps a state per parameter, by its number."""

    def __init__(self):
        torch.manual_seed(5)
        layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        super().__init__(layers, lambda parameters: torch.optim.AdamW(parameters, 0.02))


class Validated(Net):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4 * STEPS, 4, generator=generator)
    return DataLoader(TensorDataset(x, torch.randn(4 * STEPS, 2, generator=generator)), 4)


def fit(*callbacks, module=None, epochs=EPOCHS, trainer=None, **arguments):
    module = module or Net()
    trainer = trainer or L.Trainer(
        **{**QUIET, "gradient_clip_val": 0.5}, max_epochs=epochs, callbacks=list(callbacks), num_sanity_val_steps=0
    )
    given = [data()] if isinstance(module, Validated) else []
    trainer.fit(module, data(), *given, **arguments)
    return module


def pruning(fn="l1_unstructured", lottery=False, **options):
    options = {"amount": 0.3, **options}
    return ModelPruning(fn, use_lottery_ticket_hypothesis=lottery, **options)


def everything(module):
    layers = [part for part in module.modules() if isinstance(part, nn.Linear)]
    return [(layer, name) for name in ("weight", "bias") for layer in layers]


def each_l1(pairs):
    for layer, name in pairs:
        prune.l1_unstructured(layer, name, 0.3)


def all_l1(pairs):
    prune.global_unstructured(pairs, prune.L1Unstructured, amount=0.3)


def plain(prunes, lottery=False, pairs=everything, epochs=EPOCHS, keeps=False):
    """Train, and prune at the end of each epoch by the weights of that moment."""
    module = Net()
    first = copy.deepcopy(module)
    optimizer, pairs = module.configure_optimizers(), pairs(module)
    for epoch in range(epochs):
        for x, y in data():
            optimizer.zero_grad()
            F.mse_loss(module.net(x), y).backward()
            in_order = [p for group in optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(in_order, 0.5)
            optimizer.step()
        for layer, name in pairs:
            if hasattr(layer, f"{name}_mask"):
                setattr(layer, name, getattr(layer, f"{name}_mask") * getattr(layer, f"{name}_orig").detach())
        if callable(prunes) and not (keeps and epoch):
            prunes(pairs)
        if lottery:
            with torch.no_grad():
                for (layer, name), (then, _) in zip(pairs, everything(first), strict=True):
                    getattr(layer, f"{name}_orig").copy_(getattr(then, name))
    for layer, name in pairs:
        if hasattr(layer, f"{name}_mask"):
            prune.remove(layer, name)
    return module


def same(found, wanted):
    found, wanted = found.state_dict(), wanted.state_dict()
    return set(found) == set(wanted) and all(torch.equal(value, wanted[name]) for name, value in found.items())


class TestNumbers:
    @pytest.mark.parametrize("lottery", [False, True])
    @pytest.mark.parametrize("everywhere", [False, True])
    def test_are_those_of_torch(self, everywhere, lottery):
        module = fit(pruning(use_global_unstructured=everywhere, lottery=lottery))
        assert same(module, plain(all_l1 if everywhere else each_l1, lottery))
        if everywhere:
            zeros = sum(int((parameter == 0).sum()) for parameter in module.parameters())
            assert zeros == 58 - round(round(58 * 0.7) * 0.7 * 0.7)

    def test_have_those_of_lightning(self):
        """Recorded with Lightning 2.6.0 and torch 2.13: this module and data, pruned at the end of the first epoch."""
        module = fit(pruning(apply_pruning=lambda epoch: epoch == 0))
        assert [float(p.detach().sum()) for p in module.parameters()] == pytest.approx(LIGHTNINGS_SUMS, rel=1e-5)
        assert [int((p == 0).sum()) for p in module.parameters()] == LIGHTNINGS_ZEROS

    def test_of_structured_pruning(self):
        def rows(pairs):
            for layer, name in pairs:
                prune.ln_structured(layer, name, 0.3, n=2, dim=0)

        options = {"pruning_dim": 0, "pruning_norm": 2, "use_global_unstructured": False, "parameter_names": ["weight"]}
        module = fit(pruning("ln_structured", **options))
        assert same(module, plain(rows, pairs=lambda module: everything(module)[:2]))

    def test_of_random_pruning(self):
        def random(pairs):
            prune.global_unstructured(pairs, prune.RandomUnstructured, amount=0.3)

        state = {}

        class Seeds(L.Callback):
            priority = 0

            def on_train_epoch_end(self, trainer, pl_module):
                state.setdefault("rng", torch.get_rng_state())

        module = fit(Seeds(), pruning("random_unstructured"), epochs=1)
        torch.set_rng_state(state["rng"])
        wanted = Net()
        torch.set_rng_state(state["rng"])
        random(everything(wanted))
        masks = [wanted.net[i].get_buffer(f"{name}_mask") for i in (0, 2) for name in ("weight", "bias")]
        assert [(p != 0).tolist() for p in module.parameters()] == [mask.bool().tolist() for mask in masks]

    def test_of_a_class_and_a_list_of_parameters(self):
        module = Net()
        callback = pruning(prune.L1Unstructured, parameters_to_prune=[(module.net[0], "weight")], amount=5)
        assert [int((p == 0).sum()) for p in fit(callback, epochs=1, module=module).parameters()] == [5, 0, 0, 0]

    def test_of_functions_of_the_epoch(self):
        calls = []

        def amount(epoch):
            calls.append(epoch)
            return [0, 4, 6][epoch]

        module = fit(pruning(amount=amount))
        assert calls == [0, 1, 2]
        assert sum(int((p == 0).sum()) for p in module.parameters()) == 10

    def test_of_a_filter(self):
        class Weights(ModelPruning):
            def filter_parameters_to_prune(self, parameters_to_prune=()):
                return [one for one in parameters_to_prune if one[1] == "weight"]

        module = fit(Weights("l1_unstructured", amount=0.5, use_lottery_ticket_hypothesis=False), epochs=1)
        assert not any(int((module.net[i].bias == 0).sum()) for i in (0, 2))
        assert sum(int((module.net[i].weight == 0).sum()) for i in (0, 2)) == 24

    def test_resampled_weights_are_new_and_pruned(self):
        torch.manual_seed(1)
        module = fit(pruning(lottery=True, resample_parameters=True), epochs=1)
        first = Net().net[0].weight
        kept = module.net[0].weight != 0
        assert not torch.isclose(module.net[0].weight[kept], first[kept]).any()
        assert module.net[0].weight.abs().max() <= 0.5  # as a Linear of 4 inputs begins

    def test_at_the_end_of_validations(self):
        found = fit(pruning(prune_on_train_epoch_end=False), module=Validated())
        assert same(found, plain(all_l1))

    def test_are_logged(self, caplog):
        with caplog.at_level("INFO", "lightlib"):
            fit(pruning(verbose=2), epochs=1)
        assert "l1_unstructured pruned 0 -> 17 of 58 elements (29.31%)." in caplog.text
        assert "of Linear(in_features=4, out_features=8, bias=True).weight: 0 -> " in caplog.text

    def test_masks_stay_when_they_are_not_made_permanent(self):
        module = fit(pruning(make_pruning_permanent=False))
        assert {"net.0.bias_mask", "net.2.weight_mask"} <= {name for name, _ in module.named_buffers()}
        kept = copy.deepcopy(module)
        ModelPruning("l1_unstructured").make_pruning_permanent(kept)
        assert same(kept, plain(all_l1))


class TestResume:
    @pytest.mark.parametrize("kind", ["file", "directory"])
    @pytest.mark.parametrize("permanent", [True, False])
    @pytest.mark.parametrize("lottery", [True, False])
    @pytest.mark.parametrize("step", [3, 6, 8, 12, 15, 18])
    def test_ends_with_the_same_bits(self, step, lottery, permanent, kind, tmp_path):
        def made():
            return pruning(lottery=lottery, make_pruning_permanent=permanent)

        unbroken = fit(made(), SavesAt(tmp_path / "a.ckpt", step, format=kind))
        assert same(fit(made(), ckpt_path=tmp_path / "a.ckpt"), unbroken)

    @pytest.mark.parametrize("step", [3, 6, 8])
    def test_resamples_the_same(self, step, tmp_path):
        def made():
            return pruning(lottery=True, resample_parameters=True)

        unbroken = fit(made(), SavesAt(tmp_path / "a.ckpt", step))
        assert same(fit(made(), ckpt_path=tmp_path / "a.ckpt"), unbroken)

    def test_where_the_run_had_stopped_within_an_epoch(self, tmp_path):
        class Stops(L.Callback):
            def on_train_batch_end(self, trainer, *rest):
                trainer.should_stop = trainer.global_step == 8

        unbroken = fit(pruning("random_unstructured"), Stops(), SavesAt(tmp_path / "a.ckpt", 8))
        assert same(fit(pruning("random_unstructured"), ckpt_path=tmp_path / "a.ckpt"), unbroken)

    @pytest.mark.parametrize("step", [6, 8, 12])
    def test_in_validation(self, step, tmp_path):
        def made():
            return pruning(prune_on_train_epoch_end=False)

        unbroken = fit(made(), SavesAt(tmp_path / "a.ckpt", step), module=Validated())
        assert same(fit(made(), module=Validated(), ckpt_path=tmp_path / "a.ckpt"), unbroken)

    @pytest.mark.parametrize("permanent", [True, False])
    @pytest.mark.parametrize("step", [6, 8])
    def test_several(self, step, permanent, tmp_path):
        """One prunes the first layer and one the second; each has its state, and the file the masks of both."""

        def run(*callbacks, **arguments):
            module = Net()
            layers = [[(module.net[number], "weight")] for number in (0, 2)]
            options = {"lottery": True, "make_pruning_permanent": permanent}
            several = [pruning(parameters_to_prune=layer, **options) for layer in layers]
            several.append(pruning("random_unstructured", parameter_names=["bias"], **options))
            return fit(*several, *callbacks, module=module, **arguments)

        unbroken = run(SavesAt(tmp_path / "a.ckpt", step))
        assert same(run(ckpt_path=tmp_path / "a.ckpt"), unbroken)
        content = torch.load(tmp_path / "a.ckpt", weights_only=True)
        assert [key for key in content["callbacks"] if "ModelPruning" in key] == [
            "ModelPruning{'pruning_fn': 'l1_unstructured', 'parameters': ('Linear.weight[8, 4]',)}",
            "ModelPruning{'pruning_fn': 'l1_unstructured', 'parameters': ('Linear.weight[2, 8]',)}",
            "ModelPruning{'pruning_fn': 'random_unstructured', 'parameters': ('bias',)}",
        ]

    def test_two_with_the_same_key_are_refused_with_a_fix_that_helps(self):
        with pytest.raises(MisconfigurationException, match="Two callbacks would save their state under the key"):
            fit(pruning(), pruning(amount=0.1))
        fit(pruning(), pruning("random_unstructured", amount=0.1))

    @pytest.mark.parametrize("lottery", [True, False])
    def test_a_file_with_the_name_of_the_class_as_key(self, lottery, tmp_path):
        """As lightlib and Lightning wrote it."""
        path = tmp_path / "a.ckpt"
        unbroken = fit(pruning(lottery=lottery), SavesAt(path, 8))
        content = torch.load(path, weights_only=True)
        key = pruning().state_key
        content["callbacks"] = {"ModelPruning" if k == key else k: v for k, v in content["callbacks"].items()}
        torch.save(content, path)
        assert "ModelPruning" in content["callbacks"]
        assert same(fit(pruning(lottery=lottery), ckpt_path=path), unbroken)

    def test_from_other_first_weights(self, tmp_path):
        """The first values to go back to are those of the run, and not those of the program that resumes it."""
        unbroken = fit(pruning(lottery=True), SavesAt(tmp_path / "a.ckpt", 8))
        other = Net()
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(1.0)
        assert same(fit(pruning(lottery=True), module=other, ckpt_path=tmp_path / "a.ckpt"), unbroken)

    def test_a_file_does_not_hold_computed_weights(self, tmp_path):
        fit(pruning(), SavesAt(tmp_path / "a.ckpt", 14))
        content = torch.load(tmp_path / "a.ckpt", weights_only=True)
        assert not content["lightlib"]["user"]["values"]["module"]

    def test_weights_of_a_file_load_without_masks(self, tmp_path):
        fit(pruning(), SavesAt(tmp_path / "a.ckpt", 14), SavesAt(tmp_path / "w.ckpt", 14, weights_only=True))
        for name in ("a.ckpt", "w.ckpt"):
            loaded = Net.load_from_checkpoint(tmp_path / name)
            assert sum(int((p == 0).sum()) for p in loaded.parameters()) == 58 - round(58 * 0.7 * 0.7 + 0.5)
        assert "current_model_state" not in torch.load(tmp_path / "w.ckpt", weights_only=True)


class TestWrongArguments:
    @pytest.mark.parametrize(
        ("make", "error", "text"),
        [
            (lambda: ModelPruning("l2"), UnknownNameError, "l2"),
            (lambda: ModelPruning(3), ArgumentTypeError, "pruning_fn=3"),
            (lambda: ModelPruning("random_structured"), MisconfigurationException, "without pruning_dim"),
            (lambda: ModelPruning("ln_structured", pruning_dim=0), MisconfigurationException, "without pruning_norm"),
            (lambda: ModelPruning("random_structured", pruning_dim=0), MisconfigurationException, "'structured'"),
            (
                lambda: ModelPruning(prune.L1Unstructured, use_global_unstructured=False),
                MisconfigurationException,
                "use_global_unstructured=False",
            ),
            (lambda: pruning(amount="much"), ArgumentTypeError, "amount='much'"),
            (lambda: pruning(amount=1.5), MisconfigurationException, "amount=1.5"),
            (lambda: pruning(amount=-1), MisconfigurationException, "amount=-1"),
            (lambda: pruning(verbose=3), MisconfigurationException, "verbose=3"),
            (lambda: pruning(apply_pruning=1), ArgumentTypeError, "apply_pruning=1"),
            (lambda: pruning(make_pruning_permanent="yes"), ArgumentTypeError, "make_pruning_permanent='yes'"),
            (lambda: pruning(parameter_names=["weights"]), UnknownNameError, "weights"),
            (lambda: fit(pruning(parameters_to_prune=["net.0"])), ArgumentTypeError, "parameters_to_prune="),
            (
                lambda: fit(pruning(parameters_to_prune=[(nn.Linear(1, 1), "weight")])),
                MisconfigurationException,
                "'weight' of Linear, which Net does not have",
            ),
            (
                lambda: fit(pruning("random_structured", pruning_dim=0, use_global_unstructured=False)),
                MisconfigurationException,
                "of one dimension",
            ),
            (
                lambda: fit(pruning(), EMAWeightAveraging()),
                MisconfigurationException,
                "two callbacks that put other weights",
            ),
        ],
    )
    def test_are_refused(self, make, error, text):
        with pytest.raises(error, match=text) as caught:
            make()
        assert "Expected: " in str(caught.value)
        assert "Fix: " in str(caught.value)

    def test_a_strategy_that_trains_copies_of_the_parameters(self):
        trainer = SimpleNamespace(strategy=DeepSpeedStrategy(), callbacks=[])
        with pytest.raises(MisconfigurationException, match="got a DeepSpeedStrategy"):
            pruning().setup(trainer, Net(), "fit")
