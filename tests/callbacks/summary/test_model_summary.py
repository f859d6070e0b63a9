"""ModelSummary: its counts and its table; it leaves everything unchanged."""

from __future__ import annotations

import random
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightlib import report
from lightlib.callbacks.summary.model_summary import ModelSummary, RichModelSummary, Summary, human, summarize
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError


class Net(nn.Module):
    example_input_array: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU())
        self.norm = nn.BatchNorm1d(64)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(64, 2)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.head(self.dropout(self.norm(self.encoder(x)))) * scale


def with_example(example: Any) -> Net:
    net = Net()
    net.example_input_array = example
    return net


def test_totals_are_those_of_plain_torch() -> None:
    net = Net()
    net.head.requires_grad_(False)
    summary = summarize(net)
    assert summary.total_parameters == sum(p.numel() for p in net.parameters())
    assert summary.trainable_parameters == sum(p.numel() for p in net.parameters() if p.requires_grad)
    assert summary.non_trainable_parameters == sum(p.numel() for p in net.head.parameters())
    assert summary.model_size == pytest.approx(4 * summary.total_parameters / 1e6)
    assert summary.total_flops is None


def test_the_size_is_that_of_the_elements() -> None:
    net = nn.Sequential(nn.Linear(10, 10, dtype=torch.float64), nn.Linear(10, 10, dtype=torch.bfloat16))
    assert summarize(net).model_size == pytest.approx(110 * (8 + 2) / 1e6)


def test_shared_parameters_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(100, 8)
            self.output = nn.Linear(8, 100, bias=False)
            self.output.weight = self.embedding.weight

    summary = summarize(Tied())
    assert summary.total_parameters == 800
    assert [layer.parameters for layer in summary.layers] == [800, 800]


@pytest.mark.parametrize(
    ("max_depth", "names"),
    [
        (0, []),
        (1, ["encoder", "norm", "dropout", "head"]),
        (2, ["encoder", "encoder.0", "encoder.1", "norm", "dropout", "head"]),
        (-1, ["encoder", "encoder.0", "encoder.1", "norm", "dropout", "head"]),
    ],
)
def test_the_depth_says_which_modules_are_listed(max_depth: int, names: list[str]) -> None:
    assert [layer.name for layer in summarize(Net(), max_depth).layers] == names


def test_parameters_outside_of_the_listed_modules_have_a_row() -> None:
    net = Net()
    net.scale = nn.Parameter(torch.ones(7))
    row = summarize(net).layers[-1]
    assert (row.name, row.parameters) == ("(other parameters)", 7)


@pytest.mark.parametrize(
    "example",
    [torch.randn(4, 32), (torch.randn(4, 32), 2.0), {"x": torch.randn(4, 32)}, torch.randn(4, 32, dtype=torch.float64)],
    ids=["tensor", "tuple", "dict", "another dtype"],
)
def test_an_example_tells_sizes_and_flops(example: Any) -> None:
    summary = summarize(with_example(example))
    layers = {layer.name: layer for layer in summary.layers}
    assert (layers["encoder"].in_size, layers["encoder"].out_size) == ([4, 32], [4, 64])
    assert layers["head"].flops == 2 * 4 * 64 * 2
    assert layers["norm"].flops == 0
    assert summary.total_flops == 2 * 4 * (32 * 64 + 64 * 2)


def test_a_convolution_and_a_linear_layer_have_the_operations_of_the_closed_form() -> None:
    class Image(nn.Sequential):
        example_input_array = torch.zeros(2, 3, 9, 9)

    layers = summarize(Image(nn.Conv2d(3, 4, kernel_size=3, stride=2), nn.Flatten(), nn.Linear(4 * 16, 5))).layers
    assert [layer.flops for layer in layers] == [2 * 2 * 4 * 16 * 3 * 9, 0, 2 * 2 * 64 * 5]


def test_sizes_of_several_inputs_and_outputs() -> None:
    class Two(nn.Module):
        def forward(self, a: Tensor, b: dict[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
            return a, {"b": b["x"], "n": 3}

    class Outer(nn.Module):
        example_input_array = (torch.ones(1, 2), {"x": torch.ones(3)})

        def __init__(self) -> None:
            super().__init__()
            self.two = Two()

        def forward(self, a: Tensor, b: dict[str, Tensor]) -> Any:
            return self.two(a, b=b)

    layer = summarize(Outer()).layers[0]
    assert layer.in_size == [[1, 2], {"x": [3]}]
    assert layer.out_size == [[1, 2], {"b": [3], "n": "?"}]


def test_the_example_changes_nothing() -> None:
    class Drawing(Net):
        def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
            random.random()
            torch.rand(3)
            if "numpy" in __import__("sys").modules:
                __import__("numpy").random.rand()
            assert not self.training
            assert not torch.is_grad_enabled()
            self.calls += 1
            self.replaced = torch.zeros(2)
            return super().forward(x, scale)

    numpy = pytest.importorskip("numpy")
    net = Drawing()
    net.register_buffer("calls", torch.zeros(()))
    net.register_buffer("replaced", torch.ones(1))
    net.norm.eval()
    net.example_input_array = torch.randn(4, 32)
    buffers = dict(net.named_buffers())
    values = {name: buffer.clone() for name, buffer in buffers.items()}
    modes = [module.training for module in net.modules()]
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy()
    assert summarize(net).total_flops
    assert all(buffer is buffers[name] for name, buffer in net.named_buffers())
    assert all(torch.equal(buffer, values[name]) for name, buffer in net.named_buffers())
    assert [module.training for module in net.modules()] == modes
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (numpy.random.get_state()[1] == states[2]).all()
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(not module._forward_hooks for module in net.modules())


def test_an_example_that_does_not_fit_is_a_warning_and_changes_nothing_either() -> None:
    net = with_example(torch.randn(4, 31))
    with pytest.warns(report.PossibleUserWarning, match=r"does not go through Net.forward: RuntimeError(.|\n)*Fix: "):
        summary = summarize(net)
    assert summary.total_flops is None
    assert "In sizes" not in str(summary)
    assert net.training
    assert net.head.training
    assert all(not module._forward_hooks for module in net.modules())


def test_lazy_modules_are_shown_and_stay_lazy() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.LazyLinear(4), nn.LazyBatchNorm1d())
    net.example_input_array = torch.ones(1, 3)
    summary = summarize(net)
    assert summary.total_parameters == 8
    assert isinstance(net[1].weight, nn.UninitializedParameter)
    assert [layer.uninitialized for layer in summary.layers] == [False, True, True]
    assert "0?" in str(summary)
    assert "Not counted: parameters of lazy modules" in str(summary)


def test_meta_parameters_are_counted_and_run() -> None:
    with torch.device("meta"):
        net = Net()
    net.example_input_array = torch.ones(4, 32)
    summary = summarize(net)
    assert summary.total_parameters == summarize(Net()).total_parameters
    assert summary.total_flops == 2 * 4 * (32 * 64 + 64 * 2)


def test_the_table_reads_like_this() -> None:
    net = with_example(torch.randn(4, 32))
    net.head.eval().requires_grad_(False)
    assert str(Summary(net)) == (
        "Name    | Type        | Params | Mode  | FLOPs  | In sizes | Out sizes\n"
        "----------------------------------------------------------------------\n"
        "encoder | Sequential  | 2.11 K | train | 16.4 K | [4, 32]  | [4, 64]\n"
        "norm    | BatchNorm1d |    128 | train |      0 | [4, 64]  | [4, 64]\n"
        "dropout | Dropout     |      0 | train |      0 | [4, 64]  | [4, 64]\n"
        "head    | Linear      |    130 | eval  | 1.02 K | [4, 64]  | [4, 2]\n"
        "----------------------------------------------------------------------\n"
        "2.24 K  Trainable params\n"
        "130     Non-trainable params\n"
        "2.37 K  Total params\n"
        "0.009   Total size of params (MB)\n"
        "5       Modules in train mode\n"
        "1       Modules in eval mode\n"
        "17.4 K  FLOPs of a forward"
    )


def test_without_flops_there_is_no_column_and_no_line() -> None:
    class Quiet(nn.Module):
        example_input_array = torch.ones(2)

        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.relu(x)

    for net in (Net(), Quiet()):
        assert "FLOPs" not in str(summarize(net))
    assert "In sizes" in str(summarize(Quiet()))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00 K"),
        (9995, "10.0 K"),
        (999_499, "999 K"),
        (999_500, "1.00 M"),
        (7e9, "7.00 B"),
    ],
)
def test_counts_are_written_in_about_three_digits(value: float, text: str) -> None:
    assert human(value) == text


def fake_trainer(rank: int = 0) -> Any:
    return types.SimpleNamespace(is_global_zero=rank == 0, world_size=1)


def test_the_callback_says_it_on_rank_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(report, "info", said.append)
    net: Any = Net()
    for rank in (1, 0):
        ModelSummary(max_depth=2).on_fit_start(fake_trainer(rank), net)
    assert said == [f"\n{Summary(net, 2)}"]
    ModelSummary(max_depth=0).on_fit_start(fake_trainer(), net)
    assert len(said) == 1


def test_a_second_fit_shows_only_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(report, "info", said.append)
    net: Any = Net()
    callback = ModelSummary()
    for _ in range(2):
        callback.on_fit_start(fake_trainer(), net)
    assert len(said) == 1
    net.requires_grad_(False)
    callback.on_fit_start(fake_trainer(), net)
    assert len(said) == 2


def test_the_rich_table_says_the_same(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "120")
    net: Any = with_example(torch.randn(4, 32))
    RichModelSummary(max_depth=1, header_style="bold blue").on_fit_start(fake_trainer(), net)
    out = capsys.readouterr().out
    for text in (
        "encoder",
        "BatchNorm1d",
        "2.11 K",
        "[4, 64]",
        "Trainable params: 2.37 K",
        "FLOPs of a forward: 17.4 K",
    ):
        assert text in out


def test_another_way_to_show_is_a_method_of_ones_own() -> None:
    class Kept(ModelSummary):
        def show(self, summary: Summary, **summarize_kwargs: Any) -> None:
            kept.append((summary.total_parameters, summarize_kwargs))

    kept: list[Any] = []
    net: Any = Net()
    Kept(max_depth=1, colour="red").on_fit_start(fake_trainer(), net)
    assert kept == [(2370, {"colour": "red"})]


def test_wrong_arguments_are_explained() -> None:
    with pytest.raises(
        MisconfigurationException, match=r"ModelSummary\(max_depth=-2\)\.\n  Expected: an int >= -1(.|\n)*Fix: "
    ):
        ModelSummary(max_depth=-2)
    with pytest.raises(ArgumentTypeError, match=r"ModelSummary\(max_depth='top' \(str\)\)\.\n  Expected: an int"):
        summarize(Net(), max_depth="top")
    with pytest.raises(ArgumentTypeError, match=r"ModelSummary\(model=3 \(int\)\)\.\n  Expected: a torch.nn.Module"):
        summarize(3)
    with pytest.raises(
        UnknownNameError, match=r"Unknown argument of ModelSummary 'maxdepth'. Did you mean 'max_depth'"
    ):
        ModelSummary(maxdepth=2)


def test_the_columns_can_be_read_by_lightnings_names():
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    model.example_input_array = torch.zeros(4, 3)
    summary = Summary(model.eval())
    assert [name for name, _ in summary.named_modules] == summary.layer_names == ["0", "1"]
    assert summary.named_modules[1][1] is model[1]
    assert summary.layer_types == ["Linear", "ReLU"]
    assert (summary.param_nums, summary.training_modes) == ([8, 0], [False, False])
    assert (summary.in_sizes, summary.out_sizes) == ([[4, 3], [4, 2]], [[4, 2], [4, 2]])
    assert Summary(nn.Sequential(nn.ReLU())).in_sizes == ["?"]
