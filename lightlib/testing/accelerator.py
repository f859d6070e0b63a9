"""check_accelerator: the tests that every accelerator has to pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from lightlib.accelerators.accelerator import Accelerator
from lightlib.core.trainer import Trainer
from lightlib.errors import MisconfigurationException
from lightlib.testing.kit import check_class, equal, failure, through_file, worst_weight
from lightlib.testing.module import BATCH, QUIET, SAMPLES, BoringModule, samples
from lightlib.testing.plain import PlainLoop
from lightlib.torch_private import TorchDispatchMode
from lightlib.tree import to_device

_STEPS, _TOLERANCE = 8, 1e-5


def check_accelerator(make_accelerator: Callable[[], Accelerator]) -> None:
    """Fail unless an accelerator meets the expectations of the Trainer. Run it on a machine with such a device.

    The checks, by name, each with a new accelerator:

    - ``"name"``: `name` is a text, and the same at each call.
    - ``"devices"``: `parse_devices` and `get_parallel_devices` turn 1 and `auto_device_count` into so many devices, and
      refuse other values with a `MisconfigurationException`.
    - ``"available"``: `is_available` is True, and computes nothing and claims no memory of the device;
      `why_unavailable` returns two texts.
    - ``"abilities"``: `priority`, `has_streams`, `default_backend` and so on have the right types.
    - ``"generators"``: `manual_seed` sets the state of the devices' own generators, a checkpoint can hold `rng_state`,
      and `set_rng_state` restores it.
    - ``"forks"``: `fork_rng` restores the generators of the CPU and of the device, also after an exception.
    - ``"groups"``: `device_ids` returns a list of indices or None, `group_device` a `torch.device` or None.
    - ``"describes"``: `describe` returns a text, and `get_device_stats` numbers by name, unless a package is missing.
    - ``"fits"``: `Trainer.fit` reaches the weights of a plain loop on the same device, to a relative error of 1e-5.

    Args:
        make_accelerator: Returns a new accelerator, usually its class.

    Raises:
        AssertionError: It names the check and the difference, what was expected, and how to fix it.

    Example:
        >>> from lightlib.accelerators import CPUAccelerator
        >>> check_accelerator(CPUAccelerator)
    """
    for name, check in ACCELERATOR_CHECKS.items():
        accelerator = make_accelerator()
        check_class("accelerator", name, accelerator, Accelerator)
        check(_Kit(name, accelerator))


@dataclass(frozen=True)
class _Kit:
    """One accelerator, and the errors of one check."""

    check: str
    accelerator: Accelerator

    @property
    def kind(self) -> str:
        return type(self.accelerator).__name__

    def device(self) -> torch.device:
        """Return the first device."""
        return self.call("get_parallel_devices", self.call("parse_devices", 1))[0]  # type: ignore[no-any-return]

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method; an exception is a failure of the check."""
        try:
            return getattr(self.accelerator, method)(*arguments)
        except Exception as error:
            raise self.raised(error, method, *arguments) from error

    def raised(self, error: Exception, method: str, *arguments: Any) -> AssertionError:
        """Return the error for a method that raised."""
        shown = ", ".join(map(repr, arguments))
        return self.failure(
            f"{self.kind}.{method}({shown}) raised {type(error).__name__}: {error}",
            "the call to succeed on a machine that has the device.",
            f"handle these arguments in {method}.",
        )

    def typed(self, what: str, value: Any, types: tuple[type, ...], right: bool = True) -> None:
        """Fail unless a value is of one of the types, and `right`."""
        names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in types)
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types) or not right:
            raise self.failure(
                f"{self.kind}.{what} is {value!r}, a {type(value).__name__}.",
                f"{names}{'' if right else ', not empty'}.",
                f"let `{what.partition('(')[0]}` return {names}.",
            )

    def failure(self, what: str, expected: str, fix: str) -> AssertionError:
        """Return the error of a failed check, in three parts."""
        return failure("accelerator", self.check, what, expected, fix)


def _name(kit: _Kit) -> None:
    name = kit.call("name")
    kit.typed("name()", name, (str,), right=name != "")
    again = kit.call("name")
    if again != name:
        raise kit.failure(
            f"{kit.kind}.name() was {name!r} and is now {again!r}.",
            "the same name at each call: the entry point, messages and checkpoints use it.",
            "return a constant.",
        )


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """Records the operations that torch runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def _initialized(device: torch.device) -> bool:
    is_initialized = getattr(getattr(torch, device.type, None), "is_initialized", None)
    return bool(is_initialized()) if is_initialized is not None else False


def _available(kit: _Kit) -> None:
    device = kit.device()
    before = _initialized(device)
    with _Operations() as operations:
        available = kit.call("is_available")
    kit.typed("is_available()", available, (bool,))
    if operations.names or _initialized(device) != before:
        how = f"ran {operations.names[0]}" if operations.names else f"initialized {device.type}"
        raise kit.failure(
            f"{kit.kind}.is_available() {how}.",
            "no tensor and no context on the device: the call must claim none of its memory.",
            "ask the driver for the number of devices instead.",
        )
    if not available:
        raise kit.failure(
            f"{kit.kind}.is_available() is False.",
            "True: the other checks need a device.",
            "run the checks on a machine that has one.",
        )
    reason = kit.call("why_unavailable")
    if not (isinstance(reason, tuple) and len(reason) == 2 and all(isinstance(text, str) for text in reason)):
        raise kit.failure(
            f"{kit.kind}.why_unavailable() is {reason!r}.",
            "two strings: where the device was looked for, and how to fix it.",
            "return both; the error for a machine without the device consists of them.",
        )


def _devices(kit: _Kit) -> None:
    auto = kit.call("auto_device_count")
    kit.typed("auto_device_count()", auto, (int,))
    for count in dict.fromkeys((1, auto)):
        devices = kit.call("get_parallel_devices", kit.call("parse_devices", count))
        if not (
            isinstance(devices, list)
            and len(devices) == count
            and all(isinstance(device, torch.device) for device in devices)
        ):
            raise kit.failure(
                f"{kit.kind}.get_parallel_devices(parse_devices({count})) is {devices!r}.",
                f"a list of {count} torch.device, one for each process.",
                "return a torch.device for each device that parse_devices has chosen.",
            )
    for wrong in ("many", 0, 1.5):
        try:
            parsed = kit.accelerator.parse_devices(wrong)
        except MisconfigurationException:
            continue
        except Exception as error:
            raise kit.failure(
                f"{kit.kind}.parse_devices({wrong!r}) raised {type(error).__name__}: {error}",
                "a MisconfigurationException, which states the value, the valid ones and the fix.",
                "raise lightlib.errors.MisconfigurationException in parse_devices.",
            ) from error
        raise kit.failure(
            f"{kit.kind}.parse_devices({wrong!r}) returned {parsed!r}.",
            "a MisconfigurationException: no run can use this value.",
            "check the user's value in parse_devices.",
        )


_ABILITIES: dict[str, type] = {
    "default_backend": str,
    "device_type": str,
    "priority": int,
    **dict.fromkeys(
        ("is_gpu", "has_streams", "pins_memory", "has_collectives", "has_float64", "has_ring_attention"), bool
    ),
}


def _abilities(kit: _Kit) -> None:
    for name, kind in _ABILITIES.items():
        kit.typed(name, getattr(kit.accelerator, name), (kind,))


def _generators(kit: _Kit) -> None:
    with _kept(kit):
        kit.call("manual_seed", 7)
        state = kit.call("rng_state")
        kit.typed("rng_state()", state, (dict,))
        loaded = _through_file(kit, state)
        kit.call("manual_seed", 8)
        if state and equal(kit.call("rng_state"), loaded):
            raise kit.failure(
                f"{kit.kind}.manual_seed(7) and manual_seed(8) leave the same rng_state().",
                "a seed sets the devices' own generators, which rng_state returns.",
                "seed each generator in manual_seed, and return a copy of its state in rng_state.",
            )
        kit.call("set_rng_state", {**loaded, "a kind of another package": 1})
        if not equal(kit.call("rng_state"), loaded):
            raise kit.failure(
                f"{kit.kind}.rng_state() differs from the state that set_rng_state received.",
                "the same state: a resumed run draws the numbers of an uninterrupted one.",
                "restore each entry of rng_state in set_rng_state.",
            )


def _through_file(kit: _Kit, state: dict[str, Any]) -> dict[str, Any]:
    try:
        return through_file(state)  # type: ignore[no-any-return]
    except Exception as error:
        raise kit.failure(
            f"{kit.kind}.rng_state() returned {state!r}, which a checkpoint cannot hold: {error}",
            "a dictionary of tensors and plain values.",
            "return generator.get_state(), not the generator.",
        ) from error


@contextmanager
def _kept(kit: _Kit) -> Iterator[None]:
    """Restore all generators afterwards."""
    with torch.random.fork_rng(devices=[]):
        before = _through_file(kit, kit.call("rng_state"))
        try:
            yield
        finally:
            kit.call("set_rng_state", before)


def _forks(kit: _Kit) -> None:
    device = kit.device()
    with _kept(kit):
        for fails in (False, True):
            before = torch.get_rng_state(), _through_file(kit, kit.call("rng_state"))
            with suppress(_LeftError):
                _draw(kit, device, fails)
            for whose, was, now in zip(
                ("CPU", "device"), before, (torch.get_rng_state(), kit.call("rng_state")), strict=True
            ):
                if not equal(now, was):
                    after = "after an exception" if fails else "afterwards"
                    raise kit.failure(
                        f"{kit.kind}.fork_rng({str(device)!r}) leaves the {whose}'s generator changed {after}.",
                        "the state from before: validation must not change the random numbers of training.",
                        "restore it in a `finally`, or keep the default of Accelerator.fork_rng.",
                    )


def _draw(kit: _Kit, device: torch.device, fails: bool) -> None:
    with kit.call("fork_rng", device):
        kit.call("manual_seed", 9)
        torch.rand(3)
        torch.rand(3, device=device)
        if fails:
            raise _LeftError


class _LeftError(Exception):
    """Leaves a context."""


def _groups(kit: _Kit) -> None:
    device = kit.device()
    ids = kit.call("device_ids", device)
    kit.typed(f"device_ids({str(device)!r})", ids, (list, type(None)))
    for index in ids or ():
        kit.typed(f"device_ids({str(device)!r})[0]", index, (int,))
    group_device = kit.call("group_device", device)
    kit.typed(f"group_device({str(device)!r})", group_device, (torch.device, type(None)))


def _describes(kit: _Kit) -> None:
    device = kit.device()
    text = kit.call("describe", device)
    kit.typed(f"describe({str(device)!r})", text, (str,), right=text != "")
    try:
        stats = kit.accelerator.get_device_stats(device)
    except MisconfigurationException:
        return  # an optional package is missing, and the error names it
    except Exception as error:
        raise kit.raised(error, "get_device_stats", device) from error
    kit.typed(f"get_device_stats({str(device)!r})", stats, (dict,))
    for name, value in stats.items():
        kit.typed(f"get_device_stats({str(device)!r})[{name!r}]", value, (int, float))


def _fits(kit: _Kit) -> None:
    device = kit.device()
    with _kept(kit):
        torch.manual_seed(1)
        module = BoringModule()
        torch.manual_seed(1)
        plain = BoringModule().to(device)
        batches = [to_device(batch, device) for batch in DataLoader(samples(SAMPLES), BATCH)]
        wanted = PlainLoop(plain, batches).weights
        trainer = Trainer(**{**QUIET, "accelerator": kit.accelerator, "devices": 1, "max_epochs": 2})
        try:
            trainer.fit(module)
        except Exception as error:
            raise kit.failure(
                f"Trainer(accelerator={kit.kind}()).fit raised {type(error).__name__}: {error}",
                f"{_STEPS} steps of a small module.",
                "correct the method of the accelerator that the traceback shows.",
            ) from error
    if trainer.strategy.root_device != device:
        raise kit.failure(
            f"Trainer(accelerator={kit.kind}(), devices=1) used {trainer.strategy.root_device}.",
            f"{device}, the first device of get_parallel_devices.",
            "return the same devices at each call.",
        )
    off, name = worst_weight(trainer.strategy.module_state(), wanted)
    if off > _TOLERANCE:
        raise kit.failure(
            f"the weight {name!r} is off by {off:.1e} of its size after {_STEPS} steps.",
            f"at most {_TOLERANCE:g} from a plain loop on {device}.",
            "look for a method that changes random numbers, dtypes or the default device during the run.",
        )


ACCELERATOR_CHECKS: dict[str, Callable[[_Kit], None]] = {
    "name": _name,
    "devices": _devices,
    "available": _available,
    "abilities": _abilities,
    "generators": _generators,
    "forks": _forks,
    "groups": _groups,
    "describes": _describes,
    "fits": _fits,
}
