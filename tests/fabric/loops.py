"""The same training three times: with a Fabric, with plain PyTorch, and with the Trainer."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import lightlib as L
from tests.runs.plain import Net, loader, network, quiet_trainer

EPOCHS, SAMPLES, CLIP = 2, 24, 0.05
SCALER = {"init_scale": 2.0**14, "growth_interval": 3}


def precision_of(name: str) -> Any:
    """Return the precision; float16's scaler grows within these few steps."""
    return L.precision.Precision("16-mixed", torch.float32, torch.float16, torch.float32, True, SCALER) \
        if name == "16-mixed" else name  # fmt: skip


def optimizer_of(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.05)


def by_fabric(
    strategy: str = "auto", devices: int = 1, precision: str = "32-true", size: int = 4, dropout: float = 0.2
) -> dict[str, Any]:
    """Train with a Fabric: accumulate two batches, clip, step."""
    torch.manual_seed(5)
    fabric = L.Fabric(accelerator="cpu", strategy=strategy, devices=devices, precision=precision_of(precision))
    fabric.launch()
    torch.manual_seed(5 + 7 * fabric.global_rank)
    model = network(dropout)
    model, optimizer = fabric.setup(model, optimizer_of(model.parameters()))
    data = fabric.setup_dataloaders(loader(SAMPLES, size, shuffle=True, generator=torch.Generator().manual_seed(3)))
    losses, norms = [], []
    for _ in range(EPOCHS):
        for i, (x, y) in enumerate(data):
            with fabric.no_backward_sync(model, enabled=i % 2 == 0):
                output = model(x)
                with fabric.autocast():
                    loss = cross_entropy(output, y)
                fabric.backward(loss / 2)
            losses.append(float(loss.detach()))
            if i % 2:
                norms.append(float(fabric.clip_gradients(model, optimizer, max_norm=CLIP, error_if_nonfinite=False)))
                optimizer.step()
                optimizer.zero_grad()
    fabric.save("weights.ckpt", {"model": model})
    weights = torch.load("weights.ckpt")["model"] if fabric.is_global_zero else {}
    return {"losses": losses, "norms": norms, "weights": weights}


def by_torch(precision: str = "32-true", dropout: float = 0.2, how: str = "", size: int = 4) -> dict[str, Any]:
    """Train with torch alone; with `how` on the processes of the present group, ``"ddp"`` or ``"fsdp"``."""
    rank = distributed.get_rank() if how else 0
    torch.manual_seed(5 + 7 * rank)
    net = network(dropout)
    mixed = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision)
    model: Any = net
    if how == "ddp":
        model = DistributedDataParallel(net, gradient_as_bucket_view=True)
    elif how == "fsdp":
        policy = MixedPrecisionPolicy(mixed, torch.float32 if mixed else None, output_dtype=torch.float32)
        model = fully_shard(net, mp_policy=policy, reshard_after_forward=False)
    optimizer = optimizer_of(model.parameters())
    scaler = torch.amp.GradScaler("cpu", **SCALER) if precision == "16-mixed" else None
    data = loader(SAMPLES, size, shuffle=True, generator=torch.Generator().manual_seed(3))
    losses, norms = [], []
    for _ in range(EPOCHS):
        for i, (x, y) in enumerate(data if not how else shard_of(data, rank, distributed.get_world_size(), size)):
            last = i % 2 == 1
            if how == "fsdp":
                model.set_requires_gradient_sync(last)
            with model.no_sync() if how == "ddp" and not last else contextlib.nullcontext():
                context = contextlib.nullcontext()
                if mixed is not None and how != "fsdp":
                    context = torch.autocast("cpu", dtype=mixed)
                with context:
                    output = model(x)
                with torch.autocast("cpu", dtype=mixed) if mixed is not None else contextlib.nullcontext():
                    loss = cross_entropy(output.float(), y)
                (loss / 2 if scaler is None else scaler.scale(loss / 2)).backward()
            losses.append(float(loss.detach()))
            if last:
                if scaler is not None:
                    scaler.unscale_(optimizer)
                norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                norms.append(float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm))
                if scaler is None:
                    optimizer.step()
                else:
                    scaler.step(optimizer)
                    scaler.update()
                optimizer.zero_grad()
    state = {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in net.state_dict().items()}
    return {"losses": losses, "norms": norms, "weights": state if rank == 0 else {}}


def shard_of(data: DataLoader[Any], rank: int, size: int, batch: int) -> DataLoader[Any]:
    """Return the batches that torch's DistributedSampler would give, in the order that the generator draws."""
    torch.empty((), dtype=torch.int64).random_(generator=data.generator)  # a DataLoader draws a seed for workers first
    order = list(data.sampler)  # the same on all ranks: the generator is
    sampler = DistributedSampler(order, size, rank, shuffle=False)
    return DataLoader(data.dataset, batch, sampler=[order[i] for i in sampler])


class Trained(Net):
    """The same steps for the Trainer."""

    def __init__(self, dropout: float) -> None:
        super().__init__(optimizer_of, dropout)
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = cross_entropy(self.net(x).float(), y)
        self.losses.append(float(loss.detach()))
        return loss


def by_trainer(
    strategy: str = "auto", devices: int = 1, precision: str = "32-true", size: int = 4, dropout: float = 0.2
) -> dict[str, Any]:
    """Train with the Trainer."""
    torch.manual_seed(5)
    module = Trained(dropout)
    trainer = quiet_trainer(
        max_epochs=EPOCHS, strategy=strategy, devices=devices, precision=precision_of(precision), limit_val_batches=0,
        accumulate_grad_batches=2, gradient_clip_val=CLIP,
    )  # fmt: skip
    trainer.fit(module, loader(SAMPLES, size, shuffle=True, generator=torch.Generator().manual_seed(3)))
    state = trainer.strategy.module_state()
    weights = {name.removeprefix("net."): value.clone() for name, value in state.items()}
    return {"losses": module.losses, "weights": weights if trainer.is_global_zero else {}}
