"""Trainer(compile=…, activation_checkpointing=…, activation_offload=…) on one device."""

from __future__ import annotations

import copy
import pickle
import sys

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import lightlib as L
from lightlib.errors import MisconfigurationException
from lightlib.strategies import (
    ActivationCheckpoint,
    Compile,
)
from lightlib.strategies.axes import transforms
from tests.runs.modules import LogsLoss, Regression
from tests.runs.plain import quiet_trainer, same_weights
from tests.strategies.axes.transforms.residual import by_hand, data, network

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # importing torch's compiler raises some
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),  # raised and suppressed by torch's compiler
]


@pytest.fixture(autouse=True)
def fresh_compiler(monkeypatch):
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # torch's bar would leave a thread behind
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def fit(module=None, **arguments):
    module = module or Regression(network())
    torch.manual_seed(3)
    quiet_trainer(**arguments).fit(module, data())
    return module


BACKEND = {"backend": "aot_eager"}
EAGER = [
    {"activation_checkpointing": True},
    {"activation_checkpointing": "blocks"},
    {"activation_checkpointing": ["net.[1-3]"]},
    {"activation_checkpointing": {"target": "net.[1-4]", "every": 2}},
    {"activation_checkpointing": {"save": ["linear", "aten::native_dropout"]}},
    {"activation_checkpointing": ActivationCheckpoint(save=[torch.ops.aten.mm.default])},
    {"activation_offload": True},
    {"activation_offload": "blocks"},
    {"activation_offload": {"target": "net.1", "pin_memory": False}},
    {"activation_offload": True, "activation_checkpointing": True},
]
COMPILED = [
    {"compile": BACKEND},
    {"compile": {"target": "blocks", **BACKEND}},
    {"compile": {"target": ["net.2", "net.4"], **BACKEND}},
    {"compile": Compile(backend="eager"), "activation_offload": "blocks"},
    {"compile": Compile(backend="aot_eager"), "activation_checkpointing": True},
    {"compile": {"target": "blocks", **BACKEND}, "activation_checkpointing": True, "activation_offload": True},
    {"compile": BACKEND, "activation_checkpointing": {"every": 2}, "activation_offload": "blocks"},
]


@pytest.mark.parametrize("arguments", [*EAGER, *COMPILED])
def test_the_bits_of_a_plain_loop_and_the_names_of_the_module(arguments):
    module = fit(**arguments)
    assert same_weights(module.net, by_hand())
    assert not any("forward" in vars(part) for part in module.modules())  # as before the run


# memory
def measured(**arguments):
    """Train, and return which hidden values are in memory after the last forward, and how many bytes are kept."""
    module, seen = Regression(network()), []

    def step(batch, batch_idx):
        kept = {}

        def keep(tensor):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = module.loss(batch)
        seen.append(([block.hidden[-1]() is not None for block in module.net[1:-1]], sum(kept.values())))
        return loss

    module.training_step = step
    fit(module, **arguments)
    return seen[-1]


@pytest.mark.parametrize(
    ("arguments", "alive"),
    [
        ({}, [True] * 4),
        ({"activation_checkpointing": True}, [False] * 4),
        ({"activation_checkpointing": {"target": "net.[1-4]", "every": 2}}, [False, True, False, True]),
        ({"activation_offload": "blocks"}, [False] * 4),
        ({"activation_offload": ["net.1", "net.3"]}, [False, True, False, True]),
        ({"activation_offload": {"target": "blocks", "pin_memory": False}}, [True] * 4),  # of the CPU: no copy
    ],
)
def test_hidden_values_are_freed_between_forward_and_backward(arguments, alive):
    assert measured(**arguments)[0] == alive


def test_bytes_that_are_kept():
    kept = {
        name: measured(activation_checkpointing=given)[1]
        for name, given in {"none": False, "linear": {"save": "linear"}, "every": {"every": 2}, "all": True}.items()
    }
    hidden, block = 16 * 32 * 4, 16 * 8 * 4  # bytes of the values within a block, and of its output
    assert kept["none"] - kept["all"] > 4 * hidden
    assert kept["all"] < kept["every"] < kept["none"]
    assert kept["all"] < kept["linear"] + 4 * (hidden + block)


def test_kept_operations_are_not_computed_again():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Products(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += func in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
            return func(*args, **(kwargs or {}))

    counts = {}
    for name, given in {"none": False, "all": True, "linear": {"save": ["linear"]}}.items():
        with Products() as products:
            fit(activation_checkpointing=given)
        counts[name] = products.count
    assert counts["all"] == counts["none"] + 4 * 4  # in each step the first layer of each block; torch stops there
    assert counts["linear"] == counts["none"]


def test_parameters_are_not_copied_to_the_cpu(monkeypatch):
    packed = []
    original = transforms._packed
    monkeypatch.setattr(transforms, "_packed", lambda save, tensor: packed.append(original(save, tensor)) or packed[-1])
    module = fit(activation_offload=True)
    stayed = {value.untyped_storage().data_ptr() for value in packed if isinstance(value, torch.Tensor)}
    assert stayed
    assert stayed <= {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    moved = [value for value in packed if not isinstance(value, torch.Tensor)]
    assert len(moved) > len(data()) * 4 * 2


# compilation
@pytest.mark.parametrize(("target", "graphs"), [("blocks", 3), (["net.[1-9]*"], 2), (True, 1)])
def test_equal_blocks_are_compiled_once(target, graphs):
    counter = CompileCounterWithBackend("eager")
    module = Regression(network(depth=12))
    compiles = quiet_trainer(compile={"target": target, "backend": counter, "fullgraph": True})
    compiles.fit(module, data())
    # "blocks" are all children of the Sequential: the first layer, the blocks, the last layer
    assert counter.frame_count == graphs
    compiles.fit(Regression(network(depth=12)), data())
    assert counter.frame_count == graphs


def test_a_copy_of_a_compiled_module_computes_with_its_own_parameters():
    net = network()
    Compile(backend="eager").change(net)  # nothing was chosen
    compiled = Compile(backend="eager")
    compiled.select(net, L.ParallelPlan())
    compiled.change(net)
    twin = copy.deepcopy(net)
    twin(torch.ones(1, 8)).sum().backward()
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(parameter.grad is not None for parameter in twin.parameters())


def test_a_trainer_that_has_run_can_be_copied():
    compiles = quiet_trainer(compile={"target": "blocks", **BACKEND}, activation_checkpointing={"save": ["mm"]})
    compiles.fit(Regression(network()), data())
    again = pickle.loads(pickle.dumps(compiles.strategy))
    assert [type(one) for one in again.transforms] == [ActivationCheckpoint, Compile]
    module = Regression(network())
    torch.manual_seed(3)
    copy.deepcopy(compiles).fit(module, data())


def test_a_line_that_breaks_the_graph_is_named():
    def step(batch, batch_idx):
        loss = module.loss(batch)
        torch._dynamo.graph_break()
        return loss

    module = Regression(network())
    module.training_step = step
    with pytest.raises(MisconfigurationException) as caught:
        fit(module, compile={"fullgraph": True, **BACKEND})
    line = step.__code__.co_firstlineno + 2
    text = str(caught.value)
    assert f"{__file__}:{line}: `torch._dynamo.graph_break()`" in text
    assert "Fix: move the line out of what is compiled" in text


def test_a_log_in_a_compiled_step_breaks_it_and_no_block():
    with pytest.raises(MisconfigurationException, match=r"modules\.py:\d+: `self\.log\(\"loss\", loss"):
        quiet_trainer(compile={"fullgraph": True, **BACKEND}).fit(
            LogsLoss(), [(torch.ones(4, 6), torch.ones(4).long())]
        )
    logs = Regression(network())
    logs.training_step = lambda batch, batch_idx: _logged(logs, logs.loss(batch))
    assert same_weights(fit(logs, compile={"target": "blocks", "fullgraph": True, **BACKEND}).net, by_hand())


def _logged(module, loss):
    module.log("loss", loss)
    return loss


# checkpoints
def built():
    """Return a module that makes its layers in configure_model."""
    module = Regression()
    module.net = None
    module.configure_model = lambda: setattr(module, "net", module.net or network())
    return module


@pytest.mark.parametrize("first", [*EAGER[4:6], EAGER[-1], COMPILED[-2], {}])
@pytest.mark.parametrize("then", [EAGER[0], COMPILED[0], {}])
def test_a_run_is_resumed_with_and_without(first, then, tmp_path):
    begins, module = quiet_trainer(**first), built()
    torch.manual_seed(3)
    begins.fit(module, data())
    begins.save_checkpoint(tmp_path / "a.ckpt")
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)["state_dict"]
    assert list(saved) == list(Regression(network()).state_dict())
    loaded = Regression.load_from_checkpoint(tmp_path / "a.ckpt", net=network())
    assert same_weights(loaded.net, by_hand())
    module = built()
    quiet_trainer(**{**then, "max_epochs": 2}).fit(module, data(), ckpt_path=tmp_path / "a.ckpt")
    assert same_weights(module.net, by_hand(epochs=2))


def test_without_them_nothing_is_called_and_nothing_changed():
    calls = []
    file = transforms.__file__

    def profile(frame, event, argument):
        if event == "call" and frame.f_code.co_filename == file:
            calls.append(frame.f_code.co_name)

    module, plain = Regression(network()), quiet_trainer()
    sys.setprofile(profile)
    try:
        plain.fit(module, data())
    finally:
        sys.setprofile(None)
    assert calls == []
    assert plain.strategy.transforms == ()
    assert plain.strategy.compiler is None
