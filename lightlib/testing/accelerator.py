"""check_accelerator: the tests that every accelerator has to pass."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from lightlib.accelerators.accelerator import Accelerator
from lightlib.core.trainer import Trainer
from lightlib.errors import MisconfigurationException
from lightlib.testing.kit import Kit, equal, worst_weight
from lightlib.testing.module import BATCH, QUIET, SAMPLES, BoringModule, samples
from lightlib.testing.plain import PlainLoop
from lightlib.torch_private import TorchDispatchMode
from lightlib.tree import to_device

_NOTHING, _TOLERANCE = object(), 1e-5


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
    AcceleratorKit.run(make_accelerator)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """Records the operations that torch runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class _LeftError(Exception):
    """Leaves a context."""


@dataclass
class AcceleratorKit(Kit):
    """The checks of `check_accelerator`."""

    kind, base, documentation = "accelerator", Accelerator, check_accelerator.__doc__

    def __post_init__(self) -> None:
        self.accelerator: Accelerator = self.made()
        self.name = type(self.accelerator).__name__

    def ask(self, method: str, *arguments: Any, types: tuple[type, ...] = ()) -> Any:
        """Call a method of the accelerator, which must succeed and return a value of one of the types."""
        return self.call(self.accelerator, method, *arguments, types=types)

    def device(self) -> torch.device:
        """Return the first device."""
        return self.ask("get_parallel_devices", self.ask("parse_devices", 1))[0]  # type: ignore[no-any-return]

    def rng_state(self) -> dict[str, Any]:
        """Return the state of the generators as a checkpoint file restores it."""
        fix = "return generator.get_state(), not the generator."
        return self.through_file(f"{self.name}.rng_state()", self.ask("rng_state"), fix)  # type: ignore[no-any-return]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore all generators afterwards."""
        with torch.random.fork_rng(devices=[]):
            before = self.rng_state()
            try:
                yield
            finally:
                self.ask("set_rng_state", before)

    def test_name(self) -> None:
        self.constant(f"{self.name}.name()", self.ask("name", types=(str,)), self.ask("name"))

    def test_devices(self) -> None:
        for count in {1, self.ask("auto_device_count", types=(int,))}:
            devices = self.ask("get_parallel_devices", self.ask("parse_devices", count))
            kinds = list(map(type, devices)) if isinstance(devices, list) else devices
            problem = f"{self.name}.get_parallel_devices(parse_devices({count})) is {devices!r}."
            fix = "return a torch.device for each device that parse_devices has chosen."
            assert kinds == [torch.device] * count, self.unmet(problem, fix)
        for wrong in ("many", 0, 1.5):
            problem, parsed = f"{self.name}.parse_devices({wrong!r})", _NOTHING
            fix = "raise lightlib.errors.MisconfigurationException in parse_devices."
            with self.succeeds(problem, fix), suppress(MisconfigurationException):
                parsed = self.accelerator.parse_devices(wrong)
            text = self.unmet(f"{problem} returned {parsed!r}.", "check the user's value in parse_devices.")
            assert parsed is _NOTHING, text

    def test_available(self) -> None:
        device, call = self.device(), f"{self.name}.is_available()"
        initialized = getattr(getattr(torch, device.type, None), "is_initialized", bool)
        before = initialized()
        with _Operations() as operations:
            available = self.ask("is_available", types=(bool,))
        claims = [f"ran {name}" for name in operations.names] + [f"initialized {device.type}"] * (
            initialized() != before
        )
        assert not claims, self.unmet(f"{call} {claims[0]}.", "ask the driver for the number of devices instead.")
        assert available, self.unmet(f"{call} is False.", "run the checks on a machine that has one.")
        reason = self.ask("why_unavailable")
        fix = "return both texts; the error for a machine without the device consists of them."
        kinds = list(map(type, reason)) if isinstance(reason, tuple) else reason
        assert kinds == [str, str], self.unmet(f"{self.name}.why_unavailable() is {reason!r}.", fix)

    def test_abilities(self) -> None:
        flags = ("is_gpu", "has_streams", "pins_memory", "has_collectives", "has_float64", "has_ring_attention")
        types = {"default_backend": str, "device_type": str, "priority": int, **dict.fromkeys(flags, bool)}
        for name, kind in types.items():
            self.typed(f"{self.name}.{name}", getattr(self.accelerator, name), kind)

    def test_generators(self) -> None:
        with self.kept():
            self.ask("manual_seed", 7)
            self.ask("rng_state", types=(dict,))
            loaded = self.rng_state()
            self.ask("manual_seed", 8)
            problem = f"{self.name}.manual_seed(7) and manual_seed(8) leave the same rng_state()."
            fix = "seed each generator in manual_seed, and return a copy of its state in rng_state."
            assert not loaded or not equal(self.ask("rng_state"), loaded), self.unmet(problem, fix)
            self.ask("set_rng_state", {**loaded, "a kind of another package": 1})
            problem = f"{self.name}.rng_state() differs from the state that set_rng_state received."
            fix = "restore each entry of rng_state in set_rng_state."
            assert equal(self.ask("rng_state"), loaded), self.unmet(problem, fix)

    def test_forks(self) -> None:
        device = self.device()
        with self.kept():
            for when, error in {"afterwards": None, "after an exception": _LeftError()}.items():
                before = {"CPU": torch.get_rng_state(), "device": self.rng_state()}
                with suppress(_LeftError), self.ask("fork_rng", device):
                    self.ask("manual_seed", 9)
                    torch.rand(3)
                    torch.rand(3, device=device)
                    if error is not None:
                        raise error
                after = {"CPU": torch.get_rng_state(), "device": self.ask("rng_state")}
                changed = next((name for name in before if not equal(before[name], after[name])), None)
                problem = f"{self.name}.fork_rng({str(device)!r}) leaves the {changed}'s generator changed {when}."
                fix = "restore it in a `finally`, or keep the default of Accelerator.fork_rng."
                assert changed is None, self.unmet(problem, fix)

    def test_groups(self) -> None:
        device = self.device()
        for index in self.ask("device_ids", device, types=(list, type(None))) or ():
            self.typed(f"{self.name}.device_ids({str(device)!r})[0]", index, int)
        self.ask("group_device", device, types=(torch.device, type(None)))

    def test_describes(self) -> None:
        device = self.device()
        self.ask("describe", device, types=(str,))
        call, stats = f"{self.name}.get_device_stats({str(device)!r})", {}
        with self.succeeds(call, "handle a missing driver in get_device_stats."), suppress(MisconfigurationException):
            stats = self.accelerator.get_device_stats(device)  # the error names an optional package that is missing
        self.typed(call, stats, dict)
        for name, value in stats.items():
            self.typed(f"{call}[{name!r}]", value, int, float)

    def test_fits(self) -> None:
        device, trainer_call = self.device(), f"Trainer(accelerator={self.name}()"
        with self.kept():
            torch.manual_seed(1)
            module = BoringModule()
            plain = copy.deepcopy(module).to(device)
            batches = [to_device(batch, device) for batch in DataLoader(samples(SAMPLES), BATCH)]
            expected = PlainLoop(plain, batches).weights
            trainer = Trainer(**{**QUIET, "accelerator": self.accelerator, "devices": 1, "max_epochs": 2})
            with self.succeeds(
                f"{trainer_call}).fit", "correct the method of the accelerator that the traceback shows."
            ):
                trainer.fit(module)
        problem = f"{trainer_call}, devices=1) used {trainer.strategy.root_device}, and {device} is the first device."
        assert trainer.strategy.root_device == device, self.unmet(problem, "return the same devices at each call.")
        off, name = worst_weight(trainer.strategy.module_state(), expected)
        fix = "look for a method that changes random numbers, dtypes or the default device during the run."
        assert off <= _TOLERANCE, self.unmet(f"the weight {name!r} is off by {off:.1e} of its size on {device}.", fix)
