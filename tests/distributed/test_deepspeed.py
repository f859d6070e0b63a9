"""DeepSpeed in two processes: the numbers of a plain loop on one device, in every stage of ZeRO."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.strategies.deepspeed.deepspeed_strategy import DeepSpeedStrategy
from tests.processes.ranks import ranks
from tests.runs.plain import with_methods
from tests.runs.quiet import QUIET

pytestmark = [
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed"),
    pytest.mark.timeout(600),  # it compiles parts of itself when they are first used
]
SMALL = {"reduce_bucket_size": 10_000, "allgather_bucket_size": 10_000, "sub_group_size": 40}
BATCH, WIDTH, CLASSES = 8, 17, 5


class Net(L.Module):
    """Two groups of parameters with different rates, of sizes that two processes cannot share out evenly."""

    def __init__(self, optimizer: str = "AdamW", weighted: bool = False, lazily: bool = False) -> None:
        super().__init__()
        self.kind, self.weighted = optimizer, weighted
        self.body: Any = None
        if not lazily:
            self.configure_model()

    def configure_model(self) -> None:
        if self.body is None:
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Linear(4, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))
            self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) * self.scale.mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        if self.weighted:
            keep = y > 0
            loss = (F.cross_entropy(self(x), y, reduction="none") * keep).sum()
            return {"loss": loss, "weight": keep.sum()}
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self(batch[0]).argmax(-1)

    def configure_optimizers(self) -> Any:
        first, *rest = self.body.parameters()
        options = {"momentum": 0.9} if self.kind == "SGD" else {}
        groups = [{"params": [first], "lr": 3e-2}, {"params": [*rest, self.scale]}]
        optimizer = getattr(torch.optim, self.kind)(groups, lr=1e-2, **options)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def data(samples: int = 56) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(samples, 4, generator=generator), torch.randint(CLASSES, (samples,), generator=generator)
    )


def trainer(devices: int = 1, strategy: Any = "auto", **options: Any) -> L.Trainer:
    warnings.filterwarnings("ignore", category=FutureWarning)  # DeepSpeed calls functions that torch 2.13 deprecates
    return L.Trainer(
        **QUIET, devices=devices, strategy=strategy, **{"max_epochs": 2, "gradient_clip_val": 0.5} | options
    )


def run(devices: int, strategy: dict[str, Any] | None, options: dict[str, Any], **net: Any) -> dict[str, Any]:
    """Train, and return the results to compare."""
    chosen = "auto" if strategy is None else DeepSpeedStrategy(**{**SMALL, **strategy})
    module = Net(**net)
    saved = options.pop("save", None)
    ckpt_path = options.pop("resume", None)
    run = trainer(devices, chosen, **options)
    loader = DataLoader(data(), BATCH // devices)
    run.fit(module, loader, loader, ckpt_path=ckpt_path)
    if saved is not None:
        run.save_checkpoint(saved)
    clipped = options.get("gradient_clip_val", 0.5) is not None
    return {
        "steps": run.global_step,
        "norm": float(run.gradient_norm) if clipped else 0.0,
        "metrics": {name: float(value) for name, value in run.callback_metrics.items()},
        "lr": [group["lr"] for group in run.optimizers[0].param_groups],
        "weights": {name: value.clone() for name, value in run.strategy.module_state().items()},
    }


def run_with(rank: int, strategy: dict[str, Any], options: dict[str, Any], net: dict[str, Any]) -> dict[str, Any]:
    return run(2, strategy, dict(options), **net)


def together(strategy: dict[str, Any], options: dict[str, Any], **net: Any) -> dict[str, Any]:
    result: dict[str, Any] = ranks(2, run_with, strategy, options, net)[0]
    return result


def assert_same(one: dict[str, Any], other: dict[str, Any], tolerance: float = 1e-5) -> None:
    assert one["steps"] == other["steps"]
    assert one["lr"] == pytest.approx(other["lr"])
    assert one["norm"] == pytest.approx(other["norm"], rel=tolerance)
    assert one["metrics"] == pytest.approx(other["metrics"], rel=tolerance)
    assert one["weights"].keys() == other["weights"].keys()
    for name, value in one["weights"].items():
        torch.testing.assert_close(value, other["weights"][name], rtol=tolerance, atol=tolerance, msg=name)


def plain_loop(steps: int, accumulate: int, clip: float) -> dict[str, torch.Tensor]:
    net = Net()
    configured = net.configure_optimizers()
    optimizer, schedule = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    batches = list(DataLoader(data(), BATCH))
    windows = [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]
    for step in range(steps):
        window = windows[step % len(windows)]
        optimizer.zero_grad()
        for x, y in window:
            (F.cross_entropy(net(x), y) / len(window)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        schedule.step()
    return net.state_dict()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_stages_give_the_numbers_of_one_device(stage: int) -> None:
    """Seven batches per epoch: with windows of three the last one is shorter."""
    options = {"accumulate_grad_batches": 3}
    alone, result = run(1, None, dict(options)), together({"stage": stage}, options)
    assert_same(result, alone)
    for name, value in plain_loop(6, 3, 0.5).items():
        torch.testing.assert_close(result["weights"][name], value, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("stage", [2, 3])
def test_optimizer_state_on_the_cpu_gives_the_same_numbers(stage: int) -> None:
    options = {"accumulate_grad_batches": 3}
    offload = {"stage": stage, "offload_optimizer": True, "offload_parameters": stage == 3}
    assert_same(together(offload, options), run(1, None, dict(options)))


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_weighted_losses_are_exact_over_processes_and_windows(stage: int) -> None:
    """With SGD: its steps show a wrong factor that AdamW would hide."""
    options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.9}
    net = {"optimizer": "SGD", "weighted": True}
    assert_same(together({"stage": stage}, options, **net), run(1, None, dict(options), **net))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_checkpoints_move_between_one_device_and_deepspeed(stage: int, tmp_path: Any) -> None:
    whole = run(1, None, {})
    one, two = str(tmp_path / "one.ckpt"), str(tmp_path / "two.ckpt")
    run(1, None, {"max_epochs": 1, "save": one})
    together({"stage": stage}, {"max_epochs": 1, "save": two})
    first, second = (torch.load(path, weights_only=True)["optimizer_states"][0] for path in (one, two))
    assert first["param_groups"] == second["param_groups"]
    for index, entry in first["state"].items():
        for key, value in entry.items():
            torch.testing.assert_close(second["state"][index][key], value, rtol=1e-5, atol=1e-6)
    assert_same(together({"stage": stage}, {"resume": one}), whole)
    assert_same(together({"stage": stage}, {"resume": two}), whole)
    with pytest.warns(match="written by 2 processes and is resumed by 1: weights, optimizers, schedules"):
        assert_same(run(1, None, {"resume": two}), whole)


def spread_at_once(rank: int) -> dict[str, Any]:
    module = Net(lazily=True)
    run = trainer(2, DeepSpeedStrategy(stage=3, **SMALL), max_epochs=1)
    loader = DataLoader(data(), BATCH // 2)
    first = run.validate(module, loader, verbose=False)[0]
    sizes = sum(p.ds_tensor.numel() for p in module.parameters())
    run.fit(module, loader, loader)
    after = run.validate(module, loader, verbose=False)[0]
    predicted = run.predict(module, DataLoader(data(), BATCH // 2))
    state = {name: value.clone() for name, value in run.strategy.module_state().items()}
    run.max_epochs = 2
    run.fit(module, loader, loader)
    return {
        "first": first["val_loss"], "after": after["val_loss"], "sizes": sizes, "state": state,
        "predicted": sum(len(batch) for batch in predicted), "epochs": run.current_epoch,
        "again": {name: value.clone() for name, value in run.strategy.module_state().items()},
    }  # fmt: skip


def test_stage_3_builds_spread_evaluates_alone_and_fits_twice() -> None:
    results = ranks(2, spread_at_once)
    whole = sum(p.numel() for p in Net().parameters())
    assert whole / 2 <= results[0]["sizes"] <= whole / 2 + 8
    alone = trainer(max_epochs=1)
    module = Net()
    loader = DataLoader(data(), BATCH)
    assert results[0]["first"] == pytest.approx(alone.validate(module, loader, verbose=False)[0]["val_loss"], rel=1e-5)
    alone.fit(module, loader, loader)
    assert results[0]["after"] == pytest.approx(alone.validate(module, loader, verbose=False)[0]["val_loss"], rel=1e-5)
    for name, value in alone.strategy.module_state().items():
        torch.testing.assert_close(results[0]["state"][name], value, rtol=1e-5, atol=1e-5, msg=name)
    assert [result["predicted"] for result in results] == [28, 28]
    alone.max_epochs = 2
    alone.fit(module, loader, loader)
    assert results[0]["epochs"] == 2
    for name, value in alone.strategy.module_state().items():
        torch.testing.assert_close(results[0]["again"][name], value, rtol=1e-5, atol=1e-5, msg=name)


def half(rank: int, stage: int, precision: str, folder: str) -> dict[str, Any]:
    loader = DataLoader(data(), BATCH // 2)
    losses = []
    states = []
    for epochs, resume in ((2, None), (1, None), (2, f"{folder}/half.ckpt")):
        module = Net()
        strategy = DeepSpeedStrategy(stage=stage, **SMALL)
        run = trainer(2, strategy, max_epochs=epochs, precision=precision)
        run.fit(module, loader, loader, ckpt_path=resume)
        losses.append(float(run.callback_metrics["val_loss"]))
        states.append({name: value.clone() for name, value in strategy.module_state().items()})
        if epochs == 1:
            run.save_checkpoint(f"{folder}/half.ckpt")
    kinds = {p.dtype for p in module.parameters()}
    return {"losses": losses, "states": states, "kinds": kinds, "steps": run.global_step}


@pytest.mark.parametrize(("stage", "precision"), [(1, "bf16-mixed"), (2, "bf16-true"), (3, "bf16-mixed")])
def test_16_bits_train_save_float32_and_resume_exactly(stage: int, precision: str, tmp_path: Any) -> None:
    result = ranks(2, half, stage, precision, str(tmp_path))[0]
    assert result["kinds"] == {torch.bfloat16}
    assert {value.dtype for value in result["states"][0].values()} == {torch.float32}
    straight, _, resumed = result["states"]
    for name, value in straight.items():
        assert torch.equal(resumed[name], value), name
    if precision == "bf16-mixed":  # 8 bits of mantissa: a relative error of 2**-8 in each operation
        alone = run(1, None, {"precision": "32-true"})
        assert result["losses"][0] == pytest.approx(alone["metrics"]["val_loss"], rel=0.05)


def scaled(rank: int, stage: int) -> dict[str, Any]:
    import deepspeed

    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True  # slow on most CPUs, and refused there
    options = {"initial_scale_power": 28, "loss_scale_window": 3, "hysteresis": 1}
    module, loader = Net(), DataLoader(data(), BATCH // 2)
    run = trainer(2, DeepSpeedStrategy(stage=stage, **options, **SMALL), precision="16-mixed", gradient_clip_val=None)
    run.fit(module, loader, loader)
    return {
        "steps": run.global_step, "scaler": run.run.optimization.scaler.state_dict(),
        "kinds": {p.dtype for p in module.parameters()},
        "loss": float(run.callback_metrics["val_loss"]), "lr": run.optimizers[0].param_groups[1]["lr"],
    }  # fmt: skip


@pytest.mark.parametrize("stage", [2, 3])
def test_float16_is_scaled_by_the_engine_and_overflows_are_not_counted(stage: int) -> None:
    result = ranks(2, scaled, stage)[0]
    assert result["kinds"] == {torch.float16}
    assert 0 < result["steps"] < 14  # of so many batches: a scale of 2**28 is too large at first
    assert result["lr"] == pytest.approx(1e-2 * 0.5 ** (result["steps"] // 3))
    assert 1 < result["scaler"]["scale"] < 2**28
    assert result["scaler"]["growth_interval"] == 3
    assert result["loss"] < 2


def skips(rank: int) -> tuple[int, float, bool]:
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = Net.training_step(self, batch, batch_idx)
        return loss * float("nan") if batch_idx == 1 else loss

    module = with_methods(Net, training_step)
    run = trainer(2, DeepSpeedStrategy(stage=2, **SMALL), max_epochs=1, limit_train_batches=3, limit_val_batches=0)
    run.fit(module, DataLoader(data(), BATCH // 2))
    return (
        run.global_step,
        run.optimizers[0].param_groups[1]["lr"],
        all(p.isfinite().all() for p in module.parameters()),
    )


def test_a_step_that_is_not_finite_is_skipped_and_not_counted() -> None:
    assert ranks(2, skips)[0] == (2, 1e-2, True)


def anew(rank: int, stage: int) -> dict[str, Any]:
    module, loader = Net(), DataLoader(data(), BATCH // 2)
    for _ in range(2):
        run = trainer(2, DeepSpeedStrategy(stage=stage, **SMALL), max_epochs=1)
        run.fit(module, loader, loader)
    return {name: value.clone() for name, value in run.strategy.module_state().items()}


@pytest.mark.parametrize("stage", [2, 3])
def test_another_trainer_takes_the_module_over(stage: int) -> None:
    result = ranks(2, anew, stage)[0]
    module, loader = Net(), DataLoader(data(), BATCH)
    for _ in range(2):
        trainer(max_epochs=1).fit(module, loader, loader)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(result[name], value, rtol=1e-5, atol=1e-5, msg=name)


def test_one_process_is_enough_and_names_work() -> None:
    result = ranks(1, by_name)[0]
    alone = run(1, None, {})
    assert result["steps"] == alone["steps"]
    for name, value in alone["weights"].items():
        torch.testing.assert_close(result["weights"][name], value, rtol=1e-5, atol=1e-5, msg=name)


def by_name(rank: int) -> dict[str, Any]:
    module = Net()
    run = trainer(1, "deepspeed_stage_2")
    run.fit(module, DataLoader(data(), BATCH), DataLoader(data(), BATCH))
    return {"steps": run.global_step, "weights": dict(run.strategy.module_state())}
