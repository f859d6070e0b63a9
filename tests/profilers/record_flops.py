"""Records Lightning's figures by name of a device; run it by a Python that has 2.6."""

import json
import warnings
from pathlib import Path
from unittest import mock

import torch
from lightning.fabric.utilities.throughput import get_available_flops

NAMES = """
NVIDIA H100 80GB HBM3|NVIDIA H100 NVL|NVIDIA H100 PCIe|NVIDIA H200 SXM1|NVIDIA GeForce RTX 4090|NVIDIA GeForce RTX 4080
NVIDIA GeForce RTX 4080 SUPER|NVIDIA L4|Tesla L40|NVIDIA A100-SXM4-40GB|NVIDIA RTX A6000|NVIDIA A40|NVIDIA A10G
NVIDIA GeForce RTX 3090 Ti|NVIDIA GeForce RTX 3090|NVIDIA GeForce RTX 3080|NVIDIA GeForce RTX 3070|Tesla T4
Quadro RTX 5000 with Max-Q Design|NVIDIA GeForce RTX 2080 SUPER|NVIDIA GeForce RTX 2080 Ti|NVIDIA GeForce RTX 2080
NVIDIA GeForce RTX 2070 SUPER|NVIDIA TITAN RTX|Tesla V100-SXM2-32GB|Tesla V100-PCIE-32GB|Tesla V100S-PCIE-32GB
NVIDIA GeForce GTX 1080|Unknown|NVIDIA H200
"""
KINDS = [torch.float64, torch.float32, "tfloat32", torch.bfloat16, torch.float16, torch.int8, "int4"]
AMPERE = "lightning.fabric.accelerators.cuda._is_ampere_or_later"


def main() -> None:
    warnings.simplefilter("ignore")
    found = {}
    for name in NAMES.strip().replace("\n", "|").split("|"):
        for tf32 in (False, True):
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            with mock.patch("torch.cuda.get_device_name", return_value=name), mock.patch(AMPERE, return_value=True):
                row = [get_available_flops(torch.device("cuda"), kind) for kind in KINDS]
            found[f"{name}, {'high' if tf32 else 'highest'}"] = row
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    (Path(__file__).parent / "flops.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
