"""Seeds and the state of the random number generators."""

from __future__ import annotations

import ctypes
import os
import random
import secrets
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

from lightlib import report
from lightlib.errors import MisconfigurationException
from lightlib.launch.environment.detect import started
from lightlib.launch.environment.variables import NAMES

SEED_VARIABLE = "PL_GLOBAL_SEED"
WORKERS_VARIABLE = "PL_SEED_WORKERS"
CHOSEN_VARIABLE = "LIGHTLIB_CHOSEN_SEED"  # the result of `choose_seed`, for this process and those that it starts
_last_of_numpy: tuple[bytes | None, list[Any]] = (None, [])  # the memory of its generator, and the state
_JOBS = [name for kinds in NAMES.values() for names in kinds for name in names.job]
_RENDEZVOUS = ("TORCHELASTIC_RUN_ID", *_JOBS, "SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT")


def seed_everything(seed: int | str | None = None, workers: bool = False, verbose: bool = True) -> int:
    """Seed the generators of Python, NumPy (when it is imported) and torch on every device.

    Args:
        seed: 0 to 2**32 - 1. Default: the environment variable ``PL_GLOBAL_SEED``, else 0.
        workers: Accepted for Lightning's sake and kept in ``PL_SEED_WORKERS``: in every DataLoader worker Python, NumPy
            and torch are always seeded from this seed, the epoch and the sample.
        verbose: Print the seed.

    Returns:
        The seed, which is also put into ``PL_GLOBAL_SEED`` for child processes.

    Raises:
        MisconfigurationException: The seed is not an integer of that range.

    Example:
        >>> seed_everything(7, verbose=False)
        7
    """
    requested = os.environ.get(SEED_VARIABLE, "0") if seed is None else seed
    try:
        value = int(requested)
    except (TypeError, ValueError):
        value = -1
    if not 0 <= value < 2**32 or isinstance(requested, bool) or (isinstance(requested, float) and requested != value):
        source = f"the environment variable {SEED_VARIABLE}" if seed is None else "seed_everything"
        raise MisconfigurationException(
            f"{source} got the seed {requested!r}.",
            expected="an integer from 0 to 4294967295.",
            fix="seed_everything(42)",
        )
    if verbose:
        report.info(f"Seed set to {value}")
    os.environ[SEED_VARIABLE] = str(value)
    os.environ[WORKERS_VARIABLE] = str(int(workers))
    random.seed(value)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(value)
    torch.manual_seed(value)
    return value


def choose_seed() -> int:
    """Return a seed for a run for which the user gave none.

    It is ``PL_GLOBAL_SEED`` if the user has set it, the first process's seed in the processes that it has started, the
    same on all processes that a launcher has started together, and otherwise a random one.
    """
    variable, chosen = os.environ.get(SEED_VARIABLE), os.environ.get(CHOSEN_VARIABLE)
    several = started()
    if variable is not None and (variable != chosen or several):
        return seed_everything(verbose=False)
    together = "".join(os.environ.get(name, "") for name in _RENDEZVOUS)
    seed = zlib.crc32(together.encode()) if several else secrets.randbelow(2**32)
    os.environ[CHOSEN_VARIABLE] = str(seed)
    return seed


def reset_seed() -> None:
    """Set the seed of the last `seed_everything` again; does nothing without one."""
    seed = os.environ.get(SEED_VARIABLE)
    if seed is not None and not seed_was_chosen():
        seed_everything(int(seed), workers=os.environ.get(WORKERS_VARIABLE) == "1", verbose=False)


def seed_was_chosen() -> bool:
    """Whether `choose_seed` chose the present seed, so that another seed is no change of the run."""
    return CHOSEN_VARIABLE in os.environ and os.environ.get(SEED_VARIABLE) == os.environ[CHOSEN_VARIABLE]


def rng_state() -> dict[str, Any]:
    """Return the state of all generators of the CPU, as values that `torch.load(weights_only=True)` reads."""
    state: dict[str, Any] = {"python": state_of_python(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        state["numpy"] = list(_state_of_numpy(sys.modules["numpy"].random))
    return state


def _state_of_numpy(numpy_random: Any) -> list[Any]:
    """Return the state of NumPy's global generator: the last one, if it has drawn nothing since.

    NumPy takes 0.1 ms to return a state, which is read before each batch of a stream. So the memory of the generator is
    compared with that of the last time, unless it holds a second normal number, which is in another place.
    """
    global _last_of_numpy  # noqa: PLW0603
    bits = numpy_random.get_bit_generator() if hasattr(numpy_random, "get_bit_generator") else None
    plain = type(bits).__name__ == "MT19937"
    words = ctypes.string_at(bits.ctypes.state_address, 4 * 625) if plain else None  # type: ignore[union-attr]
    if words is None or words != _last_of_numpy[0]:
        name, keys, position, has_gauss, cached = numpy_random.get_state()
        state = [name, keys.astype("<u4").tobytes(), int(position), int(has_gauss), float(cached)]
        is_unchanged = not has_gauss and words == state[1] + struct.pack("<i", position)
        _last_of_numpy = words if is_unchanged else None, state
    return _last_of_numpy[1]


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore the state that `rng_state` returned."""
    set_state_of_python(random, state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy  # optional: numpy

        name, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((name, numpy.array(_from_bytes(keys), dtype="uint32"), position, has_gauss, cached))


def state_of_python(generator: Any = random) -> list[Any]:
    """Return the state of a `random.Random`, by default of the module `random`."""
    version, internal, gauss = generator.getstate()
    return [version, _as_bytes(internal), gauss]


def set_state_of_python(generator: Any, state: Sequence[Any]) -> None:
    """Restore the state that `state_of_python` returned."""
    version, internal, gauss = state
    generator.setstate((version, _from_bytes(internal), gauss))


@lru_cache(2)  # of Python's global generator, before each batch of a stream
def _as_bytes(words: tuple[int, ...]) -> bytes:
    """Return 32-bit integers as bytes: a checkpoint would encode and check each of 625 values in a list."""
    return struct.pack(f"<{len(words)}I", *words)


def _from_bytes(words: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(words) // 4}I", words)


def part_random_numbers(state: dict[str, Any], place: int) -> None:
    """Give this process its own random numbers, derived from those of the first one.

    Args:
        state: The first process's `rng_state()`.
        place: 0 keeps the state unchanged; processes with the same place draw the same numbers.
    """
    set_rng_state(state)
    if place:
        seed = (int(torch.randint(2**62, ())) ^ (0x9E3779B97F4A7C15 * place)) % 2**32
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed)
        torch.manual_seed(seed)


@contextmanager
def isolate_rng(include_cuda: bool = True) -> Iterator[None]:
    """Restore all generators on exit, so that numbers drawn inside have no effect outside.

    Args:
        include_cuda: Also those of all CUDA devices, when any has been used.
    """
    state = rng_state()
    on_cuda = include_cuda and torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = torch.cuda.get_rng_state_all() if on_cuda else []
    try:
        yield
    finally:
        set_rng_state(state)
        if devices:
            torch.cuda.set_rng_state_all(devices)
