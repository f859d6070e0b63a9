"""Figures of data sheets, compared with Lightning 2.6.6 (flops.json) by the name of a device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lightlib.compat.tools.flops import get_available_flops

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
