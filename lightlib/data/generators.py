"""Generators: saves and restores the random generators that the user's objects hold."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import torch

from lightlib.data.seed import rng_state, set_rng_state, set_state_of_python, state_of_python

_DEEPEST, _MOST, _LONGEST = 6, 4000, 64  # limits of the search: nesting, objects, and length of sequences
_CHILDREN = "children spawned"
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), type, torch.Tensor, torch.Size, torch.device)


def is_generator(value: Any) -> bool:
    """Whether `value` is a random generator of torch, NumPy or Python."""
    kind, numpy = type(value), sys.modules.get("numpy")  # the user's objects may have a `__class__` that raises
    random_ = None if numpy is None else numpy.random
    of_numpy = () if random_ is None else (random_.Generator, random_.RandomState, random_.BitGenerator)
    if issubclass(kind, random.Random) and kind.getstate is not random.Random.getstate:
        return _has_state(value)
    return issubclass(kind, (torch.Generator, random.Random, *of_numpy))


def _has_state(generator: random.Random) -> bool:
    """Whether a generator with its own `getstate` has a state: one of the system has none."""
    try:
        return isinstance(generator.getstate(), tuple)
    except Exception:  # noqa: BLE001  the user's method, and random.SystemRandom's
        return False


def generators_in(roots: Mapping[str, Any], without: Iterable[Any] = ()) -> dict[str, Any]:
    """Return the random generators that some objects hold, by attribute path, always in the same order.

    Args:
        roots: Objects by name. Their attributes are searched, and those of the objects found; nothing is called.
        without: Objects that are not searched.

    Example:
        >>> class Data:
        ...     def __init__(self):
        ...         self.noise = torch.Generator()
        >>> list(generators_in({"dataset": Data()}))
        ['dataset.noise']
    """
    generators: dict[str, Any] = {}
    ids = {id(excluded) for excluded in without}
    to_search = [(name, value, 0) for name, value in roots.items()]
    for place, value, depth in to_search:  # it grows as it is read: breadth first
        if id(value) in ids or len(ids) > _MOST:
            continue
        ids.add(id(value))
        if is_generator(value):
            generators[place] = value
        elif depth < _DEEPEST:
            to_search += [(place + name, part, depth + 1) for name, part in _parts(value)]
    return generators


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if issubclass(kind, _PLAIN) or kind.__module__ == "numpy":
        return
    # A subclass's own `__len__` and `__iter__` are not called: they may raise, or have another meaning.
    sequence = next((base for base in (list, tuple) if issubclass(kind, base)), None)
    if sequence is not None and sequence.__len__(value) <= _LONGEST:
        yield from ((f"[{i}]", item) for i, item in enumerate(sequence.__iter__(value)))
    elif issubclass(kind, dict) and dict.__len__(value) <= _LONGEST:
        yield from ((f"[{key!r}]", entry) for key, entry in dict.items(value))
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except Exception:  # noqa: BLE001  none, or a property of the user's
        attributes = None
    if isinstance(attributes, dict) and kind.__name__ not in ("module", "function"):
        yield from ((f".{name}", attribute) for name, attribute in list(attributes.items()))
    for name in ("__self__", "func"):  # bound methods and partials, which may serve as collate functions
        if kind.__name__ in ("method", "partial") and hasattr(value, name):
            yield f".{name}", getattr(value, name)


def state_of_generator(generator: Any) -> Any:
    """Return a generator's state as values that `torch.load(weights_only=True)` reads."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return state_of_python(generator)
    if hasattr(generator, "get_state"):
        return _plain(generator.get_state(legacy=False))
    bits = getattr(generator, "bit_generator", generator)
    state, children = _plain(bits.state), getattr(_seeds(bits), "n_children_spawned", 0)
    return {**state, _CHILDREN: children} if children else state


def set_generator_state(generator: Any, state: Any) -> None:
    """Restore the state that `state_of_generator` returned."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        set_state_of_python(generator, state)
    elif hasattr(generator, "get_state"):
        generator.set_state(_as_arrays(state))
    else:
        bits, children = getattr(generator, "bit_generator", generator), state.get(_CHILDREN, 0)
        bits.state = _as_arrays({name: value for name, value in state.items() if name != _CHILDREN})
        if children > getattr(_seeds(bits), "n_children_spawned", children):
            _seeds(bits).spawn(children - _seeds(bits).n_children_spawned)


def _seeds(bits: Any) -> Any:
    """Return the seed sequence of a bit generator of NumPy, from which `spawn` makes more."""
    return getattr(bits, "seed_seq", None) or getattr(bits, "_seed_seq", None)  # the name before NumPy 1.25


def states_of(generators: Iterable[Any]) -> list[Any]:
    """Return the states of several generators."""
    return [state_of_generator(generator) for generator in generators]


def set_states(generators: Iterable[Any], states: Iterable[Any]) -> None:
    """Restore the states that `states_of` returned."""
    for generator, state in zip(generators, states, strict=False):
        set_generator_state(generator, state)


def present_state(own: Iterable[Any]) -> dict[str, Any]:
    """Return the states of the global generators and of some of the user's."""
    return {"global": rng_state(), "own": states_of(own)}


def set_present_state(own: Iterable[Any], state: Mapping[str, Any]) -> None:
    """Restore the state that `present_state` returned."""
    set_rng_state(state["global"])
    set_states(own, state["own"])


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def _as_arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_arrays(entry) for key, entry in value.items()}
    if isinstance(value, list):
        import numpy  # optional: numpy

        return numpy.array(value, dtype="uint64" if max(value, default=0) >= 2**32 else None)
    return value


def reseeding(generator: Any, own: int = 0) -> Callable[[int], Any]:
    """Return a function of an integer below 2**64 that seeds `generator`.

    Args:
        own: The `fingerprint` of its first state, so that the user's seed has an effect.
    """
    if isinstance(generator, torch.Generator):
        return lambda value: generator.manual_seed(value ^ own)
    if isinstance(generator, random.Random):
        return lambda value: generator.seed(value ^ own)
    if hasattr(generator, "get_state"):
        return lambda value: generator.seed((value ^ own) >> 32)
    bits = getattr(generator, "bit_generator", generator)

    def reseed(value: int) -> None:
        bits.state = type(bits)(value ^ own).state

    return reseed


def fingerprint(generator: Any) -> int:
    """Return a number below 2**64 for the state of a generator."""
    state = state_of_generator(generator)
    text = bytes(state.numpy()) if isinstance(state, torch.Tensor) else repr(state).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
