"""DeepSpeedStrategy without DeepSpeed: names, configuration, errors, the calls to an engine."""

from __future__ import annotations

import json
import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.precision.precision import Precision
from lightlib.precision.precision_classes import MixedPrecision
from lightlib.strategies.deepspeed import deepspeed_strategy as deepspeed
from lightlib.strategies.deepspeed.config import merged, resolved
from lightlib.strategies.deepspeed.deepspeed_strategy import DeepSpeedStrategy
from lightlib.strategies.deepspeed.engine import EnginePrecision, EngineScaler
from lightlib.strategies.group.collectives import SingleProcess
from tests.runs.modules import Regression
from tests.runs.plain import by_closure, subclass, with_methods
from tests.runs.quiet import QUIET


# names and options
@pytest.mark.parametrize(
    ("name", "stage", "optimizer", "parameters"),
    [
        ("deepspeed", 2, None, None),
        ("deepspeed_stage_1", 1, None, None),
        ("deepspeed_stage_2", 2, None, None),
        ("deepspeed_stage_2_offload", 2, "cpu", None),
        ("deepspeed_stage_3", 3, None, None),
        ("deepspeed_stage_3_offload", 3, "cpu", "cpu"),
        ("deepspeed_stage_3_offload_nvme", 3, "nvme", "nvme"),
    ],
)
def test_names_stand_for_stages(name: str, stage: int, optimizer: str | None, parameters: str | None) -> None:
    made = deepspeed.named(name)
    zero = made.config["zero_optimization"]
    assert zero["stage"] == made.stage == stage
    assert zero.get("offload_optimizer", {}).get("device") == optimizer
    assert zero.get("offload_param", {}).get("device") == parameters
    assert ("aio" in made.config) == (optimizer == "nvme")
    assert made.lockstep == (stage == 3)


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(
        UnknownNameError, match=r"Unknown strategy 'deepspeed_stage_4'\. Did you mean 'deepspeed_stage_"
    ):
        deepspeed.named("deepspeed_stage_4")


def test_options_become_the_documented_configuration() -> None:
    made = DeepSpeedStrategy(
        3, offload_parameters=True, offload_params_device="nvme", nvme_path="/disk", reduce_bucket_size=7,
        overlap_comm=False, thread_count=2, partition_activations=True,
    )  # fmt: skip
    assert made.config["zero_optimization"] == {
        "stage": 3, "contiguous_gradients": True, "overlap_comm": False, "allgather_partitions": True,
        "reduce_scatter": True, "allgather_bucket_size": 200_000_000, "reduce_bucket_size": 7,
        "sub_group_size": 1_000_000_000_000,
        "offload_param": {
            "device": "nvme", "buffer_count": 5, "buffer_size": 100_000_000, "max_in_cpu": 1_000_000_000,
            "pin_memory": False, "nvme_path": "/disk",
        },
    }  # fmt: skip
    assert made.config["aio"]["thread_count"] == 2
    assert made.config["activation_checkpointing"]["partition_activations"] is True
    assert "zero_optimization" not in DeepSpeedStrategy(zero_optimization=False).config
    assert DeepSpeedStrategy(0).stage == DeepSpeedStrategy(zero_optimization=False).stage == 0


def test_the_users_configuration_wins_and_auto_says_nothing(tmp_path: Any) -> None:
    config = {
        "zero_optimization": {"stage": 1, "overlap_comm": False, "reduce_bucket_size": "auto"},
        "dump_state": True,
    }
    path = tmp_path / "zero.json"
    path.write_text(json.dumps(config))
    for given in (config, path, str(path)):
        made = DeepSpeedStrategy(config=given, reduce_bucket_size=5, overlap_comm=True).config
        zero = made["zero_optimization"]
        assert (zero["stage"], zero["overlap_comm"], zero["reduce_bucket_size"]) == (1, False, 5)
        assert made["dump_state"] is True
    assert config["zero_optimization"]["reduce_bucket_size"] == "auto"  # it was not changed
    assert merged({"a": 1}, {"a": {"b": "auto", "c": 2}}) == {"a": {"c": 2}}


def test_a_configuration_of_mmengines_form_reaches_deepspeed_as_it_is() -> None:
    fp16 = {
        "enabled": True, "fp16_master_weights_and_grads": False, "loss_scale": 0, "loss_scale_window": 500,
        "hysteresis": 2, "min_loss_scale": 1, "initial_scale_power": 15,
    }  # fmt: skip
    zero = {
        "stage": 3, "allgather_partitions": True, "reduce_scatter": True, "allgather_bucket_size": 50_000_000,
        "reduce_bucket_size": 50_000_000, "overlap_comm": True, "contiguous_gradients": True, "cpu_offload": False,
    }  # fmt: skip
    made = DeepSpeedStrategy(config={"fp16": fp16, "zero_optimization": zero})
    assert made.stage == 3
    passed = resolved(made.config, "fp16", "16-mixed", 4, accumulate=1, global_batch_size=8)
    assert passed["fp16"] == fp16
    assert {key: passed["zero_optimization"][key] for key in zero} == zero


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"stage": 4}, r"DeepSpeedStrategy\(stage=4\)\.\n  Expected: 0, 1, 2 or 3"),
        ({"stage": 2, "config": {"zero_optimization": {"stage": 3}}}, "stage=2.*its config has stage 3"),
        ({"config": {"zero_optimization": True}}, "zero_optimization=True"),
        ({"config": 3}, r"config=3 \(int\)"),
        ({"config": "/nowhere.json"}, "'/nowhere.json'.* cannot be read"),
        ({"stage": 2, "offload_parameters": True}, "offload_parameters=True.*\n.*Expected: stage 3"),
        (
            {"stage": 2, "offload_optimizer": True, "offload_optimizer_device": "nvme"},
            "offload_optimizer=True, to nvme.*\n.*stage 3",
        ),
        ({"stage": 0, "offload_optimizer": True}, "Expected: stage 1, 2 or 3"),
        ({"offload_optimizer_device": "disk"}, "offload_optimizer_device of DeepSpeedStrategy 'disk'"),
        (
            {"overlap_events_": True},
            "option of DeepSpeedStrategy 'overlap_events_'. Did you mean 'overlap_events'",
        ),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], text: str) -> None:
    with pytest.raises(MisconfigurationException, match=text):
        DeepSpeedStrategy(**options)


def test_a_file_that_holds_no_object(tmp_path: Any) -> None:
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(MisconfigurationException, match=r"holds \[1\] \(list\)"):
        DeepSpeedStrategy(config=tmp_path / "list.json")


# the Trainer's arguments
def test_the_trainers_arguments_are_filled_in() -> None:
    whole = resolved({}, "fp16", "16-mixed", 4, accumulate=3, global_batch_size=96, scaling={"hysteresis": 5})
    assert whole["fp16"] == {"enabled": True, "hysteresis": 5}
    assert whole["bf16"] == {"enabled": False}
    assert whole["gradient_clipping"] == 0.0
    assert whole["train_micro_batch_size_per_gpu"] == 8
    assert whole["gradient_accumulation_steps"] == 1  # the loop divides the loss
    offloading = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    assert resolved(offloading, None, "32-true", 4, accumulate=3)["gradient_accumulation_steps"] == 3
    own = {"fp16": {"loss_scale": 8, "enabled": "auto"}, "gradient_clipping": 0.5, "train_batch_size": 24}
    whole = resolved(merged({}, own), "fp16", "16-mixed", 2, accumulate=3, scaling={"loss_scale": 0})
    assert whole["fp16"] == {"loss_scale": 8, "enabled": True}
    assert whole["gradient_clipping"] == 0.5
    assert whole["train_micro_batch_size_per_gpu"] == 4
    assert "train_batch_size" not in whole
    assert resolved({"gradient_clipping": 0.5}, None, "32-true", 1, clip=0.5)["gradient_clipping"] == 0.0


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"fp16": {"enabled": True}}, r"fp16: enabled=True.*precision='bf16-mixed'.*\n.*\n.*precision='16-mixed'"),
        ({"bf16": {"enabled": False}}, r"bf16: enabled=False.*\n.*\n.*precision='32-true'"),
        ({"gradient_clipping": 1.0}, "gradient_clipping=1.0, and the Trainer gradient_clip_val=0.5"),
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps=4.*accumulate_grad_batches=2"),
        ({"train_batch_size": 30}, "train_batch_size=30, which is not 7 samples at a time in 2 processes"),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8}, "which is not 8 samples at a time"),
        ({"optimizer": {"type": "Adam"}}, r"section 'optimizer'.*\n.*\n.*FusedAdam and DeepSpeedCPUAdam"),
        ({"scheduler": {"type": "WarmupLR"}}, "section 'scheduler'"),
    ],
)
def test_contradictions_with_the_trainer(config: dict[str, Any], text: str) -> None:
    with pytest.raises(MisconfigurationException, match=text):
        resolved(config, "bf16", "bf16-mixed", 2, accumulate=2, clip=0.5)


def test_another_global_batch_size() -> None:
    with pytest.raises(MisconfigurationException, match="train_batch_size=8, and the Trainer global_batch_size=16"):
        resolved({"train_batch_size": 8}, None, "32-true", 1, accumulate=1, global_batch_size=16)


def test_precision_in_deepspeeds_form() -> None:
    mixed = EnginePrecision.of(Precision.named("bf16-mixed"), lambda: None)
    assert (mixed.half, mixed.converts_input, mixed.autocasts) == ("bf16", True, False)
    module = mixed.convert(nn.BatchNorm1d(2))
    assert (module.weight.dtype, module.running_mean.dtype) == (torch.bfloat16, torch.float32)
    assert mixed.step_context("cpu") is None
    assert EnginePrecision.of(Precision.named("32-true"), lambda: None).half is None
    with pytest.raises(MisconfigurationException, match="DeepSpeed has no precision='64-true'"):
        EnginePrecision.of(Precision.named("64-true"), lambda: None)
    with pytest.raises(MisconfigurationException, match="engine scales the loss itself"):
        EnginePrecision.of(MixedPrecision("16-mixed", scaler={"init_scale": 8.0}), lambda: None)


def test_the_scale_is_saved_as_torch_saves_it() -> None:
    scaler = SimpleNamespace(cur_scale=1024.0, scale_factor=2.0, scale_window=100, cur_iter=7, last_overflow_iter=3)
    own = EngineScaler(lambda: SimpleNamespace(optimizer=SimpleNamespace(loss_scaler=scaler)))
    torchs = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    state = own.state_dict()
    assert state == {**torchs.state_dict(), "_growth_tracker": 3}
    scaler.cur_scale, scaler.last_overflow_iter = 1.0, -1
    own.load_state_dict(state)
    assert (scaler.cur_scale, scaler.last_overflow_iter) == (1024.0, 3)
    static = EngineScaler(
        lambda: SimpleNamespace(optimizer=SimpleNamespace(loss_scaler=SimpleNamespace(cur_scale=1.0)))
    )
    assert static.state_dict() == {}


# the package
def test_without_the_package_the_trainer_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(
        MisconfigurationException, match=r"not installed(.|\n)*pip install 'deepspeed(.|\n)*zero3(.|\n)*C\+\+ compiler"
    ):
        L.Trainer(accelerator="cpu", strategy="deepspeed_stage_2")


class Zero:
    """DeepSpeed's optimizer around the user's, as far as the strategy uses it."""

    def __init__(self, base: torch.optim.Optimizer, calls: list[Any], clip: float) -> None:
        self.optimizer, self.calls, self.clip_grad = base, calls, clip
        self.loss_scale, self.external_loss_scale, self.custom_loss_scaler = 1.0, None, False
        self.single_partition_of_fp32_groups = self.fp32_partitioned_groups_flat = None

    def override_loss_scale(self, scale: float) -> None:
        self.calls.append(("override_loss_scale", scale))
        self.external_loss_scale, self.custom_loss_scaler = scale, True

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.calls.append("zero_grad")
        self.optimizer.zero_grad(set_to_none)


class Engine:
    """An engine that records its calls and trains on one device."""

    device = torch.device("cpu")

    def __init__(self, calls: list[Any], overflows: tuple[int, ...], model: nn.Module, optimizer: Any, **given: Any):
        self.calls, self.overflows, self.module, self.config = calls, overflows, model, given["config"]
        self.optimizer = None if optimizer is None else Zero(optimizer, calls, self.config["gradient_clipping"])
        self.steps, self.applied = 0, False
        self.norm: float | None = None
        calls.append(("initialize", type(model.module).__name__))

    def __call__(self, *args: Any) -> Any:
        self.calls.append("forward")
        return self.module(*args)

    def set_gradient_accumulation_boundary(self, last: bool) -> None:
        self.calls.append(("boundary", last))

    def backward(self, loss: torch.Tensor, scale_wrt_gas: bool = True) -> None:
        assert not scale_wrt_gas
        self.calls.append("backward")
        loss.backward()

    def step(self) -> None:
        zero = self.optimizer
        self.calls.append(("step", zero.clip_grad))
        self.steps += 1
        self.applied = self.steps not in self.overflows
        parameters = [p for group in zero.optimizer.param_groups for p in group["params"]]
        self.norm = float(nn.utils.clip_grad_norm_(parameters, zero.clip_grad or float("inf")))
        if self.applied:
            zero.optimizer.step()

    def was_step_applied(self) -> bool:
        return self.applied

    def get_global_grad_norm(self) -> float | None:
        return self.norm

    def destroy(self) -> None:
        self.calls.append("destroy")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stand-ins for DeepSpeed and the process group; the list of calls to the engine."""
    noted: list[Any] = []
    package: Any = ModuleType("deepspeed")
    package.overflows = ()
    package.accelerator = SimpleNamespace(get_accelerator=lambda: SimpleNamespace(device_name=lambda: "cpu"))
    package.init_distributed = lambda **given: None
    package.initialize = lambda **given: (Engine(noted, package.overflows, **given), None, None, None)
    monkeypatch.setitem(sys.modules, "deepspeed", package)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(deepspeed, "join", lambda *given: SingleProcess())
    monkeypatch.setattr(deepspeed.consistency, "share_values", lambda *given: None)
    return noted


class Net(Regression):
    def __init__(self) -> None:
        super().__init__(2)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def loader() -> DataLoader[Any]:
    torch.manual_seed(0)
    return DataLoader(TensorDataset(torch.randn(6, 2)), 2)


def trainer(strategy: Any = None, **options: Any) -> L.Trainer:
    return L.Trainer(**QUIET, devices=1, max_epochs=1, strategy=strategy or DeepSpeedStrategy(), **options)


def test_the_engine_is_asked_in_the_order_of_the_loop(calls: list[Any]) -> None:
    run = trainer(accumulate_grad_batches=2, gradient_clip_val=0.25)
    run.fit(Net(), loader())
    forward = ["forward", "backward"]
    assert calls == [
        ("initialize", "Net"),
        "zero_grad", ("boundary", False), *forward, ("boundary", True), *forward, ("step", 0.25),
        "zero_grad", ("boundary", True), *forward, ("step", 0.25),
    ]  # fmt: skip
    assert run.global_step == 2
    assert float(run.gradient_norm) == run.strategy._engine.norm > 0.25  # before clipping
    assert run.strategy._engine.optimizer.clip_grad == 0.0
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.025)  # the schedule holds the user's optimizer
    assert isinstance(run.optimizers[0], torch.optim.SGD)


def test_the_numbers_are_those_of_one_device(calls: list[Any]) -> None:
    torch.manual_seed(1)
    one = Net()
    torch.manual_seed(1)
    other = Net()
    trainer(accumulate_grad_batches=2).fit(one, loader())
    trainer("single_device", accumulate_grad_batches=2).fit(other, loader())
    assert torch.equal(one.net.weight, other.net.weight)


def test_steps_that_the_engine_skips_are_not_counted(calls: list[Any]) -> None:
    sys.modules["deepspeed"].overflows = (2,)
    run = trainer()
    run.fit(Net(), loader())
    assert run.global_step == 2
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.025)


def test_weights_of_losses_reach_the_engine_as_a_loss_scale(calls: list[Any]) -> None:
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.net(batch[0]).square()
        return {"loss": loss.sum(), "weight": float(batch_idx + 1)}

    run = trainer(accumulate_grad_batches=3)
    run.fit(with_methods(Net, training_step), loader())
    # divided by the first weight, 1, at once; by the sum, 6, in the end
    assert calls[-2:] == [("override_loss_scale", pytest.approx(6.0)), ("step", 0.0)]
    assert run.strategy._engine.optimizer.custom_loss_scaler is False


def test_an_evaluation_alone_needs_no_engine(calls: list[Any]) -> None:
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss", self.net(batch[0]).square().mean())

    assert trainer().validate(with_methods(Net, validation_step), loader(), verbose=False)[0]["loss"] > 0
    assert calls == []


def test_a_second_fit_builds_a_new_engine(calls: list[Any]) -> None:
    run, module = trainer(), Net()
    run.fit(module, loader())
    run.max_epochs = 2
    run.fit(module, loader())
    assert [call for call in calls if call == "destroy" or call[0] == "initialize"] == [
        ("initialize", "Net"), "destroy", ("initialize", "Net"),
    ]  # fmt: skip
    assert run.current_epoch == 2


def test_optimizer_step_of_the_users_is_called_with_a_closure(calls: list[Any]) -> None:
    run = trainer()
    run.fit(with_methods(Net, optimizer_step=by_closure), loader())
    assert calls[1:6] == ["zero_grad", ("boundary", True), "forward", "backward", ("step", 0.0)]
    assert run.global_step == 3


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (subclass(Net, automatic_optimization=False), "Given has automatic_optimization=False"),
        (subclass(Net, backward=lambda self, loss: loss.backward()), "Given has a `backward` of its own"),
        (
            subclass(Net, configure_optimizers=lambda self: [torch.optim.SGD([p], lr=0.1) for p in self.parameters()]),
            "returned several optimizers",
        ),
        (
            subclass(Net, configure_optimizers=lambda self: torch.optim.LBFGS(self.parameters())),
            "LBFGS evaluates the loss several times",
        ),
    ],
)
def test_what_the_engine_cannot_do_is_refused(calls: list[Any], kind: type[Net], text: str) -> None:
    with pytest.raises(MisconfigurationException, match=text):
        trainer().fit(kind(), loader())


def test_clipping_by_value_is_refused(calls: list[Any]) -> None:
    with pytest.raises(MisconfigurationException, match="gradient_clip_algorithm='value'"):
        trainer(gradient_clip_val=0.1, gradient_clip_algorithm="value").fit(Net(), loader())


def test_the_configuration_is_compared_with_the_trainer_before_training(calls: list[Any]) -> None:
    with pytest.raises(MisconfigurationException, match=r"gradient_accumulation_steps=2.*accumulate_grad_batches=1"):
        trainer(DeepSpeedStrategy(config={"gradient_accumulation_steps": 2})).fit(Net(), loader())
    assert calls == []


def test_a_slow_optimizer_is_warned_of(calls: list[Any]) -> None:
    with pytest.warns(match="SGD is offloaded to cpu.*DeepSpeedCPUAdam"):
        trainer(DeepSpeedStrategy(offload_optimizer=True)).fit(Net(), loader())


def test_another_kind_of_device_than_deepspeed_has_chosen(calls: list[Any]) -> None:
    chosen = SimpleNamespace(get_accelerator=lambda: SimpleNamespace(device_name=lambda: "cuda"))
    sys.modules["deepspeed"].accelerator = chosen
    with pytest.raises(MisconfigurationException, match=r"computes on 'cuda'.*on 'cpu'.*\n.*\n.*DS_ACCELERATOR=cpu"):
        trainer().fit(Net(), loader())


def test_its_messages_have_the_asked_level_and_local_rank_is_put_back(calls: list[Any], monkeypatch: Any) -> None:
    import os

    trainer(DeepSpeedStrategy(logging_level=logging.ERROR)).fit(Net(), loader())
    assert logging.getLogger("DeepSpeed").level == logging.ERROR
    assert logging.root.manager.disable == 0
    assert "LOCAL_RANK" not in os.environ


def test_state_that_cannot_be_gathered_is_an_error_and_no_wrong_file(calls: list[Any], tmp_path: Any) -> None:
    run = trainer()
    run.fit(Net(), loader())
    own = run.strategy._engine.optimizer
    own.swap_optimizer, own.fp32_partitioned_groups_flat = True, [torch.zeros(3)]
    group = run.strategy._engine.optimizer.optimizer.param_groups[0]
    group["params"] = []  # as ZeRO-3 leaves it
    with pytest.raises(MisconfigurationException, match="cannot be saved: DeepSpeed has swapped it out to NVMe"):
        run.save_checkpoint(tmp_path / "no.ckpt")
    assert list(tmp_path.iterdir()) == []


def test_wrong_types_of_config() -> None:
    with pytest.raises(ArgumentTypeError, match="config="):
        DeepSpeedStrategy(config=[1])
