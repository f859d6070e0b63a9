"""The kill campaign on the device: killed and restarted runs end as if never killed."""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.campaigns.campaign_kill import PRELOADED, campaign
from tests.campaigns.outcome import shortened
from tests.campaigns.program import Configuration
from tests.gpu.case import Case, DiffersError, Figures
from tests.gpu.device import Device

KILLS, SEED = 4, 1
CONFIGURATIONS = (
    Configuration("one", workers=2, accumulate=3, precision="fp16", asynchronous=True),
    Configuration("one", own=True),
    Configuration("one", batteries=True),
    Configuration("one", phased=True),
    Configuration("ddp", workers=2, asynchronous=True),
    Configuration("fsdp", precision="fp16"),
    Configuration("fsdp", asynchronous=True, format="directory"),
    Configuration("pipeline", accumulate=3),
)


def cases(device: Device, precisions: Sequence[str]) -> list[Case]:
    return [Case(how.name, devices=how.processes) for how in CONFIGURATIONS]


def run(name: str, device: Device) -> Figures:
    how = Configuration.named(f"{name}-{'pretended' if device.pretended else 'cuda'}")
    for module in PRELOADED:  # the runs are forks of this process, which must not use CUDA
        importlib.import_module(module)
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="gpu-kill-"))  # a TemporaryDirectory would end with the first fork
    try:
        records = campaign([how], KILLS, SEED, 1, folder, None, keep=False, once=False)
    finally:
        shutil.rmtree(folder)
    bad = [record for record in records if record["problem"] or record["differing"]]
    if bad or not records:
        found = bad[0]["problem"] or "; ".join(bad[0]["differing"][:3]) if bad else "the campaign ended without a case"
        raise DiffersError(f"{len(bad)} of {len(records)} runs are not equal: {shortened(found)}")
    kills = [kill for record in records for kill in record["kills"]]
    hit = Counter(phase for _, phase in kills)
    places = ", ".join(f"{phase} {count}" for phase, count in hit.items())
    return {"kills": len(kills), "equal runs": len(records), "where": places}
