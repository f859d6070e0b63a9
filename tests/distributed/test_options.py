"""Options of the strategies, through the Trainer: their effect on the results, and their errors."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.strategies.mesh import MeshStrategy
from lightlib.strategies.mesh_presets import DDPStrategy, FSDPStrategy, ModelParallelStrategy
from tests.distributed.user import BATCH, CLASSES, WIDTH, Block, Net, built, data, evaluated, plain_loop
from tests.processes.ranks import ranks
from tests.runs import quiet

pytestmark = pytest.mark.processes

STEPS = 5
QUIET = quiet.QUIET | {"num_sanity_val_steps": 0}


def fit(strategy: Any, net: L.Module, data_size: int = 2, **options: Any) -> L.Trainer:
    trainer = L.Trainer(**QUIET, strategy=strategy, **{"max_steps": STEPS} | options)
    val = None if isinstance(net, Branches) else DataLoader(data(37, seed=2), BATCH)
    trainer.fit(net, DataLoader(data(), BATCH // data_size), val)
    return trainer


def alone(net: Net, accumulate: int = 1, clip: float | None = None) -> dict[str, torch.Tensor]:
    """Return the weights after a plain loop on one device."""
    plain_loop(net, STEPS, accumulate, BATCH, clip)
    return net.state_dict()


def assert_near(found: dict[str, Any], wanted: dict[str, Any], within: float = 1e-6) -> None:
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        error = ((found[name] - value).norm() / value.norm().clamp(min=1e-6)).item()
        assert error <= within, f"{name}: {error}"


# by hand, as Lightning documents it
class ByHand(Net):
    """Builds and shards its layers itself."""

    def __init__(self, whole: bool = False, meta: bool = False, shards: bool = True) -> None:
        super().__init__()
        del self.model
        self.whole, self.on_meta, self.shards = whole, meta, shards

    def parallel_plan(self):
        return None

    def configure_model(self) -> None:
        if hasattr(self, "model"):
            return
        torch.manual_seed(3)
        with torch.device("meta" if self.on_meta else "cpu"):
            self.model = nn.Sequential(
                nn.Linear(4, WIDTH), *(Block(WIDTH) for _ in range(4)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
            )
        torch.manual_seed(3)
        if self.device_mesh is None:
            return
        tensor, shard = self.device_mesh["tensor_parallel"], self.device_mesh["data_parallel"]
        for block in self.model[1:-2]:
            if tensor.size() > 1:
                parallelize_module(block, tensor, {"up": ColwiseParallel(), "down": RowwiseParallel()})
            if self.shards:
                fully_shard(block, mesh=shard)
        if self.shards:
            fully_shard(self if self.whole else self.model, mesh=shard)


def by_hand(rank: int, data_size: int, tensor: int, whole: bool, meta: bool) -> Any:
    net = ByHand(whole, meta)
    strategy = ModelParallelStrategy(data_size, tensor)
    trainer = fit(strategy, net, data_size, accumulate_grad_batches=3, gradient_clip_val=0.5)
    metrics = trainer.validate(net, DataLoader(data(37, seed=2), BATCH), verbose=False)[0]
    names = strategy.device_mesh.mesh_dim_names
    trainer.save_checkpoint("one.ckpt", format="file")
    return trainer.strategy.module_state(), metrics, names, isinstance(net.model, FSDPModule)


@pytest.mark.parametrize(
    ("data_size", "tensor", "whole", "meta"), [(2, 1, False, False), (1, 2, True, True), (2, 2, True, False)]
)
def test_a_module_that_spreads_itself(data_size: int, tensor: int, whole: bool, meta: bool):
    net = ByHand()
    net.configure_model()
    plain_loop(net, STEPS, 3, BATCH, 0.5)
    found = ranks(data_size * tensor, by_hand, data_size, tensor, whole, meta)
    assert_near(found[0][0], net.state_dict(), 1e-5)
    assert found[0][2] == ("data_parallel", "tensor_parallel")
    loss, accuracy = evaluated(net)
    for _, metrics, _, sharded in found:
        assert metrics["val_loss"] == pytest.approx(loss, rel=1e-5)
        assert metrics["accuracy"] == pytest.approx(accuracy)
        assert sharded != whole


def left_out(rank: int) -> str:
    net = ByHand(shards=False)
    try:
        fit(ModelParallelStrategy(2, 2), net)
    except Exception as error:  # noqa: BLE001  rank 0's own error, or another rank's
        return str(error)
    return ""


def test_by_hand_everything_that_is_trained_is_sharded():
    for text in ranks(4, left_out):
        assert "configure_model of ByHand left the parameter 'model.0.weight' out" in text
        assert "fully_shard(self" in text


# DDP
class Branches(Net):
    """Uses one of two layers: the first process the first, the second one the second."""

    def __init__(self, by_rank: bool = True) -> None:
        super().__init__()
        self.model = nn.Linear(4, CLASSES)
        self.left, self.right = nn.Linear(CLASSES, CLASSES), nn.Linear(CLASSES, CLASSES)
        self.by_rank = by_rank

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        layer = self.left if self.global_rank == 0 or not self.by_rank else self.right
        return F.cross_entropy(layer(self.model(x)), y)

    validation_step = L.Module.validation_step


def branches(rank: int, **options: Any) -> dict[str, Any]:
    torch.manual_seed(3)
    return fit(DDPStrategy(**options), Branches()).strategy.module_state()


def own_hook(state, bucket):  # torch looks at the annotations
    state.append(bucket.index())
    work = distributed.all_reduce(bucket.buffer().div_(distributed.get_world_size()), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def wrapped_hook(hook: Any) -> Any:
    def both(state, bucket):
        WRAPPED.append(1)
        return hook(state, bucket)

    return both


class Wrapper(DistributedDataParallel):
    made = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        Wrapper.made += 1


WRAPPED: list[int] = []
EXACT: dict[str, dict[str, Any]] = {
    "find_unused_parameters": {"find_unused_parameters": True},
    "static_graph": {"static_graph": True},
    "tiny buckets": {"bucket_cap_mb": 0.001},
    "no views": {"gradient_as_bucket_view": False},
    "no buffers": {"broadcast_buffers": False},
    "wrapper": {"wrapper": Wrapper},
    "hook": {"ddp_comm_hook": own_hook, "ddp_comm_wrapper": wrapped_hook},
}


def ddp(rank: int) -> Any:
    exact = {}
    state: list[int] = []
    for name, options in EXACT.items():
        own = {"ddp_comm_state": state} if name == "hook" else {}
        trainer = fit(DDPStrategy(**options, **own), built(), accumulate_grad_batches=3, gradient_clip_val=0.5)
        exact[name] = trainer.strategy.module_state()
    reduced = {hook: fit(DDPStrategy(ddp_comm_hook=hook), built(optimizer="SGD")) for hook in ("bf16", "fp16")}
    power, losses = built(), Losses()
    fit(DDPStrategy(ddp_comm_hook="powersgd"), power, max_steps=60, callbacks=losses)
    return {
        "exact": exact,
        "reduced": {name: trainer.strategy.module_state() for name, trainer in reduced.items()},
        "losses": losses.values,
        "equal": [torch.stack(x).std(0).max().item() for x in gathered(power)],
        "hook": (len(state), len(WRAPPED)),
        "wrapped": Wrapper.made,
        "branches": branches(rank, find_unused_parameters=True),
    }


def gathered(net: L.Module) -> list[list[torch.Tensor]]:
    """Return each weight of all processes."""
    found: list[Any] = [None, None]
    distributed.all_gather_object(found, [p.detach() for p in net.parameters()])
    return [list(pair) for pair in zip(*found, strict=True)]


class Losses(L.Callback):
    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.values.append(float(outputs["loss"]))


def test_options_of_ddp():
    first, second = ranks(2, ddp)
    wanted = alone(built(), 3, 0.5)
    for name in EXACT:
        assert_near(first["exact"][name], wanted, 5e-6)
    for name, within in (("bf16", 5e-3), ("fp16", 5e-4)):
        assert_near(first["reduced"][name], alone(built(optimizer="SGD")), within)
    assert sum(first["losses"][-7:]) < 0.8 * sum(first["losses"][:7])
    assert max(first["equal"]) == 0
    assert first["hook"][0] == first["hook"][1] >= STEPS
    assert first["wrapped"] == second["wrapped"] == 1
    one, both = two_branches(), first["branches"]
    for name, value in one.items():
        torch.testing.assert_close(both[name], value, rtol=1e-5, atol=1e-6)


def two_branches() -> dict[str, torch.Tensor]:
    """Return the weights when each half of a batch takes its own branch."""
    torch.manual_seed(3)
    net = Branches()
    optimizer = net.configure_optimizers()
    x, y = data().tensors
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        hidden, wanted = net.model(x[rows]), y[rows]
        halves = [F.cross_entropy(layer(hidden[r::2]), wanted[r::2]) for r, layer in enumerate((net.left, net.right))]
        optimizer.zero_grad()
        (sum(halves) / 2).backward()
        optimizer.step()
    return net.state_dict()


def wrong_hooks(rank: int) -> list[str]:
    texts = []
    for options in ({"ddp_comm_hook": "int8"}, {"ddp_comm_hook": 3}):
        with pytest.raises(Exception) as caught:  # noqa: PT011  its own error, or another rank's
            fit(DDPStrategy(**options), built())
        texts.append(str(caught.value))
    with pytest.raises(Exception) as caught:  # noqa: PT011
        branches(rank)
    return [*texts, str(caught.value)]


def test_what_ddp_refuses():
    for unknown, no_hook, unused in ranks(2, wrong_hooks):
        assert "'int8'" in unknown
        assert "'powersgd'" in unknown
        assert "DDPStrategy(comm_hook=3 (int))" in no_hook
        assert "find_unused_parameters" in unused


# FSDP
def of_width(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and module.out_features == 2 * WIDTH


FSDP: dict[str, dict[str, Any]] = {
    "classes": {"auto_wrap_policy": {Block}},
    "patterns": {"auto_wrap_policy": ["model.[1-2]", "model.*.up"]},
    "function": {"auto_wrap_policy": of_width},
    "keeps": {"reshard_after_forward": False},
    "keeps parts": {"reshard_after_forward": 2},
    "SHARD_GRAD_OP": {"sharding_strategy": "SHARD_GRAD_OP"},
    "cpu_offload": {"cpu_offload": True},
    "activation_checkpointing": {"activation_checkpointing": True},
    "policy": {"activation_checkpointing_policy": {Block}},
}
UNITS = {"classes": 4, "patterns": 2 + 4, "function": 4, "keeps": 4}


def fsdp(rank: int) -> Any:
    found, units = {}, {}
    for name, options in FSDP.items():
        net = built()
        trainer = fit(FSDPStrategy(**options), net, accumulate_grad_batches=3, gradient_clip_val=0.5)
        found[name] = trainer.strategy.module_state()
        units[name] = sum(isinstance(part, FSDPModule) for part in net.modules()) - 1
    mixed = fit(FSDPStrategy(mixed_precision=(torch.bfloat16, torch.float32)), built()).strategy.module_state()
    return found, units, mixed, by_policy(rank)


def by_policy(rank: int) -> dict[str, torch.Tensor]:
    """Return the weights after a plain loop in which FSDP2's policy alone casts, without autocast."""
    net, policy = built(), MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for part in (*net.model[1:-2], net.model):
        fully_shard(part, mp_policy=policy)
    optimizer = net.configure_optimizers()
    loader = DataLoader(data(), BATCH // 2, sampler=range(rank, len(data()), 2))
    for x, y in itertools.islice(loader, STEPS):
        optimizer.zero_grad()
        F.cross_entropy(net.model(x), y).float().backward()
        optimizer.step()
    return {name: weight.full_tensor() for name, weight in net.named_parameters()}


def test_options_of_fsdp():
    found, units, mixed, by_policy_alone = ranks(2, fsdp)[0]
    wanted = alone(built(), 3, 0.5)
    for name in FSDP:
        assert_near(found[name], wanted, 5e-6)
    assert {name: units[name] for name in UNITS} == UNITS
    assert_near(mixed, by_policy_alone, 0)


def hybrid(rank: int) -> Any:
    strategy = FSDPStrategy(sharding_strategy="HYBRID_SHARD", device_mesh=(2, 2), meta=True)
    net = Builds()  # without a seed: replicas must still be equal
    trainer = fit(strategy, net, 4)
    parts = [p.to_local().detach() for p in net.parameters()]
    trainer.strategy.barrier()
    everybody = trainer.strategy.collectives.all_gather_object(parts)
    return strategy.sizes, all(torch.equal(a, b) for a, b in zip(everybody[rank % 2], parts, strict=True))


class Builds(Net):
    """Builds its layers in configure_model, as FSDPStrategy(meta=True) needs it; some of it in __init__."""

    def __init__(self, seed: int | None = None, wrong: str = "") -> None:
        super().__init__()
        del self.model
        torch.manual_seed(9)
        self.scale = nn.Parameter(torch.rand(CLASSES))
        self.wrong = wrong
        if seed is None:
            torch.seed()
        else:
            torch.manual_seed(seed)

    def configure_model(self) -> None:
        if hasattr(self, "model"):
            return
        self.model = nn.Sequential(
            nn.Linear(4, WIDTH), *(Block(WIDTH) for _ in range(4)), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, CLASSES)
        )
        if self.wrong == "values":
            nn.init.zeros_(self.model[0].weight)
        if self.wrong == "no reset":
            self.model.append(Scale())
        if self.wrong == "tensor":
            self.model[0].extra = torch.zeros(2)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))


class FirstWeights(L.Callback):
    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.state = {name: value.clone() for name, value in trainer.strategy.module_state().items()}


def meta(rank: int) -> Any:
    first = []
    for lazily in (True, False):
        weights = FirstWeights()
        net = Builds(5)
        trainer = fit(FSDPStrategy(meta=lazily), net, callbacks=weights)
        first.append((weights.state, trainer.strategy.module_state()))
    texts = []
    for what in ("values", "no reset", "tensor"):
        with pytest.raises(Exception) as caught:  # noqa: PT011  its own error, or another rank's
            fit(FSDPStrategy(meta=True), Builds(5, what))
        texts.append(str(caught.value))
    return first, texts


def test_building_without_memory_gives_the_same_values():
    (lazy, eager), texts = ranks(2, meta)[0]
    net = Builds(5)
    net.configure_model()
    assert list(lazy[0]) == list(eager[0]) == list(net.state_dict())
    for name, value in net.state_dict().items():
        assert torch.equal(lazy[0][name], value), name
        assert torch.equal(lazy[1][name], eager[1][name]), name
    assert "sets the values of a parameter (zero_) while the module is built without memory" in texts[0]
    assert "test_options.py" in texts[0]
    assert "holds 'factor', and has no `reset_parameters`" in texts[1]
    assert "its attribute 'extra' is a tensor that is no parameter and no buffer" in texts[2]


def test_hybrid_copies_are_equal_without_a_seed():
    for sizes, equal in ranks(4, hybrid):
        assert (sizes["replicate"], sizes["shard"]) == (2, 2)
        assert equal


# all
def after_evaluation(rank: int) -> Any:
    """Change weights by hand after a validation that leaves parameters gathered, and train on."""
    strategies = {"keeps": FSDPStrategy(reshard_after_forward=False), "pipeline": MeshStrategy(pipeline=2, shard=1)}
    states = {}
    for name, strategy in strategies.items():
        net = built(optimizer="SGD")
        trainer = fit(strategy, net, 2 if name == "keeps" else 1, callbacks=Halves(), val_check_interval=2)
        states[name] = trainer.strategy.module_state()
    return states


class Halves(L.Callback):
    """Multiplies all weights after the validation in the middle."""

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if trainer.global_step == 2:
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(0.5)


def test_weights_that_are_changed_after_a_validation_are_used():
    net = built(optimizer="SGD")
    plain_loop(net, 2, 1, BATCH)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(0.5)
    optimizer = net.configure_optimizers()
    x, y = data().tensors
    for step in range(2, STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.zero_grad()
        F.cross_entropy(net.model(x[rows]), y[rows]).backward()
        optimizer.step()
    for state in ranks(2, after_evaluation)[0].values():
        assert_near(state, net.state_dict(), 5e-6)
