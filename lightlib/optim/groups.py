"""param_groups: the parameters of a module in groups with their own learning rates and weight decays."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from lightlib.errors import MisconfigurationException, check_number, check_type, nearest, wrong_type

_NORM = re.compile(r"Norm(\d+d)?$")
_EMBEDDING = re.compile(r"Embedding(Bag)?$")
_MULTIPLIERS = {"lr_mult": "lr", "decay_mult": "weight_decay"}
_EXAMPLE = "param_groups(self, lr=1e-3, weight_decay=0.05, rules={'head.*': {'lr_mult': 10}})"


@dataclass
class _Parameter:
    """A parameter of this process or of another stage of a pipeline, which has no value here."""

    names: list[str]
    kind: str  # norm, bias, dwconv, flat or weight
    classes: list[str]  # of the module that has it, and their bases
    trained: bool
    value: nn.Parameter | None
    dims: int
    embeds: bool = False
    last: int = 0  # place of the last of its names in the module

    def add(self, name: str, place: int, embeds: bool) -> None:
        """Add a name, which may be the one of an embedding."""
        self.names.append(name)
        self.last, self.embeds = place, self.embeds or embeds

    def matches(self, pattern: str) -> bool:
        return any(fnmatchcase(name, pattern) or name.startswith(f"{pattern}.") for name in self.names)


def param_groups(
    module: nn.Module,
    lr: float | None = None,
    weight_decay: float | None = None,
    *,
    muon_lr: float | None = None,
    rules: Mapping[str, Mapping[str, Any]] | None = None,
    types: Mapping[str | type, Mapping[str, Any]] | None = None,
    norm_decay_mult: float = 0.0,
    bias_decay_mult: float = 0.0,
    dwconv_decay_mult: float = 1.0,
    flat_decay_mult: float = 1.0,
    bias_lr_mult: float = 1.0,
    layers: Sequence[str | Sequence[str]] | None = None,
    layer_decay: float | None = None,
    frozen: bool = False,
) -> list[dict[str, Any]]:
    """Return the parameters of `module` in groups for an optimizer; norms and biases do not decay.

    Parameters with the same options are one group. Groups are in the order in which their first parameter is in the
    module. A shared parameter is in one group, and a pattern may match any of its names. In a pipeline every process
    calls this with `self`, and gets the same groups with the parameters of its stages.

    The learning rate of a parameter is `lr` times the multiplier of its layer times ``lr_mult``. Its weight decay is
    `weight_decay` times ``decay_mult``. Both are those of its kind, unless `types` or `rules` set them; a rule takes
    precedence over a type, and a later rule over an earlier one, for each option. The kinds are, the first that fits:
    in a class whose name, or that of a base, ends in ``Norm`` (or ``Norm2d`` …); a bias; in a depthwise convolution;
    of one dimension; and the rest. The meaning of the multipliers is that of MMEngine's ``paramwise_cfg`` [1].
    Decay of the learning rate from the last layer to the first is that of BEiT [2].

    Args:
        module: The module; under a strategy, `self` in `configure_optimizers`.
        lr: The learning rate. Default: the optimizer's, which no group may then multiply.
        weight_decay: The weight decay. Default: the optimizer's; only the multiplier 0 may then be applied to it.
        muon_lr: The learning rate of the matrices of hidden layers, for `MuonAdamW`: their groups have the key
            ``use_muon`` with True, and the rest with False. They are the weights with two dimensions, except
            embeddings and the last one of the module, which is its output layer (and, if that is frozen, the last one
            that is trained). A rule may set ``use_muon``. Default: no group has this key.
        rules: Options by a pattern: the name of a parameter or of a module, with ``*``, ``?`` and ``[…]`` as in file
            names. An option is ``lr_mult``, ``decay_mult``, or one of the optimizer (``lr``, ``betas``, …).
        types: Options by the class of the module that has the parameter, or the class's name.
        norm_decay_mult: Of parameters of normalization layers, including their biases. Default 0.0.
        bias_decay_mult: Of other biases. Default 0.0.
        dwconv_decay_mult: Of the weights of depthwise convolutions. Default 1.0.
        flat_decay_mult: Of other parameters with one dimension. Default 1.0.
        bias_lr_mult: Of biases, except those of normalization layers. Default 1.0.
        layers: Patterns from the first layer to the last; those in an inner list are one layer. The name of an
            ``nn.Sequential`` or ``nn.ModuleList`` stands for its children in order.
        layer_decay: The multiplier of the learning rate from a layer to the one before it. The last layer, and
            parameters in no layer, have 1.0.
        frozen: Whether to include parameters with ``requires_grad=False``. Default False.

    Returns:
        A list of dicts with ``params`` and the options that are set.

    Raises:
        ArgumentTypeError: An argument has the wrong type.
        MisconfigurationException: A pattern matches nothing, an option cannot be computed, a number is out of its
            range, or no parameter is left.

    Sources:
        [1] https://mmengine.readthedocs.io/en/latest/tutorials/optim_wrapper.html
        [2] Bao et al. 2021, "BEiT: BERT Pre-Training of Image Transformers", arXiv:2106.08254, appendix.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
        >>> for group in param_groups(net, 0.1, 0.01, rules={"2": {"lr_mult": 10}}):
        ...     print(len(group["params"]), group["lr"], group["weight_decay"])
        1 0.1 0.01
        3 0.1 0.0
        1 1.0 0.01
        1 1.0 0.0
    """
    check_type("param_groups", "module", module, nn.Module, "an nn.Module", fix=_EXAMPLE)
    by_kind = {
        "norm": {"decay_mult": norm_decay_mult},
        "bias": {"decay_mult": bias_decay_mult, "lr_mult": bias_lr_mult},
        "dwconv": {"decay_mult": dwconv_decay_mult},
        "flat": {"decay_mult": flat_decay_mult},
        "weight": {},
    }
    _check_numbers(
        {
            "lr": lr,
            "weight_decay": weight_decay,
            "muon_lr": muon_lr,
            "norm_decay_mult": norm_decay_mult,
            "bias_decay_mult": bias_decay_mult,
            "dwconv_decay_mult": dwconv_decay_mult,
            "flat_decay_mult": flat_decay_mult,
            "bias_lr_mult": bias_lr_mult,
            "layer_decay": layer_decay,
        }
    )
    rules, types = _checked("rules", rules), _checked("types", types)
    parameters = _parameters(module)
    names = [name for parameter in parameters for name in parameter.names]
    for pattern in rules:
        _matched("rules", pattern, parameters, names)
    _check_types(types, parameters)
    rates = _rates(module, parameters, names, layers, layer_decay)
    hidden = _hidden(parameters)
    groups: list[dict[str, Any]] = []
    for parameter in parameters:
        if not (parameter.trained or frozen):
            continue
        options = dict(by_kind[parameter.kind])
        for kind, options_of_type in types.items():
            options |= options_of_type if _is_of(parameter, kind) else {}
        for pattern, options_of_type in rules.items():
            options |= options_of_type if parameter.matches(pattern) else {}
        base = {"lr": lr, "weight_decay": weight_decay}
        if muon_lr is not None and options.setdefault("use_muon", parameter.names[0] in hidden):
            base["lr"] = muon_lr
        options = _resolved(parameter.names[0], options, base, rates.get(parameter.names[0], 1.0))
        same = next((group for group in groups if _without_params(group) == options), None)
        if same is None:
            same = {"params": [], **options}
            groups.append(same)
        if parameter.value is not None:
            same["params"].append(parameter.value)
    if not groups:
        raise MisconfigurationException(
            f"param_groups found no parameter to train in {type(module).__name__}, which has {len(parameters)}.",
            expected="a module with a parameter that requires a gradient.",
            fix="param_groups(…, frozen=True), which includes frozen ones, or parameter.requires_grad_().",
        )
    return groups


def _parameters(module: nn.Module) -> list[_Parameter]:
    """Return all parameters in the order of the module, on each process of a pipeline the same ones."""
    by_id: dict[int, _Parameter] = {}
    place = 0
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for leaf, value in owner.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{prefix}.{leaf}" if prefix else leaf
            if id(value) not in by_id:
                classes = [f"{base.__module__}.{base.__qualname__}" for base in type(owner).__mro__]
                kind = _kind(leaf, owner, value)
                by_id[id(value)] = _Parameter([], kind, classes, value.requires_grad, value, value.ndim)
            place += 1
            by_id[id(value)].add(name, place, any(_EMBEDDING.search(kind.__name__) for kind in type(owner).__mro__))
    parameters = list(by_id.values())
    trainer = getattr(module, "_trainer", None)
    order: list[str] = [] if trainer is None else getattr(trainer.strategy, "names", [])
    if trainer is None or {*order} <= {name for parameter in parameters for name in parameter.names}:
        return parameters
    gathered = trainer.strategy.collectives.all_gather_object(
        [replace(parameter, value=None) for parameter in parameters]
    )
    by_name = {parameter.names[0]: parameter for rank in gathered for parameter in rank} | {
        parameter.names[0]: parameter for parameter in parameters
    }
    # A simulation of one process lacks those of the rest.
    return [replace(by_name[name], last=i) for i, name in enumerate(order) if name in by_name]


def _hidden(parameters: Sequence[_Parameter]) -> set[str]:
    """Return the first names of the matrices of hidden layers: all but embeddings and the last one.

    If that is frozen, the last one that is trained is left out too: a reference model may follow the model.
    """
    matrices = [parameter for parameter in parameters if parameter.kind == "weight" and parameter.dims == 2]
    last = {
        max((parameter.last for parameter in some), default=0)
        for some in (matrices, [parameter for parameter in matrices if parameter.trained])
    }
    return {parameter.names[0] for parameter in matrices if not parameter.embeds and parameter.last not in last}


def _kind(leaf: str, owner: nn.Module, value: nn.Parameter) -> str:
    if any(_NORM.search(base.__name__) for base in type(owner).__mro__):
        return "norm"
    if leaf == "bias" or leaf.startswith("bias_") or leaf.endswith("_bias"):
        return "bias"
    if isinstance(owner, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and 1 < owner.in_channels == owner.groups:
        return "dwconv"
    return "flat" if value.ndim == 1 else "weight"


def _resolved(name: str, options: Mapping[str, Any], base: Mapping[str, float | None], rate: float) -> dict[str, Any]:
    multipliers = {"lr_mult": options.get("lr_mult", 1.0) * rate, "decay_mult": options.get("decay_mult", 1.0)}
    resolved = {key: value for key, value in options.items() if key not in _MULTIPLIERS}
    for multiplier, option in _MULTIPLIERS.items():
        factor, value = multipliers[multiplier], base[option]
        if option in resolved:
            continue
        if value is not None:
            resolved[option] = value * factor
        elif factor == 0:
            resolved[option] = 0.0
        elif factor != 1:
            raise MisconfigurationException(
                f"param_groups got a multiplier {factor:g} of `{option}` for {name!r}, but no `{option}`.",
                expected=f"the `{option}` to multiply.",
                fix=f"param_groups(…, {option}={'1e-3' if option == 'lr' else '0.01'})",
            )
    return resolved


def _without_params(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _rates(
    module: nn.Module,
    parameters: Sequence[_Parameter],
    names: Sequence[str],
    layers: Sequence[str | Sequence[str]] | None,
    layer_decay: float | None,
) -> dict[str, float]:
    """Return the multipliers of the learning rate by the name of the parameter."""
    if (layers is None) != (layer_decay is None):
        present, missing = ("layers", "layer_decay") if layer_decay is None else ("layer_decay", "layers")
        raise MisconfigurationException(
            f"param_groups got `{present}` without `{missing}`.",
            expected="both, or none.",
            fix="param_groups(…, layers=['embedding', 'blocks'], layer_decay=0.75)",
        )
    if layers is None or layer_decay is None:
        return {}
    if isinstance(layers, str) or not isinstance(layers, Sequence):
        raise wrong_type("param_groups", "layers", layers, "a list of patterns", "['embedding', 'blocks']")
    modules, order = dict(module.named_modules()), list[list[str]]()
    for entry in layers:
        layer_list = modules.get(entry) if isinstance(entry, str) else None
        if isinstance(layer_list, (nn.Sequential, nn.ModuleList)):
            inside = [name.removeprefix(f"{entry}.") for name in names if name.startswith(f"{entry}.")]
            order += [[f"{entry}.{child}"] for child in dict.fromkeys(name.partition(".")[0] for name in inside)]
        else:
            order.append([entry] if isinstance(entry, str) else list(entry))
    rates: dict[str, float] = {}
    for i, patterns in enumerate(order):
        for pattern in patterns:
            for parameter in _matched("layers", pattern, parameters, names):
                rates.setdefault(parameter.names[0], layer_decay ** (len(order) - 1 - i))
    return rates


def _matched(where: str, pattern: str, parameters: Sequence[_Parameter], names: Sequence[str]) -> list[_Parameter]:
    matches = [parameter for parameter in parameters if parameter.matches(pattern)]
    if not matches:
        modules = {name[:i] for name in names for i, letter in enumerate(name) if letter == "."}
        raise MisconfigurationException(
            f"param_groups got {pattern!r} in `{where}`, which matches no parameter."
            f"{nearest(pattern, [*names, *sorted(modules)])}",
            expected=f"the name of a parameter or module, or a pattern of one: {', '.join(names[:8])}"
            f"{', …' if len(names) > 8 else ''}.",
            fix="print([name for name, _ in self.named_parameters()])",
        )
    return matches


def _is_of(parameter: _Parameter, kind: str | type) -> bool:
    if isinstance(kind, type):
        return f"{kind.__module__}.{kind.__qualname__}" in parameter.classes
    return any(kind in (path, path.rpartition(".")[2]) for path in parameter.classes)


def _check_types(types: Mapping[Any, Any], parameters: Sequence[_Parameter]) -> None:
    names = sorted({parameter.classes[0].rpartition(".")[2] for parameter in parameters})
    for kind in types:
        if not any(_is_of(parameter, kind) for parameter in parameters):
            name = kind.__name__ if isinstance(kind, type) else kind
            raise MisconfigurationException(
                f"param_groups got {name!r} in `types`, and no module of this type has a parameter."
                f"{nearest(name, names)}",
                expected=f"a class of a module with parameters: {', '.join(names)}.",
                fix=f"param_groups(…, types={{{names[0] if names else 'Linear'!r}: {{'decay_mult': 0}}}})",
            )


def _checked(where: str, argument: Any) -> dict[Any, dict[str, Any]]:
    if argument is None:
        return {}
    keys: Any = (str, type) if where == "types" else str
    right = isinstance(argument, Mapping) and all(
        isinstance(key, keys) and isinstance(value, Mapping) for key, value in argument.items()
    )
    if not right:
        keys_of = "patterns" if where == "rules" else "classes"
        raise wrong_type("param_groups", where, argument, f"a dict from {keys_of} to dicts of options", fix=_EXAMPLE)
    for key, options in argument.items():
        for name in options:
            if name in _MULTIPLIERS or (name != "params" and "mul" not in str(name)):
                continue
            raise MisconfigurationException(
                f"param_groups got the option {name!r} for {key!r} in `{where}`.{nearest(name, _MULTIPLIERS)}",
                expected="lr_mult, decay_mult, or options of the optimizer.",
                fix=_EXAMPLE,
            )
        _check_numbers({f"{where}[{key!r}][{n!r}]": options[n] for n in (*_MULTIPLIERS, "lr") if n in options})
    return {key: dict(options) for key, options in argument.items()}


def _check_numbers(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value is not None:
            check_number("param_groups", name, value, least=0, below=math.inf, fix=_EXAMPLE)
