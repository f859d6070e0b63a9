"""What every test and doctest starts from, and what none may leave behind."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

pytest_plugins = ["tests.plugins.advice", "tests.plugins.tiers", "tests.plugins.timing"]
collect_ignore = ["lightlib_lightning/shims"]  # importing one switches compat on
SIGNALS = [s for s in signal.Signals if s.name in {"SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"}]
# Variables that may change during a test, each with its reason.
VARIABLES_THAT_MAY_CHANGE = {
    "PYTEST_CURRENT_TEST",  # pytest's own
    "CUDA_MODULE_LOADING",  # set by torch 2.6 when it looks for a GPU
    "KMP_INIT_AT_FORK",  # set by scikit-learn when it is imported first
    "KMP_DUPLICATE_LIB_OK",  # set by scikit-learn when it is imported first
    "PL_GLOBAL_SEED",  # seed_everything says the seed to the processes that are started later
    "PL_SEED_WORKERS",  # likewise
    "LIGHTLIB_CHOSEN_SEED",  # likewise, of a seed that LightningCLI has made up
    "GLOO_SOCKET_IFNAME",  # set for every process group of this process and of those that it starts
    "LIGHTLIB_GLOO_SOCKET_IFNAME",  # likewise
    "TORCHINDUCTOR_CACHE_DIR",  # set by torch when its compiler is imported first
}
# Threads that a library keeps for the process, by the start of their name.
# The second is that of the compiler of torch 2.6.
THREADS_THAT_MAY_STAY = re.compile(r"pytest_timeout|Thread-\d+ \(_read_thread\)")
SECONDS_FOR_THREADS_TO_END = 2.0


def pytest_configure(config: pytest.Config) -> None:
    """Compute on one thread, so that sums come out in one order, and judge no example by the time it takes."""
    config.add_cleanup(gc.freeze)  # the last to be called: Python ends without a look at each of a million objects
    if hasattr(os, "sched_setscheduler"):  # Linux
        # Processes that send each other messages take turns less often, those of a collective a third of the time.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    # Started in the background, a process ignores Ctrl-C and so do its children; the tests send it to themselves.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if config.getoption("numprocesses", None):
        return  # the process that deals out the tests runs none, and imports nothing of theirs
    import hypothesis
    import torch

    torch.set_num_threads(1)
    hypothesis.settings.register_profile("lightlib", deadline=None, database=None, print_blob=True)
    hypothesis.settings.load_profile("lightlib")


def pytest_collection_finish() -> None:
    """Leave what was imported out of each garbage collection from now on: it would take half a second."""
    gc.collect()
    gc.freeze()


def _compat_is_installed() -> bool:
    return "lightlib_lightning" in sys.modules and sys.modules["lightlib_lightning"].is_installed()


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path) -> Iterator[None]:
    """Seed all generators, work in an empty folder, and fail the test that leaves something behind."""
    import torch

    from lightlib.report import log, rank_zero_only

    random.seed(0)
    torch.default_generator.manual_seed(0)  # torch.manual_seed notes the stack for each kind of device: 1 ms per test
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    folder, variables, handlers = Path.cwd(), dict(os.environ), _handlers()
    threads, dtype, grad = set(threading.enumerate()), torch.get_default_dtype(), torch.is_grad_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    os.chdir(tmp_path)
    compat, rank, level = _compat_is_installed(), rank_zero_only.rank, log.level
    yield
    os.chdir(folder)
    rank_zero_only.rank = rank  # each Trainer sets it for the process, to that of the environment which it finds
    log.setLevel(level)
    if _compat_is_installed() and not compat:  # by an example of a page
        sys.modules["lightlib_lightning"].uninstall()
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # asked first, for the call is slow
        torch.use_deterministic_algorithms(deterministic)
    left = [
        *_changed_variables(variables),
        *(f"the handler of {name}" for name, handler in _handlers().items() if handler is not handlers[name]),
        *(f"the thread {name}" for name in _new_threads(threads)),
        *(["the default dtype"] if torch.get_default_dtype() != dtype else []),
        *(["gradients switched on or off"] if torch.is_grad_enabled() != grad else []),
        *(["a process group"] if torch.distributed.is_available() and torch.distributed.is_initialized() else []),
    ]
    _restore(variables, handlers, dtype, grad)
    if left:
        pytest.fail(f"the test left behind: {', '.join(left)}. Undo it where it was done.", pytrace=False)


def _handlers() -> dict[str, object]:
    return {number.name: signal.getsignal(number) for number in SIGNALS}


def _changed_variables(before: dict[str, str]) -> Iterator[str]:
    for name in sorted({*before, *os.environ} - VARIABLES_THAT_MAY_CHANGE):
        if before.get(name) != os.environ.get(name):
            yield f"the variable {name}={os.environ.get(name)!r}"


def _new_threads(before: set[threading.Thread]) -> list[str]:
    deadline = time.monotonic() + SECONDS_FOR_THREADS_TO_END
    while True:
        new = [thread.name for thread in threading.enumerate() if thread not in before]
        new = [name for name in new if not THREADS_THAT_MAY_STAY.match(name)]
        if not new or time.monotonic() > deadline:
            return new
        time.sleep(0.01)


def _restore(variables: dict[str, str], handlers: dict[str, object], dtype: torch.dtype, grad: bool) -> None:
    import torch

    for name in {*os.environ} - {*variables}:
        del os.environ[name]
    os.environ.update(variables)
    for number in SIGNALS:
        if signal.getsignal(number) is not handlers[number.name]:
            signal.signal(number, handlers[number.name])  # type: ignore[arg-type]  # it is what getsignal returned
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(grad)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
