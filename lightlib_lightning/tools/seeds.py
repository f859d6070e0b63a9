"""Lightning's functions for seeds: those of loader workers, and the seed set before."""

from __future__ import annotations

import random
import sys

import torch

from lightlib import report
from lightlib.data.seed import reset_seed

__all__ = ["max_seed_value", "min_seed_value", "pl_worker_init_function", "reset_seed"]

min_seed_value = 0
max_seed_value = 2**32 - 1
_BITS = 2**64 - 1


def pl_worker_init_function(worker_id: int, rank: int | None = None) -> None:
    """Seed a worker of a loader by the loader's base seed, its own number and the rank, as Lightning does.

    Args:
        worker_id: The worker's number.
        rank: The process's; default: the present one.
    """
    rank = report.rank_zero_only.rank if rank is None else rank
    base = torch.initial_seed() - worker_id
    first, second, third = _seeds(base, worker_id, rank or 0)
    torch.manual_seed(first)
    random.seed((second << 32) | third)
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        numpy.random.seed(numpy.random.SeedSequence([base, worker_id, rank or 0]).generate_state(4))


def _seeds(base: int, worker: int, rank: int) -> tuple[int, int, int]:
    """Return three seeds of 64 bits: MurmurHash3's last step, then Knuth's linear congruential generator."""
    value = (base << 32) | (worker << 16) | rank
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        value = ((value ^ (value >> 33)) * factor) & _BITS
    value ^= value >> 33
    seeds = []
    for _ in range(3):
        value = (value * 6364136223846793005 + 1) & _BITS
        seeds.append(value)
    return seeds[0], seeds[1], seeds[2]
