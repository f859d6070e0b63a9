"""Slots: the accelerators or cores of this machine, each given to one trial at a time."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from typing_extensions import Self

from lightlib.errors import MisconfigurationException

_EXPECTED = "'auto' (all), how many ('2'), or their numbers ('0,1,3'; '1,' for number 1 alone)."
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
_HAS_FLOCK = os.name == "posix"

# Without `flock`: the locks that this process holds.
_held: set[Path] = set()
_held_lock = threading.Lock()


class Slot(NamedTuple):
    """One accelerator of this machine, or one core.

    Attributes:
        kind: ``"cpu"``, ``"cuda"`` or ``"mps"``.
        number: Its index, from 0, among those of its kind that this process may use.
    """

    kind: str
    number: int


class Slots:
    """The slots of this machine that one worker may use.

    A slot in use is a locked file, so two workers never have the same one, and the kernel releases the slots of a
    worker that is killed. A process that is forked while slots are in use keeps them locked until it ends, even if
    this one is killed, so a worker forks nothing itself: it starts programs, which inherit no lock. Workers that see
    different devices under the same number (``CUDA_VISIBLE_DEVICES``) lock the device, not the number. On systems
    without `fcntl` slots are only kept apart within this process.

    Args:
        slots: Each slot once.
        locks: The folder of the lock files, on a file system of this machine and the same for all its workers. It is
            created if it is missing.

    Raises:
        OSError: The folder cannot be created.

    Attributes:
        total: The number of slots.
        kind: Of all of them.

    Example:
        >>> slots = Slots([Slot("cuda", 0), Slot("cuda", 1)], Path(tempfile.mkdtemp()))
        >>> slots.take(2)
        (Slot(kind='cuda', number=0), Slot(kind='cuda', number=1))
        >>> slots.take(1), slots.take(0)  # none is left, and a trial on the CPU needs none
        (None, ())
        >>> slots.give_back([Slot("cuda", 1)])
        >>> slots.free()
        1
    """

    def __init__(self, slots: Sequence[Slot], locks: Path) -> None:
        locks.mkdir(parents=True, exist_ok=True)
        self._files = {slot: locks / f"{slot.kind}-{_device(slot)}" for slot in slots}
        self._taken: dict[Slot, Callable[[], None]] = {}
        self._lock = threading.Lock()
        self.total = len(self._files)
        self.kind = slots[0].kind if slots else "cpu"

    @classmethod
    def of_machine(cls, asked: str = "auto", locks: Path | None = None) -> Self:
        """Return the slots that the option ``--slots`` selects.

        A slot is one accelerator; without any, one core that this process may use. Counting GPUs creates no CUDA
        context.

        Args:
            asked: ``"auto"`` for all, ``"2"`` for the first two, ``"0,1,3"`` for those numbers, ``"1,"`` for number 1
                alone. Default ``"auto"``.
            locks: The folder of the lock files. Default: one of this user, and of this job of a batch system, in the
                system's temporary folder.

        Raises:
            MisconfigurationException: `asked` has no meaning, or selects slots that this machine does not have; or
                the default folder belongs to another user.
            OSError: The folder cannot be created.
        """
        machine = _of_machine()
        chosen = [machine[number] for number in _numbers(asked, machine)]
        return cls(chosen, _default_locks() if locks is None else locks)

    def free(self) -> int:
        """Return how many slots no worker of this machine uses now; another worker may take them at any time."""
        with self._lock:
            return sum(slot not in self._taken and _is_free(file) for slot, file in self._files.items())

    def take(self, count: int) -> tuple[Slot, ...] | None:
        """Take slots, the first free ones.

        Args:
            count: At least 0. A trial on the CPU takes 0, and always gets them.

        Returns:
            So many slots; None if fewer are free, and then none is taken.

        Raises:
            OSError: A file cannot be locked, for a reason other than another worker's lock.
        """
        taken: dict[Slot, Callable[[], None]] = {}
        with self._lock:
            try:
                for slot, file in self._files.items():
                    if len(taken) == count:
                        break
                    release = None if slot in self._taken else _locked(file)
                    if release is not None:
                        taken[slot] = release
            except BaseException:
                _release(taken.values())
                raise
            if len(taken) < count:
                _release(taken.values())
                return None
            self._taken.update(taken)
        return tuple(taken)

    def give_back(self, slots: Iterable[Slot]) -> None:
        """Let other trials have these slots, each of which `take` has returned."""
        slots = list(slots)
        with self._lock:
            unknown = [slot for slot in slots if slot not in self._taken]
            assert not unknown, f"not taken: {unknown}"
            _release([self._taken.pop(slot) for slot in slots])


def variables(slots: Sequence[Slot]) -> dict[str, str]:
    """Return the environment variables of a trial that has these slots, and of each of its processes.

    The numbers count the GPUs that this process sees: if its ``CUDA_VISIBLE_DEVICES`` is ``4,5``, slot 1 is GPU 5. A
    trial without a GPU sees none, and each of its processes computes with one thread. The GPU of an Apple machine
    cannot be hidden.

    Example:
        >>> variables([Slot("cpu", 3)])
        {'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': ''}
    """
    kinds = {slot.kind for slot in slots}
    if kinds == {"mps"}:
        return {}
    if "cuda" in kinds:
        return {_visible_variable(): ",".join(_device(slot) for slot in slots)}
    return {"OMP_NUM_THREADS": "1", _visible_variable(): ""}


# the slots of this machine
def _of_machine() -> list[Slot]:
    from lightlib.accelerators import CUDAAccelerator, MPSAccelerator  # optional: torch, which takes seconds

    for kind, count in (("cuda", CUDAAccelerator.auto_device_count()), ("mps", MPSAccelerator.auto_device_count())):
        if count:
            return [Slot(kind, number) for number in range(count)]
    return [Slot("cpu", number) for number in range(len(_cores()))]


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _visible_variable() -> str:
    """Return the variable by which torch's build selects GPUs: ROCm prefers its own one where it is set."""
    import torch  # optional: torch, which takes seconds

    name = "HIP_VISIBLE_DEVICES"
    return name if torch.version.hip is not None and name in os.environ else "CUDA_VISIBLE_DEVICES"


def _device(slot: Slot) -> str:
    """Return the name of a slot's device that is the same in all processes of this machine."""
    names: Sequence[object] = ()
    if slot.kind == "cuda":
        names = [name.strip() for name in os.environ.get(_visible_variable(), "").split(",") if name.strip()]
    elif slot.kind == "cpu":
        names = _cores()
    return str(names[slot.number] if slot.number < len(names) else slot.number)


# the option
def _numbers(asked: str, machine: Sequence[Slot]) -> list[int]:
    if asked.strip() == "auto":
        return list(range(len(machine)))
    parts = [part.strip() for part in asked.split(",")]
    listed = [part for part in parts if part]
    if not listed or any(not re.fullmatch("[0-9]{1,9}", part) for part in listed) or "" in parts[:-1]:
        _refuse(f"--slots is {asked!r}.", machine, "--slots auto, or leave out --slots.")
    numbers = [int(part) for part in listed]
    if len(parts) == 1:
        return _first(numbers[0], machine)
    unknown = [str(number) for number in numbers if number >= len(machine)]
    if unknown:
        problem = f"--slots is {asked!r}, but this machine has no slot {', '.join(unknown)}."
        _refuse(problem, machine, f"use numbers from 0 to {len(machine) - 1}, or leave out --slots for all.")
    if len(set(numbers)) < len(numbers):
        once = ",".join(map(str, dict.fromkeys(numbers)))
        comma = "," if len(set(numbers)) == 1 else ""
        _refuse(f"--slots is {asked!r}: a number appears twice.", machine, f"--slots {once}{comma}")
    return numbers


def _first(count: int, machine: Sequence[Slot]) -> list[int]:
    if count == 0:
        _refuse("--slots is '0': no slots.", machine, "--slots 0, (with a comma) for slot 0 alone.")
    if count > len(machine):
        problem = f"--slots is '{count}', but this machine has {len(machine)}."
        _refuse(problem, machine, f"--slots {len(machine)}, or leave it out for all.")
    return list(range(count))


def _refuse(problem: str, machine: Sequence[Slot], fix: str) -> NoReturn:
    unit = "core" if machine[0].kind == "cpu" else f"{machine[0].kind} device"
    has = f"This machine has {len(machine)} slot{'s' * (len(machine) > 1)}, one for each {unit}."
    raise MisconfigurationException(problem, expected=f"{_EXPECTED} {has}", fix=fix)


# the locks
def _default_locks() -> Path:
    """Return a folder that only this user can write, and that jobs of a batch system, each with its devices, divide."""
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    job = next((f"-job-{os.environ[name]}" for name in _JOBS if os.environ.get(name)), "")
    folder = Path(tempfile.gettempdir()) / re.sub(r"[^\w.-]", "_", f"lightlib-slots-{user}{job}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if _HAS_FLOCK and (folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise MisconfigurationException(
            f"The folder of slots in use, {folder}, is a link, or another user can write it.",
            expected="a folder of this user alone.",
            fix=f"remove {folder}, or set TMPDIR to a folder of yours, the same for all workers of this machine.",
        )
    return folder


def _locked(path: Path) -> Callable[[], None] | None:
    """Lock a file and return the function that releases it; None if it is locked already."""
    if not _HAS_FLOCK:
        with _held_lock:
            if path in _held:
                return None
            _held.add(path)
        return partial(_held.discard, path)
    import fcntl  # optional: only on Unix

    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return partial(_unlock, descriptor)


def _unlock(descriptor: int) -> None:
    import fcntl  # optional: only on Unix

    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing it alone would leave it locked by a forked process
    finally:
        os.close(descriptor)


def _release(releases: Iterable[Callable[[], None]]) -> None:
    for release in releases:
        release()


def _is_free(path: Path) -> bool:
    """Whether a file can be locked; asks with a shared lock, so two that ask do not see each other."""
    if not _HAS_FLOCK:
        return path not in _held
    import fcntl  # optional: only on Unix

    if not path.exists():
        return True
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
