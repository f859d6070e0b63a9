"""Operations in closed form, and figures of data sheets as Lightning 2.6.6 has them (flops.json)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from lightlib.profilers.flops import OperationCounter, get_available_flops, measure_flops

RECORDED = json.loads((Path(__file__).parent / "flops.json").read_text(encoding="utf-8"))
KINDS = [torch.float64, torch.float32, "tfloat32", torch.bfloat16, torch.float16, torch.int8, "int4"]


@pytest.mark.filterwarnings("ignore:The (operations|data sheet)")
@pytest.mark.parametrize("case", sorted(RECORDED))
def test_figures_are_those_of_lightning(case, monkeypatch):
    name, matmul = case.rsplit(", ", 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(matmul)
    try:
        found = [get_available_flops(torch.device("cuda"), kind) for kind in KINDS]
    finally:
        torch.set_float32_matmul_precision(before)
    assert found == RECORDED[case]


def test_a_device_without_a_data_sheet_warns(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Chip 7")
    with pytest.warns(UserWarning, match="of 'Chip 7' are not known"):
        assert get_available_flops(torch.device("cuda"), torch.float16) is None
    assert get_available_flops(torch.device("cpu"), torch.float16) is None


def counted(call):
    counter = OperationCounter()
    counter.start()
    call()
    return counter.stop()


def test_a_linear_layer_and_a_convolution_in_closed_form():
    linear, convolution = torch.nn.Linear(5, 7), torch.nn.Conv2d(3, 4, kernel_size=3, stride=2)
    image = torch.zeros(2, 3, 9, 9)  # gives maps of 4 by 4
    assert counted(lambda: linear(torch.zeros(6, 5))) == 2 * 6 * 5 * 7
    assert counted(lambda: convolution(image)) == 2 * 2 * 4 * 4 * 4 * 3 * 3 * 3
    assert measure_flops(linear, lambda: linear(torch.zeros(6, 5))) == 2 * 6 * 5 * 7
    assert measure_flops(convolution, lambda: convolution(image)) == 2 * 2 * 4 * 4 * 4 * 3 * 3 * 3


def test_backward_counts_each_gradient_once():
    x = torch.zeros(6, 5)
    assert counted(lambda: torch.nn.Linear(5, 7)(x).sum().backward()) == 2 * (2 * 6 * 5 * 7)
    x.requires_grad_()
    assert counted(lambda: torch.nn.Linear(5, 7)(x).sum().backward()) == 3 * (2 * 6 * 5 * 7)


def test_without_gradients_a_composed_operation_is_counted_too():
    with torch.inference_mode():
        assert counted(lambda: torch.nn.functional.linear(torch.zeros(6, 5), torch.zeros(7, 5))) == 2 * 6 * 5 * 7


def test_the_formulas_are_those_of_torch():
    block = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def call():
        block(torch.zeros(2, 5, 8)).sum().backward()

    with FlopCounterMode(display=False) as theirs:
        call()
    assert counted(call) == theirs.get_total_flops() > 0


def test_a_recomputed_layer_counts_twice():
    layer = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh())
    x = torch.zeros(6, 5, requires_grad=True)
    assert counted(lambda: checkpoint(layer, x, use_reentrant=False).sum().backward()) == 4 * (2 * 6 * 5 * 7)


def test_compiled_functions_are_counted():
    layer = torch.compile(torch.nn.Linear(5, 7), backend="eager")
    layer(torch.zeros(6, 5))
    assert counted(lambda: layer(torch.zeros(6, 5))) == 2 * 6 * 5 * 7


def test_a_counter_that_was_not_started_or_starts_again():
    counter = OperationCounter()
    assert counter.stop() == 0
    counter.start()
    torch.zeros(2, 3) @ torch.zeros(3, 4)
    counter.start()  # an exception has left it on
    torch.zeros(1, 3) @ torch.zeros(3, 1)
    assert counter.stop() == 6
    assert counter.stop() == 0
