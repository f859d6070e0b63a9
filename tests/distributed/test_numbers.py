"""Numbers that depend on all processes: losses, manual optimization, metrics, random numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchmetrics
from torch import distributed, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import EarlyStopping
from lightlib.precision import Precision
from lightlib.report import rank_zero_only
from lightlib.strategies.mesh import MeshStrategy
from lightlib.strategies.mesh_presets import FSDPStrategy
from tests.distributed.user import BATCH, CLASSES, WIDTH, Block, Net, data
from tests.processes.ranks import ranks
from tests.runs import quiet
from tests.runs.plain import subclass, with_methods

pytestmark = pytest.mark.processes

QUIET = quiet.QUIET | {"num_sanity_val_steps": 0}


def trainer_of(strategy: Any, **options: Any) -> L.Trainer:
    return L.Trainer(**{**QUIET, "strategy": strategy, "max_epochs": 2, **options})


def loader(size: int, samples: int = 56) -> DataLoader[Any]:
    """Return a loader of this process's shards of the batches of one device."""
    return DataLoader(data(samples), BATCH // size)


def state_of(trainer: L.Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.strategy.module_state().items()}


def assert_near(found: dict[str, Any], wanted: dict[str, Any], within: float = 5e-6) -> None:
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        error = ((found[name] - value).norm() / value.norm().clamp(min=1e-6)).item()
        assert error <= within, f"{name}: {error}"


# losses with weights
IGNORED = -1


class Tokens(Net):
    """Learns only some of the samples; the loss is the sum over these, and their number its weight."""

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, torch.Tensor]:
        x, y = batch
        loss = F.cross_entropy(self.model(x), y, reduction="sum", ignore_index=IGNORED)
        return {"loss": loss, "weight": (y != IGNORED).sum()}


def some_tokens() -> TensorDataset:
    """Return samples with very different numbers of counted tokens on the two data processes."""
    x, y = data().tensors
    y[1::2][torch.arange(28) % 4 != 0] = IGNORED
    y[:4] = IGNORED
    return TensorDataset(x, y)


def tokens(rank: int, strategy: str, size: int) -> Any:
    torch.manual_seed(3)
    trainer = trainer_of(strategy, accumulate_grad_batches=3, gradient_clip_val=0.5, limit_val_batches=0)
    trainer.fit(Tokens(), DataLoader(some_tokens(), BATCH // size))
    return state_of(trainer)


@pytest.mark.parametrize(("strategy", "size"), [("ddp", 2), ("fsdp", 2), ("tensor", 1), ("pipeline", 1)])
def test_losses_are_weighted_over_processes_and_batches(strategy: str, size: int):
    torch.manual_seed(3)
    net = Tokens()
    optimizer = net.configure_optimizers()
    x, y = some_tokens().tensors
    for window in [slice(0, 24), slice(24, 48), slice(48, 56)] * 2:
        optimizer.zero_grad()
        F.cross_entropy(net.model(x[window]), y[window], ignore_index=IGNORED).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
    assert_near(ranks(2, tokens, strategy, size)[0], net.state_dict())


# manual optimization
class Adversaries(L.Module):
    """Two networks, two optimizers, several backward passes in a step, accumulation and clipping by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.maker = nn.Sequential(nn.Linear(2, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))
        self.judge = nn.Sequential(
            nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)
        )
        self.unused = nn.Linear(2, 2)

    def told(self, x: torch.Tensor, real: float) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(self.judge(x), torch.full((len(x), 1), real))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, _ = batch
        of_maker, of_judge = self.optimizers()
        made = self.maker(x[:, :2])
        self.manual_backward(self.told(x, 1.0))
        self.manual_backward(self.told(made.detach(), 0.0))
        if batch_idx % 2:
            self.clip_gradients(of_judge, 0.5, "norm")
            of_judge.step()
            of_judge.zero_grad()
        loss = self.told(made, 1.0)
        self.log("maker", loss, on_step=False, on_epoch=True)
        self.toggle_optimizer(of_maker)
        self.manual_backward(loss)
        self.untoggle_optimizer(of_maker)
        self.clip_gradients(of_maker, 0.01, "value")
        of_maker.step()
        of_maker.zero_grad()

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.SGD([*self.maker.parameters(), *self.unused.parameters()], 0.5, momentum=0.9),
            torch.optim.SGD(self.judge.parameters(), 0.5),
        ]


def adversaries(rank: int, strategy: str, size: int) -> Any:
    torch.manual_seed(3)
    trainer = trainer_of(strategy)
    trainer.fit(Adversaries(), loader(size))
    return state_of(trainer), float(trainer.callback_metrics["maker"])


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_manual_optimization(strategy: str):
    torch.manual_seed(3)
    alone = L.Trainer(**QUIET, devices=1, max_epochs=2)
    module = Adversaries()
    alone.fit(module, loader(1))
    weights, logged = ranks(2, adversaries, strategy, 2)[0]
    assert_near(weights, module.state_dict(), 1e-5)
    assert logged == pytest.approx(float(alone.callback_metrics["maker"]), rel=1e-5)


# the step around the batch
class ByClosure(Net):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.step(closure=optimizer_closure)


class Newton(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")


class Uphill(torch.optim.Optimizer):
    """Steps by the gradient a little uphill, for which it evaluates the loss a second time."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        parameters = self.param_groups[0]["params"]
        moves = [0.05 * p.grad for p in parameters]
        torch._foreach_add_(parameters, moves)
        with torch.enable_grad():
            closure()
        torch._foreach_sub_(parameters, moves)
        torch._foreach_sub_(parameters, [0.2 * p.grad for p in parameters])
        return loss


def closures(rank: int, size: int, **options: Any) -> Any:
    found = {}
    for kind in (ByClosure, Newton, subclass(Net, configure_optimizers=lambda self: Uphill(self.parameters(), {}))):
        torch.manual_seed(3)
        trainer = trainer_of("ddp" if size > 1 else "auto", max_steps=5, limit_val_batches=0, **options)
        trainer.fit(kind(optimizer="SGD"), loader(size))
        found[kind.__name__] = state_of(trainer)
    return found


def test_steps_with_a_closure():
    alone, both = closures(0, 1, devices=1), ranks(2, closures, 2)[0]
    for name, weights in alone.items():
        assert_near(both[name], weights, 1e-3 if name == "Newton" else 5e-6)  # a line search takes differences


# decisions by a metric
def plateau(rank: int, strategy: str, size: int, **options: Any) -> Any:
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.4)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}

    torch.manual_seed(3)
    net = with_methods(Net, configure_optimizers)
    trainer = trainer_of(strategy, max_epochs=30, callbacks=EarlyStopping("val_loss", patience=2), **options)
    trainer.fit(net, loader(size), DataLoader(data(37, seed=2), BATCH))
    return trainer.global_step, trainer.optimizers[0].param_groups[0]["lr"], float(trainer.callback_metrics["val_loss"])


@pytest.mark.parametrize(("strategy", "size"), [("ddp", 2), ("pipeline", 1)])
def test_decisions_are_those_of_one_device(strategy: str, size: int):
    steps, lr, loss = plateau(0, "auto", 1, devices=1)
    assert steps < 30 * 7
    assert lr < 0.4
    for found in ranks(2, plateau, strategy, size):
        assert found == pytest.approx((steps, lr, loss), rel=1e-5)


# between processes
def between(rank: int) -> Any:
    torch.manual_seed(3)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, _ = batch
        features = self.all_gather(self.model(x), sync_grads=True)
        assert self.all_gather({"rank": self.global_rank})["rank"].tolist() == [0, 1]
        self.log("own", float(self.global_rank), on_step=True, on_epoch=False, sync_dist=True)
        self.log("largest", float(self.global_rank), on_step=True, on_epoch=False, sync_dist=True, reduce_fx="max")
        self.log("here", float(self.global_rank), on_step=True, on_epoch=False)
        return features.flatten(0, 1).square().std(0).sum()

    net = with_methods(Net(optimizer="SGD"), training_step)
    trainer = trainer_of("ddp", max_steps=3, limit_val_batches=0)
    trainer.fit(net, loader(2))
    strategy = trainer.strategy
    strategy.barrier("here")
    said: list[int] = []
    rank_zero_only(lambda: said.append(rank))()
    return {
        "weights": state_of(trainer),
        "logged": {name: float(trainer.callback_metrics[name]) for name in ("own", "largest", "here")},
        "broadcast": (strategy.broadcast({"from": rank}), strategy.broadcast([rank], src=1)),
        "reduce": [float(strategy.reduce(torch.tensor(rank + 1.0), reduce_op=how)) for how in ("mean", "sum", "max")],
        "whole": (strategy.reduce(torch.tensor(rank), reduce_op="sum"), strategy.reduce(rank)),
        "decisions": [strategy.reduce_boolean_decision(rank == 0, all=every) for every in (True, False)],
        "said": said,
        "global_zero": trainer.is_global_zero,
    }


def test_what_processes_tell_each_other():
    first, second = ranks(2, between)
    torch.manual_seed(3)
    net = Net(optimizer="SGD")
    optimizer = net.configure_optimizers()
    for x, _ in list(loader(1))[:3]:
        optimizer.zero_grad()
        features = net.model(x)
        features.square().std(0).sum().backward()
        optimizer.step()
    assert_near(first["weights"], net.state_dict(), 1e-5)
    assert first["logged"] == {"own": 0.5, "largest": 1.0, "here": 0.0}
    assert second["logged"] == {"own": 0.5, "largest": 1.0, "here": 1.0}
    for one in (first, second):
        assert one["broadcast"] == ({"from": 0}, [1])
        assert one["reduce"] == [1.5, 3.0, 2.0]
        assert one["whole"] == (1, 0.5)
        assert one["decisions"] == [False, True]
    assert (first["said"], second["said"]) == ([0], [])
    assert (first["global_zero"], second["global_zero"]) == (True, False)


# metrics
class Measured(Net):
    """Metrics that are no plain sums, and several loaders."""

    def __init__(self) -> None:
        super().__init__()
        self.area = torchmetrics.AUROC("multiclass", num_classes=CLASSES)
        self.both = torchmetrics.MetricCollection(
            {"error": torchmetrics.MeanSquaredError(), "correlation": torchmetrics.PearsonCorrCoef()}
        )

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        x, y = batch
        scores = self.model(x)
        if dataloader_idx == 0:
            self.area(scores, y)
            self.log("area", self.area, add_dataloader_idx=False)
            self.both(scores.max(-1).values, y.float())
            self.log_dict(self.both, add_dataloader_idx=False)
        self.log("val_loss", F.cross_entropy(scores, y))
        self.log("largest", scores.max(), reduce_fx="max")


def measured(rank: int, strategy: str, samples: int, **options: Any) -> Any:
    torch.manual_seed(3)
    trainer = trainer_of(strategy, **options)
    loaders = [DataLoader(data(samples, seed=2), 4), DataLoader(data(7, seed=5), 4)]
    found = trainer.validate(Measured(), loaders, verbose=False)
    return [*found, {name: float(value) for name, value in trainer.callback_metrics.items()}]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("samples", [37, 1])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "tensor"])
def test_metrics_of_uneven_data(strategy: str, samples: int):
    wanted = measured(0, "auto", samples, devices=1)
    for found in ranks(2, measured, strategy, samples):
        for mine, theirs in zip(found, wanted, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-5, nan_ok=True)


# random numbers
def dropping(rank: int) -> Any:
    """Return the masks of the dropout by strategy."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        scores = self.model(x)
        mask = F.dropout(torch.ones(scores.shape[-1]), 0.5)
        masks.append(mask)
        return F.cross_entropy(scores * mask, y)

    found = {}
    for name, strategy in {"ddp": "ddp", "fsdp": "fsdp", "tensor": "tensor", "data": MeshStrategy(replicate=2)}.items():
        torch.manual_seed(100 + rank if name == "data" else 3)
        net, masks = with_methods(Net, training_step), []
        net.model = nn.Sequential(nn.Linear(4, WIDTH), *(Block(WIDTH) for _ in range(2)), nn.Linear(WIDTH, CLASSES))
        trainer_of(strategy, max_epochs=1, limit_val_batches=0).fit(net, loader(1 if name == "tensor" else 2))
        found[name] = torch.cat(masks)
    return found


def test_data_processes_draw_their_own_and_others_the_same():
    first, second = ranks(2, dropping)
    for name in ("ddp", "fsdp", "data"):
        assert not torch.equal(first[name], second[name]), name
    assert torch.equal(first["tensor"], second["tensor"])


# overflow


def one_large() -> TensorDataset:
    x, y = data(24).tensors
    x[9] = 100.0  # of the second data process, in the second batch
    return TensorDataset(x, y)


class Steps(L.Callback):
    """Keeps a weight and the number of steps after each batch."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        state = trainer.strategy.module_state()
        scale = (
            trainer._session.fit_run.optimization.scaler.grad_scaler.get_scale() if trainer._session.fit_run else None
        )
        self.seen.append(
            (trainer.global_step, float(sum(v.sum() for v in state.values() if v.is_floating_point())), scale)
        )


def overflows(rank: int, strategy: str, size: int) -> Any:
    torch.manual_seed(3)
    half = Precision("16-mixed", torch.float32, torch.float16, torch.float32, True, {"init_scale": 256.0})
    steps = Steps()
    trainer = trainer_of(strategy, plugins=half, max_epochs=1, callbacks=steps, limit_val_batches=0)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = Net.training_step(self, batch, batch_idx)
        return loss * 1e9 if batch[0].max() > 90 else loss

    trainer.fit(with_methods(Net(depth=2, optimizer="SGD"), training_step), DataLoader(one_large(), BATCH // size))
    return steps.seen


@pytest.mark.parametrize(("strategy", "size"), [("ddp", 2), ("fsdp", 2), ("pipeline", 1), ("tensor", 1)])
def test_an_overflow_on_one_process_skips_the_step_on_all(strategy: str, size: int):
    first, second = ranks(2, overflows, strategy, size)
    assert [steps for steps, _, _ in first] == [steps for steps, _, _ in second] == [1, 1, 2]
    assert first[0][1] == first[1][1] != first[2][1]
    assert [scale for *_, scale in first] == [scale for *_, scale in second] == [256.0, 128.0, 128.0]


# errors
def skips(rank: int, strategy: str) -> str:
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = Net.training_step(self, batch, batch_idx)
        return None if batch_idx == 1 and rank == 1 else loss

    torch.manual_seed(3)
    try:
        trainer_of(strategy, limit_val_batches=0).fit(with_methods(Net, training_step), loader(2))
    except Exception as error:  # noqa: BLE001  its own error, or another rank's
        return str(error)
    return ""


def test_a_batch_cannot_be_skipped_by_one_process():
    for text in ranks(2, skips, "ddp"):
        assert "training_step returned None, which skips the batch, on one of several processes." in text
        assert "'weight': 0" in text


def test_fsdp_takes_any_blocks_in_manual_optimization():
    wanted = ranks(2, adversaries, "fsdp", 2)[0][0]
    found = ranks(2, named_blocks)[0]
    assert_near(found, wanted, 1e-5)


def named_blocks(rank: int) -> Any:
    torch.manual_seed(3)
    trainer = trainer_of(FSDPStrategy(auto_wrap_policy=["maker", "judge", "unused"]))
    trainer.fit(Adversaries(), loader(2))
    assert distributed.is_initialized()
    return state_of(trainer)


def rates(rank: int) -> Any:
    torch.manual_seed(0)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step", "monitor": "loss_step"},
        }

    module = with_methods(Net, configure_optimizers)
    trainer = trainer_of("ddp", devices=2, limit_val_batches=0)
    trainer.fit(module, loader(2))
    return trainer.optimizers[0].param_groups[0]["lr"], [value.tolist() for value in module.parameters()]


def test_a_schedule_that_reads_a_metric_of_the_step_has_one_rate_on_all():
    (rate, weights), (other, others) = ranks(2, rates)
    assert rate == other < 0.1
    assert weights == others


def trained_noisily(rank: int, strategy: str, devices: int, precision: str) -> Any:
    torch.manual_seed(0)
    trainer = trainer_of(strategy, devices=devices, precision=precision, limit_val_batches=0)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return F.cross_entropy(self.model(x + 0.1 * torch.ones(x.shape)), y)

    module = with_methods(Net, training_step)
    trainer.fit(module, loader(devices))
    state = trainer.strategy.module_state()
    return {name: value for name, value in state.items() if name.startswith("model.0")}


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_a_step_under_fsdp_makes_tensors_of_the_dtype_of_the_precision(precision):
    found = ranks(2, trained_noisily, "fsdp", 2, precision)[0]
    single = trained_noisily(0, "auto", 1, precision)
    error = 1e-12 if precision == "64-true" else 0.05
    for name, value in single.items():
        assert found[name].dtype == value.dtype
        assert (found[name] - value).abs().max() <= error * value.abs().max()
