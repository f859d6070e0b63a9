"""check_accelerator: the tests that every accelerator has to pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
    AcceleratorKit.run(make_accelerator)


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


class _LeftError(Exception):
    """Leaves a context."""


class AcceleratorKit(Kit):
    """The checks of `check_accelerator`."""

    kind, base = "accelerator", Accelerator
    succeeding = "the call to succeed on a machine that has the device."

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.accelerator: Accelerator = self.made()
        self.name = type(self.accelerator).__name__

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the accelerator, which must succeed."""
        return self.call(self.accelerator, method, *arguments)

    def device(self) -> torch.device:
        """Return the first device."""
        return self.ask("get_parallel_devices", self.ask("parse_devices", 1))[0]  # type: ignore[no-any-return]

    def rng_state(self) -> dict[str, Any]:
        """Return the state of the generators as a checkpoint file restores it."""
        state, fix = self.ask("rng_state"), "return generator.get_state(), not the generator."
        what, expected = f"{self.name}.rng_state()", "a dictionary of tensors and plain values."
        return self.through_file(what, state, expected, fix)  # type: ignore[no-any-return]

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
        what, name = f"{self.name}.name()", self.ask("name")
        self.typed(what, name, str, right=name != "")
        reason = "the same name at each call: the entry point, messages and checkpoints use it."
        self.constant(what, name, self.ask("name"), reason, "return a constant.")

    def test_devices(self) -> None:
        auto = self.ask("auto_device_count")
        self.typed(f"{self.name}.auto_device_count()", auto, int)
        for count in dict.fromkeys((1, auto)):
            devices = self.ask("get_parallel_devices", self.ask("parse_devices", count))
            right = (
                isinstance(devices, list) and [isinstance(device, torch.device) for device in devices] == [True] * count
            )
            assert right, self.unmet(
                f"{self.name}.get_parallel_devices(parse_devices({count})) is {devices!r}.",
                f"a list of {count} torch.device, one for each process.",
                "return a torch.device for each device that parse_devices has chosen.",
            )
        for wrong in ("many", 0, 1.5):
            what = f"{self.name}.parse_devices({wrong!r})"
            expected = "a MisconfigurationException, which states the value, the valid ones and the fix."
            fix = "raise lightlib.errors.MisconfigurationException in parse_devices."
            parsed = refused = object()
            with suppress(MisconfigurationException), self.succeeds(what, fix, expected, MisconfigurationException):
                parsed = self.accelerator.parse_devices(wrong)
            assert parsed is refused, self.unmet(
                f"{what} returned {parsed!r}.",
                "a MisconfigurationException: no run can use this value.",
                "check the user's value in parse_devices.",
            )

    def test_available(self) -> None:
        device = self.device()
        before = _initialized(device)
        with _Operations() as operations:
            available = self.ask("is_available")
        what = f"{self.name}.is_available()"
        self.typed(what, available, bool)
        claims = f"initialized {device.type}" if _initialized(device) != before else ""
        how = f"ran {operations.names[0]}" if operations.names else claims
        assert not how, self.unmet(
            f"{what} {how}.",
            "no tensor and no context on the device: the call must claim none of its memory.",
            "ask the driver for the number of devices instead.",
        )
        assert available, self.unmet(
            f"{what} is False.",
            "True: the other checks need a device.",
            "run the checks on a machine that has one.",
        )
        reason = self.ask("why_unavailable")
        two = isinstance(reason, tuple) and len(reason) == 2 and all(isinstance(text, str) for text in reason)
        assert two, self.unmet(
            f"{self.name}.why_unavailable() is {reason!r}.",
            "two strings: where the device was looked for, and how to fix it.",
            "return both; the error for a machine without the device consists of them.",
        )

    def test_abilities(self) -> None:
        flags = ("is_gpu", "has_streams", "pins_memory", "has_collectives", "has_float64", "has_ring_attention")
        types = {"default_backend": str, "device_type": str, "priority": int, **dict.fromkeys(flags, bool)}
        for name, kind in types.items():
            self.typed(f"{self.name}.{name}", getattr(self.accelerator, name), kind)

    def test_generators(self) -> None:
        with self.kept():
            self.ask("manual_seed", 7)
            self.typed(f"{self.name}.rng_state()", self.ask("rng_state"), dict)
            loaded = self.rng_state()
            self.ask("manual_seed", 8)
            assert not loaded or not equal(self.ask("rng_state"), loaded), self.unmet(
                f"{self.name}.manual_seed(7) and manual_seed(8) leave the same rng_state().",
                "a seed sets the devices' own generators, which rng_state returns.",
                "seed each generator in manual_seed, and return a copy of its state in rng_state.",
            )
            self.ask("set_rng_state", {**loaded, "a kind of another package": 1})
            assert equal(self.ask("rng_state"), loaded), self.unmet(
                f"{self.name}.rng_state() differs from the state that set_rng_state received.",
                "the same state: a resumed run draws the numbers of an uninterrupted one.",
                "restore each entry of rng_state in set_rng_state.",
            )

    def test_forks(self) -> None:
        device = self.device()
        with self.kept():
            for fails in (False, True):
                before = {"CPU": torch.get_rng_state(), "device": self.rng_state()}
                with suppress(_LeftError), self.ask("fork_rng", device):
                    self.ask("manual_seed", 9)
                    torch.rand(3)
                    torch.rand(3, device=device)
                    if fails:
                        raise _LeftError
                after = {"CPU": torch.get_rng_state(), "device": self.ask("rng_state")}
                changed = [name for name in before if not equal(before[name], after[name])]
                when = "after an exception" if fails else "afterwards"
                assert not changed, self.unmet(
                    f"{self.name}.fork_rng({str(device)!r}) leaves the {changed[0]}'s generator changed {when}.",
                    "the state from before: validation must not change the random numbers of training.",
                    "restore it in a `finally`, or keep the default of Accelerator.fork_rng.",
                )

    def test_groups(self) -> None:
        device = self.device()
        ids, what = self.ask("device_ids", device), f"{self.name}.device_ids({str(device)!r})"
        self.typed(what, ids, list, type(None))
        for index in ids or ():
            self.typed(f"{what}[0]", index, int)
        group_device = self.ask("group_device", device)
        self.typed(f"{self.name}.group_device({str(device)!r})", group_device, torch.device, type(None))

    def test_describes(self) -> None:
        device = self.device()
        text = self.ask("describe", device)
        self.typed(f"{self.name}.describe({str(device)!r})", text, str, right=text != "")
        stats, what = {}, f"{self.name}.get_device_stats({str(device)!r})"
        with suppress(MisconfigurationException):  # an optional package is missing, and the error names it
            stats = self.call(self.accelerator, "get_device_stats", device, but=MisconfigurationException)
        self.typed(what, stats, dict)
        for name, value in stats.items():
            self.typed(f"{what}[{name!r}]", value, int, float)

    def test_fits(self) -> None:
        device, made = self.device(), f"Trainer(accelerator={self.name}()"
        with self.kept():
            torch.manual_seed(1)
            module = BoringModule()
            torch.manual_seed(1)
            plain = BoringModule().to(device)
            batches = [to_device(batch, device) for batch in DataLoader(samples(SAMPLES), BATCH)]
            wanted = PlainLoop(plain, batches).weights
            trainer = Trainer(**{**QUIET, "accelerator": self.accelerator, "devices": 1, "max_epochs": 2})
            fix = "correct the method of the accelerator that the traceback shows."
            with self.succeeds(f"{made}).fit", fix, f"{_STEPS} steps of a small module."):
                trainer.fit(module)
        assert trainer.strategy.root_device == device, self.unmet(
            f"{made}, devices=1) used {trainer.strategy.root_device}.",
            f"{device}, the first device of get_parallel_devices.",
            "return the same devices at each call.",
        )
        off, name = worst_weight(trainer.strategy.module_state(), wanted)
        assert off <= _TOLERANCE, self.unmet(
            f"the weight {name!r} is off by {off:.1e} of its size after {_STEPS} steps.",
            f"at most {_TOLERANCE:g} from a plain loop on {device}.",
            "look for a method that changes random numbers, dtypes or the default device during the run.",
        )
