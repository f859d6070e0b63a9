"""Choose an accelerator and its devices from the arguments `accelerator=` and `devices=`."""

from __future__ import annotations

import sys

import torch

from lightlib import registry
from lightlib.accelerators.accelerator import Accelerator
from lightlib.accelerators.lookup import by_priority, new_accelerator
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, closest, owner
from lightlib.report import info

_NOT_SUPPORTED = ("tpu", "hpu", "xla")


def choose(
    accelerator: str | Accelerator = "auto", devices: int | str | list[int] = "auto"
) -> tuple[Accelerator, list[torch.device]]:
    """Return the accelerator and the devices of this machine that the two arguments of `Trainer` stand for.

    Args:
        accelerator: ``'auto'`` (the first available of mps, cuda, cpu), ``'gpu'`` (mps if available, else cuda), the
            name of an accelerator (also of an installed package's), or an instance. Accelerators of installed packages
            take part in both by their `priority`.
        devices: How many (an int or a numeric string), which (a list of indices or ``'0,1'``), -1 or ``'-1'`` for all,
            or ``'auto'`` for all; in a notebook or another interactive session ``'auto'`` is one. On the CPU: the
            number of processes, and ``'auto'`` is one.

    Raises:
        ArgumentTypeError: One of the two has a type that has no meaning.
        UnknownNameError: No accelerator has this name.
        MisconfigurationException: This machine does not have such a device, or not so many.

    Example:
        >>> accelerator, chosen = choose("cpu", devices=2)
        >>> accelerator.name(), chosen
        ('cpu', [device(type='cpu'), device(type='cpu')])
    """
    chosen = _accelerator(accelerator)
    if not chosen.is_available():
        problem, fix = chosen.why_unavailable()
        raise MisconfigurationException(
            f"accelerator={accelerator!r}, but this machine has no {chosen.name()} device: {problem}.",
            expected=f"a machine where torch finds a {chosen.name()} device.",
            fix=fix,
        )
    if devices == "auto":
        devices = _automatic(chosen)
    return chosen, chosen.get_parallel_devices(chosen.parse_devices(devices))


def unused(accelerator: Accelerator) -> str:
    """Return the name of the GPU that this machine has and that a run on the CPU leaves unused; empty without one."""
    if accelerator.name() != "cpu":
        return ""
    return next((gpu.name() for gpu in _gpus() if gpu.is_available()), "")


def _accelerator(accelerator: object) -> Accelerator:
    if isinstance(accelerator, Accelerator):
        return accelerator
    if not isinstance(accelerator, str):
        raise ArgumentTypeError(
            f"accelerator is the class {accelerator.__name__}, not an instance."
            if isinstance(accelerator, type)
            else f"accelerator is {accelerator!r} ({type(accelerator).__name__}).",
            expected="a name such as 'auto', 'cpu', 'gpu', 'cuda' or 'mps', or an Accelerator instance.",
            fix=f"{owner()}(accelerator={accelerator.__name__}())"
            if isinstance(accelerator, type) and issubclass(accelerator, Accelerator)
            else f"{owner()}(accelerator='auto')",
        )
    if accelerator == "auto":
        return next(accelerator for accelerator in by_priority() if accelerator.is_available())
    if accelerator == "gpu":
        return _gpu()
    if accelerator not in registry.names("accelerators"):
        raise _unknown(accelerator)
    return new_accelerator(accelerator)


def _gpus() -> list[Accelerator]:
    return [accelerator for accelerator in by_priority() if accelerator.is_gpu]


def _gpu() -> Accelerator:
    gpus = _gpus()
    for accelerator in gpus:
        if accelerator.is_available():
            return accelerator
    why = {accelerator.name(): accelerator.why_unavailable() for accelerator in reversed(gpus)}
    looked = " ".join(f"{name}: {problem}." for name, (problem, _) in why.items())
    raise MisconfigurationException(
        f"accelerator='gpu', but this machine has no GPU that torch can use. {looked}",
        expected=f"a machine where torch finds a {' or '.join(why)} device.",
        fix=why["cuda"][1],
    )


def _unknown(name: str) -> MisconfigurationException:
    if name.lower() in _NOT_SUPPORTED:
        return MisconfigurationException(
            f"accelerator={name!r} is not supported: lightlib itself knows cpu, cuda and mps devices.",
            expected="'auto', 'cpu', 'gpu', 'cuda' or 'mps', or the name of an installed package's accelerator.",
            fix="use one of these, or write an Accelerator and pass an instance or an entry point for it.",
        )
    kind, colon, index = name.strip().lower().partition(":")
    if colon and index.isdigit() and kind in ("cpu", "cuda", "gpu", "mps", *registry.names("accelerators")):
        devices = "1" if kind == "cpu" else f"[{index}]"
        return MisconfigurationException(
            f"accelerator={name!r} names one device.",
            expected="a kind of device; `devices` selects among them.",
            fix=f"{owner()}(accelerator={kind!r}, devices={devices})",
        )
    names = ["auto", "gpu", *registry.names("accelerators")]
    meant = name.strip().lower()
    fix = f"{owner()}(accelerator={meant if meant in names else closest(meant, names, 'auto')!r})"
    return UnknownNameError("accelerator", name, names, fix=fix)


def _automatic(accelerator: Accelerator) -> int:
    count = accelerator.auto_device_count()
    if count > 1 and accelerator.name() != "cpu" and hasattr(sys, "ps1"):
        info(f"Using 1 of {count} {accelerator.name()} devices in an interactive session; devices={count} uses all.")
        return 1
    return count
