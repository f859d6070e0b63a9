"""Every strategy trains the same module to the same numbers as a plain loop on one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.precision import Precision
from tests.distributed.user import BATCH, built, data, evaluated, plain_loop
from tests.processes.ranks import ranks
from tests.runs.quiet import QUIET

pytestmark = pytest.mark.processes

STEPS, CLIP = 10, 0.5
# Name: processes, and the strategy as a user writes it.
STRATEGIES: dict[str, tuple[int, str]] = {
    "ddp": (2, "'ddp'"),
    "zero1": (2, "'zero1'"),
    "fsdp": (2, "'fsdp'"),
    "zero2": (2, "'zero2'"),
    "hsdp": (4, "'hsdp'"),
    "tensor": (2, "'tensor'"),
    "pipeline gpipe": (2, "PipelineStrategy(schedule='gpipe')"),
    "pipeline 1f1b": (2, "'pipeline'"),
    "pipeline interleaved": (2, "PipelineStrategy(schedule='interleaved')"),
    "pipeline zero-bubble": (2, "PipelineStrategy(schedule='zbv')"),
    "pipeline+shard": (4, "MeshStrategy(pipeline=2, shard=2)"),
    "pipeline+replicate": (4, "MeshStrategy(pipeline=2, replicate=2)"),
    "shard+tensor": (4, "MeshStrategy(shard=2, tensor=2)"),
    "replicate+tensor": (4, "MeshStrategy(replicate=2, tensor=2)"),
    "pipeline+tensor": (4, "MeshStrategy(pipeline=2, tensor=2)"),
    "pipeline+shard+tensor": (8, "MeshStrategy(pipeline=2, shard=2, tensor=2)"),
}
DTYPES = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
# float32: sums in another order. Reduced: activations are rounded to 8 (bfloat16) or 11 (float16) bits at other places
# than autocast does on one device, because sharded parameters are cast in full and partial sums of split matrices
# are rounded before they are added: some roundings per layer, of 2^-9 and 2^-12 each. AdamW divides by the gradient's
# own size, so a weight whose gradient is mostly rounding moves by up to lr in the other direction.
LOSS_WITHIN = {"32-true": 1e-6, "bf16-mixed": 3e-2, "16-mixed": 4e-3}
WEIGHTS_WITHIN = {"32-true": 1e-6, "bf16-mixed": 5e-2, "16-mixed": 5e-3}


def strategy_of(text: str) -> Any:
    from lightlib import strategies

    return eval(text, vars(strategies) | {n: getattr(strategies, n) for n in ("MeshStrategy", "PipelineStrategy")})


class Losses(L.Callback):
    """Keeps the loss of every batch, as this process has seen it."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.values.append(float(outputs["loss"]))


def train(rank: int, strategy: str, precision: str, data_size: int) -> Any:
    results = {}
    for accumulate in (1, 3):
        net, losses = built(), Losses()
        reduced = Precision.named(precision)
        if reduced.scales_loss:
            reduced = Precision("16-mixed", torch.float32, torch.float16, torch.float32, True, {"init_scale": 256.0})
        trainer = L.Trainer(
            **QUIET,
            strategy=strategy_of(strategy),
            plugins=reduced,
            max_steps=STEPS,
            accumulate_grad_batches=accumulate,
            gradient_clip_val=CLIP,
            callbacks=losses,
            num_sanity_val_steps=0,
        )
        trainer.fit(net, DataLoader(data(), BATCH // data_size), DataLoader(data(37, seed=2), BATCH))
        metrics = trainer.validate(net, DataLoader(data(37, seed=2), BATCH), verbose=False)[0]
        means = trainer.strategy.collectives.all_gather_object((trainer.strategy.data_rank, losses.values))
        predictions = trainer.predict(net, DataLoader(data(8), 4))
        results[accumulate] = {
            "losses": torch.tensor(list(dict(means).values())).mean(0).tolist(),
            "weights": trainer.strategy.module_state(),
            "metrics": metrics,
            "logged": {name: float(value) for name, value in trainer.callback_metrics.items()},
            "predictions": predictions,
            "steps": trainer.global_step,
        }
    return results


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((found - wanted).norm() / wanted.norm().clamp(min=1e-12)).item()


def flat(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([weight.flatten().float() for weight in weights.values()])


# Of those in a reduced precision with four processes, or with a similar schedule, `make test` runs these.
SOME = {"hsdp bf16-mixed", "pipeline+shard 16-mixed", "shard+tensor bf16-mixed", "pipeline zero-bubble 16-mixed"}
OF_OTHERS = ("pipeline gpipe", "pipeline interleaved", "pipeline zero-bubble")


def cases() -> list[Any]:
    found = []
    for name, (size, _) in STRATEGIES.items():
        for precision in DTYPES:
            case = f"{name} {precision}"
            like_others = precision != "32-true" and (size == 4 or name in OF_OTHERS) and case not in SOME
            marks = [pytest.mark.slow] if size == 8 or like_others else []
            found.append(pytest.param(name, precision, marks=marks, id=case))
    return found


@pytest.mark.parametrize(("name", "precision"), cases())
def test_the_numbers_are_those_of_one_device(name: str, precision: str):
    size, strategy = STRATEGIES[name]
    beside = 2 if "shard" in name or "replicate" in name else 1
    data_size = {"ddp": 2, "zero1": 2, "fsdp": 2, "zero2": 2, "hsdp": 4}.get(name, beside)
    found = ranks(size, train, strategy, precision, data_size)
    dtype = DTYPES[precision]
    for accumulate in (1, 3):
        one = built()
        losses = plain_loop(one, STEPS, accumulate, BATCH, CLIP, dtype)
        first = found[0][accumulate]
        assert first["steps"] == STEPS
        assert first["losses"] == pytest.approx(losses, rel=LOSS_WITHIN[precision])
        weights = one.state_dict()
        assert list(first["weights"]) == list(weights)
        if dtype is None:
            errors = {n: relative(first["weights"][n], w) for n, w in weights.items()}
            # Of one tensor: biases that began at 0 are small after 10 steps.
            assert max(errors.values()) <= 5e-6, errors
        assert relative(flat(first["weights"]), flat(weights)) <= WEIGHTS_WITHIN[precision]
        val_loss, accuracy = evaluated(one, dtype)
        for rank in range(size):
            metrics = found[rank][accumulate]["metrics"]
            assert metrics == first["metrics"]
            assert metrics["val_loss"] == pytest.approx(val_loss, rel=10 * LOSS_WITHIN[precision])
            assert metrics["accuracy"] == pytest.approx(accuracy, abs=1e-6 if dtype is None else 0.06)
