"""init_weights: first values of layers by rules: Kaiming, Xavier, normal, constant, pretrained, …."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import init

from lightlib.checkpoint.tools.verbs import load
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, check_type, nearest, shown

_FIX = 'init_weights(self, {"type": "kaiming", "layer": ["Conv2d", "Linear"]})'


def _constant(tensor: Tensor, value: float = 0.0, val: float | None = None) -> None:
    init.constant_(tensor, value if val is None else val)


def _normal(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> None:
    init.normal_(tensor, mean, std)


def _truncated(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0) -> None:
    init.trunc_normal_(tensor, mean, std, a, b)


def _uniform(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> None:
    init.uniform_(tensor, a, b)


def _xavier(tensor: Tensor, gain: float = 1.0, distribution: str = "normal") -> None:
    _of(distribution, init.xavier_normal_, init.xavier_uniform_)(tensor, gain)


def _kaiming(
    tensor: Tensor, a: float = 0.0, mode: Any = "fan_out", nonlinearity: Any = "relu", distribution: str = "normal"
) -> None:
    _of(distribution, init.kaiming_normal_, init.kaiming_uniform_)(tensor, a, mode, nonlinearity)


def _caffe2_xavier(tensor: Tensor) -> None:
    init.kaiming_uniform_(tensor, 1.0, "fan_in", "leaky_relu")


def _orthogonal(tensor: Tensor, gain: float = 1.0) -> None:
    init.orthogonal_(tensor, gain)


def _of(distribution: str, normal: Callable[..., Any], uniform: Callable[..., Any]) -> Callable[..., Any]:
    if distribution not in ("normal", "uniform"):
        raise MisconfigurationException(
            f"A rule of init_weights has distribution={distribution!r}.",
            expected='"normal" or "uniform".',
            fix="leave it out for the normal distribution.",
        )
    return normal if distribution == "normal" else uniform


_TYPES: dict[str, Callable[..., None]] = {
    "constant": _constant,
    "normal": _normal,
    "truncnormal": _truncated,
    "uniform": _uniform,
    "xavier": _xavier,
    "caffe2xavier": _caffe2_xavier,
    "kaiming": _kaiming,
    "orthogonal": _orthogonal,
}
_PRETRAINED = "pretrained"


def init_weights(module: nn.Module, rules: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Set the values of the layers of a module by rules; those of MMEngine's ``init_cfg`` are understood.

    Call it in `__init__` or `configure_model`, after the layers exist. Rules apply in their order, so a later one
    replaces the values of an earlier one. If the module is built without memory (``FSDPStrategy(meta=True)``), the same
    rules fill it later, with the same values.

    Args:
        module: The module.
        rules: One or several dicts with

            - ``type``: ``"constant"`` (`value` or `val`), ``"normal"`` (`mean`, `std`), ``"trunc_normal"`` (also `a`,
              `b`), ``"uniform"`` (`a`, `b`), ``"xavier"`` (`gain`, `distribution`), ``"kaiming"`` (`a`, `mode`,
              `nonlinearity`, `distribution`), ``"caffe2xavier"``, ``"orthogonal"`` (`gain`), a function that changes a
              tensor in place, such as those of `torch.nn.init`, or ``"pretrained"``;
            - ``layer``: classes or names of classes, and ``name``: patterns of the names of layers with ``*``, ``?``
              and ``[…]``; if both are given, a layer must match both. Default: all layers with parameters;
            - ``bias``: the value of the biases, default 0; None leaves them as they are. Or ``bias_prob``: the
              probability for which a sigmoid of the biases is made;
            - ``override``: one or several rules with `name`, applied after this one; with `name` alone, a rule has the
              options of this one. A rule with `override` and without `layer` and `name` is these rules alone;
            - the options of the type.

            ``"pretrained"`` has `checkpoint`, a path; `prefix`, of the names in it that are taken, which is cut off;
            and `name`, of the part of the module that gets them. All values of that part must be there. `map_location`
            is accepted: values go to the device of the module.

    Raises:
        ArgumentTypeError: The rules are no dicts.
        MisconfigurationException: A rule has an unknown type or option, or matches no layer; `bias` and `bias_prob` are
            given together, or `value` and `val`; a rule of `override` has no name, or options without a type.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 2))
        >>> init_weights(net, [
        ...     {"type": "kaiming", "layer": "Conv2d"},
        ...     {"type": "constant", "value": 1.0, "layer": "BatchNorm2d"},
        ...     {"type": "normal", "std": 0.01, "name": "3", "bias": None},
        ... ])
        >>> net[1].weight[0].item(), net[0].bias[0].item()
        (1.0, 0.0)
    """
    check_type("init_weights", "rules", rules, (Mapping, list, tuple), "a dict or a list", fix=_FIX)
    each: list[Any] = [rules] if isinstance(rules, Mapping) else list(rules)
    for rule in each:
        if not isinstance(rule, Mapping) or "type" not in rule:
            raise ArgumentTypeError(
                f"A rule of init_weights is {shown(rule)}.", expected="a dict with 'type'.", fix=_FIX
            )
        for override in _expanded(rule):
            _apply(module, override)


def _expanded(rule: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a rule without `override`, and the rules in its `override`."""
    base = {key: value for key, value in rule.items() if key != "override"}
    overrides = rule.get("override")
    if overrides is None or "layer" in base or "name" in base:
        yield dict(base)
    for override in [overrides] if isinstance(overrides, Mapping) else overrides or ():
        if (
            not isinstance(override, Mapping)
            or "name" not in override
            or (len(override) > 1 and "type" not in override)
        ):
            raise MisconfigurationException(
                f"A rule of init_weights has override={override!r}.",
                expected="a dict with 'name', and with 'type' if it has options of its own.",
                fix='"override": {"type": "normal", "std": 0.01, "name": "head"}',
            )
        shared = {key: value for key, value in base.items() if key not in ("layer", "name")}
        yield dict(override) if len(override) > 1 else {**shared, **override}


def _apply(module: nn.Module, options: dict[str, Any]) -> None:
    kind = options.pop("type")
    if isinstance(kind, str) and _plain(kind) == _PRETRAINED:
        _load_pretrained(module, **_checked(options, _load_pretrained, 1, _PRETRAINED))
        return
    layers = list(_matching(module, options.pop("layer", None), options.pop("name", None)))
    bias, change = _bias(options), _change(kind, options)
    for layer in layers:
        if any(parameter.is_meta for parameter in layer.parameters(recurse=False)):
            layer.reset_parameters = partial(reset_parameters, layer, change, bias)  # type: ignore[assignment]  # see `Construction`
        reset_parameters(layer, change, bias)


def _bias(options: dict[str, Any]) -> float | None:
    """Remove the value of the biases from the options, and return it."""
    for option, other in (("bias", "bias_prob"), ("value", "val")):
        if option in options and other in options:
            raise MisconfigurationException(
                f"A rule of init_weights has both {option!r} and {other!r}.",
                expected="one of them.",
                fix="leave one out.",
            )
    probability = options.pop("bias_prob", None)
    if probability is None:
        return options.pop("bias", 0.0)  # type: ignore[no-any-return]
    if not isinstance(probability, float) or not 0 < probability < 1:
        raise MisconfigurationException(
            f"A rule of init_weights has bias_prob={probability!r}.", expected="a float between 0 and 1.", fix=_FIX
        )
    return math.log(probability / (1 - probability))


def _plain(kind: str) -> str:
    """Return the name of a type without case and ``_``, and without ``Init`` at its end."""
    return kind.lower().replace("_", "").removesuffix("init")


def reset_parameters(layer: nn.Module, change: Callable[[Tensor], Any], bias: float | None) -> None:
    """Set the values of one layer. The name is that of torch's methods, which are called for layers without memory."""
    for name, parameter in layer.named_parameters(recurse=False):
        if parameter.is_meta:
            parameter.detach().zero_()  # so that the call is noted: torch's trunc_normal_ does nothing here
        if "bias" not in name:
            change(parameter)
        elif bias is not None:
            init.constant_(parameter, bias)


def _change(kind: Any, options: Mapping[str, Any]) -> Callable[[Tensor], Any]:
    if not isinstance(kind, str):
        if callable(kind) and not isinstance(kind, type):
            return partial(kind, **_checked(options, kind, 1, getattr(kind, "__name__", "a function")))
        raise ArgumentTypeError(
            f"A rule of init_weights has type={shown(kind)}.", expected="a name, or a function of a tensor.", fix=_FIX
        )
    name = _plain(kind)
    if name not in _TYPES:
        raise UnknownNameError("type of initialization", kind, [*_TYPES, _PRETRAINED], fix=_FIX)
    return partial(_TYPES[name], **_checked(options, _TYPES[name], 1, kind))


def _checked(options: Mapping[str, Any], function: Callable[..., Any], skipped: int, kind: str) -> dict[str, Any]:
    try:
        names = list(inspect.signature(function).parameters)[skipped:]
    except (TypeError, ValueError):  # a function without a signature
        return dict(options)
    unknown = [name for name in options if name not in names]
    if unknown:
        allowed = (
            ["type", "layer", "name", "bias", "bias_prob", "override", *names]
            if kind != _PRETRAINED
            else ["type", *names]
        )
        raise MisconfigurationException(
            f"A rule of init_weights for {kind!r} has the option {unknown[0]!r}.{nearest(unknown[0], allowed)}",
            expected=f"options among {', '.join(map(repr, allowed))}.",
            fix=_FIX,
        )
    return dict(options)


def _matching(module: nn.Module, classes: Any, names: Any) -> Iterator[nn.Module]:
    kinds, patterns = _listed(classes), _listed(names)
    layers = [
        (name, part) for name, part in module.named_modules() if any(True for _ in part.parameters(recurse=False))
    ]
    matches = [part for name, part in layers if _is_one(part, kinds) and _is_named(name, patterns)]
    if not matches:
        candidates = {type(part).__name__ for _, part in layers} if kinds is not None else {name for name, _ in layers}
        pattern = next(iter(kinds if kinds is not None else patterns or []), "")
        name_of_pattern = getattr(pattern, "__name__", str(pattern))
        raise MisconfigurationException(
            f"A rule of init_weights with layer={classes!r} and name={names!r} matches no layer of "
            f"{type(module).__name__}.{nearest(name_of_pattern, candidates)}",
            expected=f"layers with parameters; there are {', '.join(sorted(candidates)) or 'none'}.",
            fix="correct it, or call init_weights after the layers exist.",
        )
    return iter(matches)


def _listed(argument: Any) -> list[Any] | None:
    if argument is None:
        return None
    return list(argument) if isinstance(argument, (list, tuple)) else [argument]


def _is_one(part: nn.Module, kinds: list[Any] | None) -> bool:
    bases = type(part).__mro__
    return kinds is None or any(kind in bases or kind in [base.__name__ for base in bases] for kind in kinds)


def _is_named(name: str, patterns: list[Any] | None) -> bool:
    return patterns is None or any(fnmatchcase(name, p) or name.startswith(f"{p}.") for p in patterns)


def _load_pretrained(
    module: nn.Module,
    checkpoint: str | os.PathLike[str],
    prefix: str | None = None,
    name: str = "",
    map_location: Any = None,  # noqa: ARG001  of MMEngine: the values go to the module's device anyway
) -> None:
    prefix = prefix or ""
    if any(tensor.is_meta for tensor in module.state_dict().values()):
        raise MisconfigurationException(
            f"init_weights got pretrained values for {type(module).__name__}, which is built without memory.",
            expected="a module with memory.",
            fix='trainer.fit(module, ckpt_path=path, resume="weights"), which each process reads for its shard.',
        )
    content = load(checkpoint)
    state = content.get("state_dict", content)
    taken = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    if not taken:
        raise MisconfigurationException(
            f"init_weights found no name that begins with {prefix!r} in {os.fspath(checkpoint)!r}.",
            expected=f"a prefix of its names, such as {next(iter(state), 'none')!r}.",
            fix='{"type": "pretrained", "checkpoint": path, "prefix": "model."}',
        )
    module.get_submodule(name).load_state_dict(taken)
