"""Turn arguments of MeshStrategy and the Trainer (sizes, booleans, names, axes) into axes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, closest, owner, shown
from lightlib.strategies.axes.axis import Axis
from lightlib.strategies.axes.transforms import ActivationCheckpoint, ActivationOffload, Compile, Transform

A = TypeVar("A", bound=Axis)
# In the order in which they are applied: what is compiled computes activations again, and what it keeps is offloaded.
_TRANSFORMS: dict[str, type[Transform]] = {
    kind.argument: kind for kind in (ActivationCheckpoint, Compile, ActivationOffload)
}


def axis_of(name: str, given: Any, kind: type[A]) -> A:
    """Return the axis for a size, or the axis that was given."""
    if isinstance(given, Axis) and not isinstance(given, kind):
        raise ArgumentTypeError(
            f"MeshStrategy({name}={type(given).__name__}(…)).",
            expected=f"a size, or a lightlib.strategies.{kind.__name__}.",
            fix=f"MeshStrategy({name}={kind.__name__}({given.size}))",
        )
    axis: Any = given if isinstance(given, kind) else kind(given)  # type: ignore[call-arg]
    return axis  # type: ignore[no-any-return]


def transform_of(given: bool | A, kind: type[A]) -> tuple[A, ...]:
    """Return the transform that was given, or one with defaults for True."""
    if isinstance(given, bool):
        return (kind(),) if given else ()
    if isinstance(given, kind):
        return (given,)
    raise ArgumentTypeError(
        f"A strategy got {shown(given)} for {kind.__name__}.",
        expected=f"True or a {kind.__name__}, or False for none.",
        fix=f"{kind.__name__}(blocks=['blocks.*'])",
    )


def transforms_of(arguments: Mapping[str, Any]) -> tuple[Transform, ...]:
    """Return the transforms of the Trainer's arguments.

    Each is a bool, ``"blocks"``, names of modules, a dict of these as ``"target"`` with options, or the transform.

    Raises:
        ArgumentTypeError: One is something else.
        UnknownNameError: A dict has an option that there is not.
    """
    return tuple(
        argument if isinstance(argument, kind) else _transform(name, kind, argument)
        for name, kind in _TRANSFORMS.items()
        if (argument := arguments.get(name)) not in (None, False)
    )


def _transform(name: str, kind: type[Transform], argument: Any) -> Transform:
    options = dict(argument) if isinstance(argument, Mapping) else {"target": argument}
    target = options.pop("target", True)
    allowed = ["target", *(each for each in inspect.signature(kind).parameters if each != "blocks")]
    for option in options:
        if option not in allowed:
            fix = f"{owner()}({name}={{{closest(option, allowed, allowed[1])!r}: …}})"
            raise UnknownNameError(f"option of {name}", option, allowed, fix=fix)
    names = [target] if isinstance(target, str) else target
    if target is not True and not (
        isinstance(names, Sequence) and names and all(isinstance(each, str) and each for each in names)
    ):
        raise ArgumentTypeError(
            f"{name} is {shown(argument)}.",
            expected='True, False, "blocks", the name of a module or a list of names with wildcards, a dict of these as'
            f' "target" and options ({", ".join(allowed[1:])}), or a lightlib.strategies.{kind.__name__}.',
            fix=f'{owner()}({name}="blocks")',
        )
    return kind(blocks=target if target in (True, "blocks") else list(names), **options)


def joined(own: Sequence[Transform], given: Sequence[Transform], strategy: str) -> tuple[Transform, ...]:
    """Return the transforms of a strategy and those `given` to the Trainer, in the order in which they are applied.

    Raises:
        MisconfigurationException: Both have one of a kind, or two exclude each other.
    """
    for transform in given:
        if any(other.argument == transform.argument for other in own):
            raise MisconfigurationException(
                f"{transform.argument} is given twice: to the {owner().name} and to {strategy}.",
                expected="one of the two.",
                fix=f"leave out {strategy}({transform.argument}=…).",
            )
    every = sorted((*own, *given), key=lambda transform: list(_TRANSFORMS).index(transform.argument))
    eager = any(isinstance(transform, Compile) and str(transform.backend).startswith("eager") for transform in every)
    if eager and any(
        isinstance(transform, ActivationCheckpoint) and transform.preserve_rng_state for transform in every
    ):
        raise MisconfigurationException(
            "activation_checkpointing with compile and its backend 'eager', in which torch does not draw the same "
            "random numbers again: gradients of dropout would be wrong.",
            expected="another backend, or a model that draws no random numbers.",
            fix="backend='aot_eager', or ActivationCheckpoint(preserve_rng_state=False).",
        )
    return tuple(every)


def checked(given: A) -> A:
    """Return an axis unchanged; refuse anything else."""
    if isinstance(given, Axis):
        return given
    raise ArgumentTypeError(
        f"MeshStrategy got {given!r} ({type(given).__name__}) as an axis.",
        expected="a lightlib.strategies.Axis.",
        fix="MeshStrategy(extra_axes=[MyAxis(2)])",
    )
