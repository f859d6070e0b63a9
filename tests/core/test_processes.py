"""Of two failures that belong together, each process raises the one that gives the reason."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lightlib.core import processes
from lightlib.core.processes import Processes
from lightlib.launch.watch.failure import Failure, OtherRankError

GONE = RuntimeError("[gloo/pair.cc:553] Connection closed by peer [10.0.0.2]:50381")
OWN = ValueError("of this rank")
HANG = "No progress for 3 s. Rank 0 has been at step 5."


@pytest.mark.parametrize(
    ("first", "error", "text"),
    [
        (Failure.of_error(0, OWN), OWN, str(OWN)),
        (Failure.of_error(1, ValueError("of another")), GONE, "of another"),
        (Failure.of_echo(0, GONE), GONE, str(GONE)),
        (Failure.hang(0, "late", HANG), GONE, HANG),  # rank 0 was late, and the other ranks had left when it arrived
        (Failure.hang(0, "late", HANG), OWN, str(OWN)),
        (Failure.hang(1, "late", HANG), GONE, HANG),
    ],
)
def test_what_rank_0_raises(monkeypatch, first, error, text):
    trainer = SimpleNamespace(strategy=SimpleNamespace(world_size=2, global_rank=0))
    monkeypatch.setattr(processes, "_watch", [SimpleNamespace(fail=lambda error: first)])
    raised = Processes(trainer).first_failure(error)
    assert str(raised).endswith(text)
    assert isinstance(raised, OtherRankError) == (text not in (str(OWN), str(GONE)))
