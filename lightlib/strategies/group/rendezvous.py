"""Rendezvous: connects to rank 0's store and reports which ranks are missing."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from itertools import dropwhile
from typing import Any

from torch import distributed
from torch.distributed.rendezvous import rendezvous

from lightlib.errors import LightlibError
from lightlib.launch.environment.detect import Environment
from lightlib.launch.environment.network import listening_socket
from lightlib.strategies.group.attempt import agree_on_attempt
from lightlib.strategies.group.waiting import POLL, Waiting, named

_SECONDS_TO_CONNECT = 5.0
_ALL_HERE = "lightlib/here/all"
_MARK = secrets.token_hex(8)  # identifies this program: process ids repeat between containers


def meeting_place(environment: Environment, patience: timedelta, word_after: float = 30.0) -> Any:
    """Return the store of the rendezvous: it does not wait for other ranks, as `wait_for_all` does.

    Raises:
        LightlibError: Rank 0's port is in use, or rank 0 did not answer in time.
    """
    rank, size = environment.rank, environment.world_size
    if not environment.launched:
        return vars(distributed)["HashStore"]()  # local: opens no port
    address, port = environment.address, environment.port
    if _by_torchrun(environment) and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun keeps it
        make_stores = partial(rendezvous, "env://", rank, size, timeout=patience)
        return _connected(lambda: next(make_stores())[0], environment, patience, word_after)
    kind: Any = vars(distributed)["TCPStore"]  # not in torch's list of exports
    connect = partial(kind, address, port, size, rank == 0, patience, wait_for_workers=False, multi_tenant=True)
    if rank != 0:
        return _connected(connect, environment, patience, word_after)
    listening = listening_socket(environment)
    try:
        return connect() if listening is None else connect(master_listen_fd=listening.detach())
    except distributed.DistNetworkError as error:
        raise LightlibError(
            f"Rank 0 cannot wait for other ranks at {address}:{port}: {str(error).splitlines()[0]}",
            expected="an address of the machine of rank 0, with a free port.",
            fix="choose another MASTER_PORT, the same for all processes (`ss -ltnp` shows who uses this one).",
        ) from error


def _by_torchrun(environment: Environment) -> bool:
    """Whether torchrun sets the rendezvous address, also when a user's ClusterEnvironment has read it."""
    if environment.name in ("torchrun", "local"):
        return environment.name == "torchrun"
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("MASTER_PORT") == str(environment.port)


def _connected(connect: Callable[[], Any], environment: Environment, patience: timedelta, word_after: float) -> Any:
    """Return the result of `connect`, once the port is open: within torch this thread would not receive Ctrl-C."""
    waiting = Waiting(environment, patience, word_after)
    missing_rank = f"rank 0 at {environment.address}:{environment.port}"
    while (why := _silence(environment)) is not None:
        if waiting.due:
            waiting.report(f"{missing_rank} ({why})", speaker=environment.local_rank == 0)
        waiting.pause()
    outcome: Future[Any] = Future()

    def look() -> None:
        try:
            outcome.set_result(connect())
        except Exception as error:  # noqa: BLE001  raised again in the thread that waits
            outcome.set_exception(error)

    thread = threading.Thread(target=look, name="lightlib meeting", daemon=True)
    thread.start()
    missing_rank = f"{missing_rank}, where something else seems to listen"
    while thread.is_alive():
        if waiting.due:
            waiting.report(missing_rank, speaker=environment.local_rank == 0)
        thread.join(POLL)
    if isinstance(error := outcome.exception(), distributed.DistError):
        waiting.report(missing_rank, speaker=True, cause=error)
    return outcome.result()


def _silence(environment: Environment) -> str | None:
    """Return why rank 0 cannot be reached, or None."""
    try:
        socket.create_connection((environment.address, environment.port), _SECONDS_TO_CONNECT).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def prefix_of_attempt(meeting: Any, environment: Environment, patience: timedelta, word_after: float = 30.0) -> str:
    """Return the prefix of the keys of this attempt in the store, when all processes have arrived.

    The store of torchrun's agent outlives the processes that it restarts; any other one is rank 0's own and ends with
    it, so no prefix is needed there, and this is an empty string.
    """
    if _by_torchrun(environment):
        return agree_on_attempt(meeting, environment, Waiting(environment, patience, word_after))
    wait_for_all(meeting, environment, patience, word_after)
    return ""


def wait_for_all(meeting: Any, environment: Environment, patience: timedelta, word_after: float = 30.0) -> None:
    """Return when all processes have arrived; Ctrl-C works, and missing ranks are reported.

    Rank 0 looks for each of them, and the rest for its answer: requests grow with the number of ranks, not its square.

    Raises:
        LightlibError: Names those that have not come; or another process has come as this rank.
    """
    _come(meeting, environment)
    leads, waiting = environment.rank == 0, Waiting(environment, patience, word_after)
    missing = [f"lightlib/here/{rank}" for rank in range(environment.world_size)] if leads else [_ALL_HERE]
    while missing := [*dropwhile(lambda key: meeting.check([key]), missing)]:
        if waiting.due:
            ranks = [rank for rank in range(environment.world_size) if not meeting.check([f"lightlib/here/{rank}"])]
            if ranks or not leads:
                waiting.report(named(ranks or [0], environment), speaker=leads)
        waiting.pause()
    if leads:
        meeting.set(_ALL_HERE, "")


def _come(meeting: Any, place: Environment) -> None:
    """Register this process at the store, unless another one is registered as its rank."""
    key, me = f"lightlib/here/{place.rank}", f"process {os.getpid()} of {socket.gethostname()}"
    came = meeting.compare_set(key, "", f"{me}|{_MARK}").decode()
    if came != f"{me}|{_MARK}":
        raise LightlibError(
            f"Rank {place.rank} has come to {place.address}:{place.port} before: {came.partition('|')[0]}. "
            f"This is {me}.",
            expected="one process for each rank, and a port for each run.",
            fix="choose another MASTER_PORT for one of two runs, or end what is left of an earlier one.",
        )
