"""Modules with float32 tensors of their own train under fsdp in mixed precision, as under autocast."""

from __future__ import annotations

import pytest
import torch
from torch import distributed, nn
from torch.amp import GradScaler
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.precision import MixedPrecision
from tests.processes.ranks import ranks
from tests.runs.modules import Validated
from tests.runs.plain import momentum
from tests.runs.quiet import QUIET

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:.*computes in float16 on the CPU"),
]
WIDTH, LENGTH, TOKENS, STEPS = 16, 6, 20, 4


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of features by float32 angles."""
    even, odd = x[..., ::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((even * cos - odd * sin, even * sin + odd * cos), -1)


class Block(nn.Module):
    """Attention with rotary positions, of which only queries and keys become float32; a frozen scale; two norms."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other = nn.LayerNorm(WIDTH), nn.GroupNorm(2, WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        frequencies = 0.1 ** torch.arange(0, WIDTH, 2).div(WIDTH)
        self.register_buffer("angles", torch.arange(LENGTH)[:, None] * frequencies)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        mixed = F.scaled_dot_product_attention(turned(q, self.angles), turned(k, self.angles), v, is_causal=True)
        x = x + self.out(mixed) * self.scale
        return x + self.other(x.transpose(1, 2)).transpose(1, 2)


class Decoder(nn.Module):
    """Its float32 table of positions makes float32 of the tokens before the first norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.register_buffer("table", torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.table
        for block in self.blocks:
            x = block(x)
        return self.head(x).transpose(1, 2)


def made() -> Validated:
    torch.manual_seed(3)
    return Validated(momentum, net=Decoder())


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(TOKENS, (4 * STEPS, LENGTH), generator=generator)
    return TensorDataset(tokens, tokens.roll(-1, 1))


def by_lightlib(rank: int, precision: str) -> tuple[dict[str, torch.Tensor], float]:
    module, loader = made(), DataLoader(data(), 2)
    scaler = 256.0 if precision == "16-mixed" else None  # no gradient overflows
    plugin = MixedPrecision(precision, scaler=scaler)
    trainer = L.Trainer(**QUIET, strategy="fsdp", devices=2, max_epochs=1, plugins=[plugin])
    trainer.fit(module, loader, loader)
    val_loss = float(trainer.callback_metrics["val_loss"])
    state = trainer.strategy.module_state()
    predicted = trainer.predict(module, loader)
    assert predicted is not None
    assert len(predicted) == STEPS
    return state, val_loss


def by_torch(rank: int) -> dict[str, torch.Tensor]:
    """Train with torch alone: FSDP2's policy, and autocast around the step; norms of the CPU get their own dtype."""
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    module = made()
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for norm in (norm for block in module.net.blocks for norm in (block.norm, block.other)):
        norm.register_forward_pre_hook(lambda _, inputs: (inputs[0].bfloat16(),))
    for part in (*module.net.blocks, module.net):
        fully_shard(part, mp_policy=policy)
    optimizer = momentum(module.parameters())
    for tokens, targets in DataLoader(data(), 2, sampler=range(rank, 4 * STEPS, 2)):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(module.net(tokens), targets)
        loss.backward()
        optimizer.step()
    return {name: value.full_tensor() for name, value in module.named_parameters()}


def on_one_device(dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], float]:
    """Train with full batches under autocast, and with torch's scaler for float16."""
    module = made()
    optimizer, scaler = momentum(module.parameters()), GradScaler("cpu", 256.0, enabled=dtype is torch.float16)
    for tokens, targets in DataLoader(data(), 4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = F.cross_entropy(module.net(tokens), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    with torch.no_grad():
        tokens, targets = data().tensors
        return dict(module.named_parameters()), float(F.cross_entropy(module.net(tokens), targets))


def test_weights_are_those_of_torch_with_its_policy_within_autocast():
    state, _ = ranks(2, by_lightlib, "bf16-mixed")[0]
    wanted = ranks(2, by_torch)[0]
    for name, value in wanted.items():
        assert state[name].dtype is torch.float32
        torch.testing.assert_close(state[name], value, rtol=0, atol=0, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(("precision", "dtype"), [("bf16-mixed", torch.bfloat16), ("16-mixed", torch.float16)])
def test_weights_are_near_those_of_autocast_on_one_device(precision, dtype):
    state, val_loss = ranks(2, by_lightlib, precision)[0]
    before = dict(made().named_parameters())
    wanted, loss = on_one_device(dtype)
    for name, value in wanted.items():
        change, moved = (state[name] - value).norm(), (value - before[name]).norm()
        assert change <= 0.05 * moved, f"{name}: {change} of {moved}"
    assert abs(val_loss - loss) < 0.02
