"""fuse_conv_bn: compute a convolution and its frozen batch norm as one, which keeps less for backward."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F  # noqa: N812  torch's own name

from lightlib.errors import ArgumentTypeError, MisconfigurationException, closest, shown
from lightlib.torch_private import convolve
from lightlib.tree import map_tensors

_CONVOLUTIONS = {
    nn.Conv1d: 1,
    nn.Conv2d: 2,
    nn.Conv3d: 3,
    nn.ConvTranspose1d: 1,
    nn.ConvTranspose2d: 2,
    nn.ConvTranspose3d: 3,
}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Pending(Tensor):
    """The output of a convolution that its batch norm will compute.

    If anything but that batch norm uses it, it is computed first, so the numbers are always right.
    """

    convolution: nn.Module
    input: Tensor

    @classmethod
    def of(cls, convolution: nn.Module, given: Tensor) -> Pending:
        """Return the output of `convolution` for `given`, which is not computed yet."""
        pending = given.detach().as_subclass(cls)
        vars(pending).update(convolution=convolution, input=given)
        return pending

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = map_tensors(_computed, (tuple(args), dict(kwargs or {})))
        return func(*args, **kwargs)


def _computed(tensor: Tensor) -> Tensor:
    if type(tensor) is not Pending:
        return tensor
    attributes = vars(tensor)
    if "output" not in attributes:
        attributes["output"] = type(attributes["convolution"]).forward(attributes["convolution"], attributes["input"])
    output: Tensor = attributes["output"]
    return output


class ConvBNFusion:
    """Fused pairs of convolutions and batch norms, the result of `fuse_conv_bn`.

    Attributes:
        fused: The names of each pair.
        skipped: The reason for each batch norm that was not fused, by its name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fused: list[tuple[str, str]] = []
        self.skipped: dict[str, str] = {}
        self.norms: list[nn.Module] = []
        self._changed: list[nn.Module] = []

    def add(self, names: tuple[str, str], convolution: nn.Module, norm: nn.Module) -> None:
        """Fuse a pair."""
        self.fused.append(names)
        self.norms.append(norm)
        forward, normalize = convolution.forward, norm.forward

        def convolved(images: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if norm.training or args or kwargs or not torch.is_grad_enabled():
                return forward(images, *args, **kwargs)  # type: ignore[no-any-return]
            return Pending.of(convolution, images)

        def normalized(images: Tensor) -> Tensor:
            if type(images) is Pending and images.convolution is convolution and not norm.training:
                return fused_output(convolution, norm, images.input)
            return normalize(images)  # type: ignore[no-any-return]

        vars(convolution)["forward"], vars(norm)["forward"] = convolved, normalized
        self._changed += [convolution, norm]

    def undo(self) -> None:
        """Give the modules their own forwards back."""
        for part in self._changed:
            del vars(part)["forward"]
        self._changed.clear()

    def describe(self) -> str:
        """Return a sentence that names the fused pairs, and the batch norms that were not fused with the reasons."""
        pairs = ", ".join(f"{convolution} + {two}" for convolution, two in self.fused)
        rest = "; ".join(f"{name} ({reason})" for name, reason in self.skipped.items())
        return f"fused {pairs or 'nothing'}" + (f"; not fused: {rest}" if rest else "") + "."


def fuse_conv_bn(module: nn.Module, modules: Sequence[str] | None = None) -> ConvBNFusion:
    """Let pairs of a convolution and its batch norm compute as one convolution while the batch norm is in eval mode.

    The weight of the convolution is multiplied by the scale of the batch norm at each call, with the same outputs and
    gradients but for rounding. Backward then keeps the input of the convolution, and not its output too. While the
    batch norm is in training mode, and without gradients, both run as they are. Names, parameters and checkpoints stay.

    Pairs are found by `torch.fx`; of a module that it cannot trace, the children are looked at one by one.

    Args:
        module: The module to change in place.
        modules: Names of the parts to look at, with wildcards. Default: all.

    Returns:
        The pairs, the batch norms that were left out with the reasons, and `undo`.

    Raises:
        ArgumentTypeError: `modules` is no list of names.
        MisconfigurationException: A name matches no module.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2).eval(), nn.ReLU())
        >>> fuse_conv_bn(net).fused
        [('0', '1')]
    """
    result, names = ConvBNFusion(), {part: name for name, part in module.named_modules()}
    for root in _roots(module, modules):
        norms = [part for part in root.modules() if isinstance(part, _NORMS)]
        pairs: dict[nn.Module, tuple[nn.Module | None, str]] = {}
        _find(root, names, pairs)
        for norm in norms:
            if norm in result.norms:
                continue
            convolution, reason = pairs.get(norm, (None, "no forward that torch.fx can trace calls it"))
            reason = reason or _obstacle(convolution, norm)
            if convolution is None or reason:
                result.skipped[names[norm]] = reason
            else:
                result.skipped.pop(names[norm], None)
                result.add((names[convolution], names[norm]), convolution, norm)
    return result


def _roots(module: nn.Module, chosen: Sequence[str] | None) -> Iterable[nn.Module]:
    if chosen is None:
        return [module]
    if isinstance(chosen, str) or not all(isinstance(name, str) for name in chosen) or not chosen:
        raise ArgumentTypeError(
            f"The modules to fuse are {shown(chosen)}.",
            expected="a list of names of modules, with wildcards, or None for all.",
            fix='modules=["backbone"]',
        )
    named = {name: part for name, part in module.named_modules() if name}
    modules: dict[str, nn.Module] = {}
    for pattern in chosen:
        matched = {name: part for name, part in named.items() if fnmatch.fnmatchcase(name, pattern)}
        if not matched:
            raise MisconfigurationException(
                f"modules holds {pattern!r}, which matches no module of {type(module).__name__}.",
                expected="the name of a module as in `named_modules()`.",
                fix=f"for instance {closest(pattern, list(named), next(iter(named), ''))!r}; the names are "
                f"{', '.join(list(named)[:12])}, …",
            )
        modules |= matched
    inner = {part for root in modules.values() for part in root.modules() if part is not root}
    return [part for part in modules.values() if part not in inner]


def _find(root: nn.Module, names: dict[nn.Module, str], pairs: dict[nn.Module, tuple[nn.Module | None, str]]) -> None:
    """Note the convolution before each batch norm in `root`, or the reason why there is none to fuse."""
    try:
        graph = fx.Tracer().trace(root)
    except Exception:  # noqa: BLE001  whatever the user's forward does with a proxy
        for child in root.children():
            _find(child, names, pairs)
        return
    calls = [node for node in graph.nodes if node.op == "call_module"]
    count = Counter(root.get_submodule(node.target) for node in calls)
    for node in calls:
        norm = root.get_submodule(node.target)
        if isinstance(norm, _NORMS):
            before = node.args[0] if node.args else None
            pairs[norm] = _before(root, before, count, norm)


def _before(root: nn.Module, node: Any, count: Counter[nn.Module], norm: nn.Module) -> tuple[nn.Module | None, str]:
    called = isinstance(node, fx.Node) and node.op == "call_module"
    convolution = root.get_submodule(node.target) if called else None
    if convolution is None or type(convolution) not in _CONVOLUTIONS:
        return None, "no convolution of torch comes before it"
    if count[norm] > 1 or count[convolution] > 1:
        return None, "it or its convolution is called several times"
    if len(node.users) > 1:
        return None, "something else uses the output of its convolution, too"
    return convolution, ""


def _obstacle(convolution: nn.Module | None, norm: nn.Module) -> str:
    """Return the reason why a pair is not fused; empty if it can be."""
    if convolution is None:
        return ""
    if norm.running_mean is None:
        return "it has no running statistics"
    for part in (convolution, norm):
        if any(vars(part).get(name) for name in _HOOKS):
            return "it or its convolution has hooks, which would see another output"
        if "forward" in vars(part):
            return "the forward of one of the two has been replaced"
    if "weight" not in dict(convolution.named_parameters(recurse=False)):
        return "the weight of its convolution is computed"
    return ""


def fused_output(convolution: Any, norm: Any, given: Tensor) -> Tensor:
    """Return the output of a convolution and a batch norm in evaluation mode, computed by one convolution."""
    weight, dtype = convolution.weight, convolution.weight.dtype
    exact = torch.promote_types(dtype, torch.float32)
    scale = torch.rsqrt(norm.running_var.to(exact) + norm.eps)
    shift = -norm.running_mean.to(exact) if convolution.bias is None else convolution.bias - norm.running_mean.to(exact)
    if norm.weight is not None:
        scale = scale * norm.weight
    bias = shift * scale if norm.bias is None else shift * scale + norm.bias
    ones = (1,) * (weight.ndim - 2)
    if convolution.transposed:  # its weight has the inputs first, and the outputs of one group
        groups, inputs = convolution.groups, weight.shape[0]
        by_group = scale.reshape(groups, 1, -1).expand(groups, inputs // groups, -1)
        weight = weight * by_group.reshape(inputs, -1, *ones)
        transposed = _TRANSPOSED[_CONVOLUTIONS[type(convolution)]]
        sizes = convolution.stride, convolution.padding, convolution.output_padding, groups, convolution.dilation
        return transposed(given, weight.to(dtype), bias.to(dtype), *sizes)
    weight = weight * scale.reshape(-1, 1, *ones)
    return convolve(convolution, given, weight.to(dtype), bias.to(dtype))
