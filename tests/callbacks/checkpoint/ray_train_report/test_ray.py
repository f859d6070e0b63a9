"""Ray Train with a changing number of workers: each sample counts once, the weights are equal."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from lightlib import optional
from tests.processes import programs

SCRIPT = Path(__file__).parents[3] / "distributed/scripts/ray_elastic.py"


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(590)
@pytest.mark.skipif(not optional.is_installed("ray"), reason="Ray is not installed (pip install 'ray[train]')")
def test_two_workers_one_and_two(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray keeps its token there
    environment = programs.environment(RAY_TRAIN_HEALTH_CHECK_INTERVAL_S="0.2")
    done = programs.interpreter(SCRIPT, tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert end["step"] == 36
    assert end["difference"] < 1e-6  # from the weights of one process
    kept = {}  # of a step that was trained again, the last time counts
    sizes = []
    for start, world_size, steps in end["attempts"]:
        sizes.append(world_size)
        kept = {step: samples for step, samples in kept.items() if step < start}
        kept |= {int(step): samples for step, samples in steps.items()}
    assert sizes == [2, 1, 2]
    for epoch in range(3):
        samples = Counter(sample for step in range(12 * epoch, 12 * epoch + 12) for sample in kept[step])
        assert samples == Counter(range(48))
