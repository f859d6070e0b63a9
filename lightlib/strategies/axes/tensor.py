"""Tensor: shards the matrices of each layer over processes, for one batch that all of them read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from lightlib.errors import MisconfigurationException
from lightlib.report import PossibleUserWarning, info, warn
from lightlib.strategies.axes.autograd_collectives import gathered, shard_of
from lightlib.strategies.axes.axis import Axis, AxisContext, Step
from lightlib.strategies.axes.plan import blocks_of
from lightlib.strategies.axes.shard import own_memory
from lightlib.strategies.axes.tensor_plan import (
    automatic_plan,
    check_styles,
    head_counts,
    no_plan,
    patterns,
    resolved,
    transformer_plan,
)
from lightlib.torch_private import tied_parameters
from lightlib.tree import map_tensors

__all__ = ["Tensor", "transformer_plan"]

_TOKENS = 1  # the sequence dimension of the activations between blocks


class Tensor(Axis):
    """Every process has a shard of each large matrix; they exchange activations within each layer.

    All processes of this axis read the same batch and draw the same random numbers. What is not split is on each of
    them in full, and computes the same there.

    `plan`, else `Module.parallel_plan().tensor`, sets how layers are split, by name (``*`` is one part of it):

    - ``"colwise"``: a Linear layer with split outputs and the full input.
    - ``"rowwise"``: a Linear layer that takes split inputs; the outputs are summed over the processes.
    - ``"vocab"``: an Embedding, or the Linear layer that gives the scores, split by entries or classes.
    - ``"sequence"``: a norm that sees only a shard of the tokens or heads: full everywhere, its gradients are summed.
    - ``"replicate"``: full, as layers that are not named.
    - a `ParallelStyle` of `torch.distributed.tensor.parallel`.

    Without a plan, pairs of Linear layers with elementwise functions between them are split. The usual layers of
    transformer blocks are found by :func:`transformer_plan`, which is for `parallel_plan`. An attention whose
    projections are split gets its part of the heads: attributes such as ``num_heads`` and ``n_kv_heads`` of the module
    that holds them are divided by the size.

    Args:
        size: Processes; -1: as many as are left.
        plan: In place of the module's.
        loss_parallel: Leave the scores of the ``"vocab"`` Linear split over the classes; `cross_entropy` in the step
            works on the parts. What else a step does with them may need ``scores.full_tensor()``. Default: that of
            the module's plan.
        sequence_parallel: Split also what blocks give each other, along the sequence (dimension 1): less memory for
            the same communication. Norms in the blocks become ``"sequence"``. Default False.

    Raises:
        MisconfigurationException: The plan does not fit the module: the message has the names and numbers.

    Example:
        >>> Tensor(2, plan={"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}).size
        2
    """

    name = "tensor"
    order = 50
    shards_parameters = True
    replaced_by_hand = True
    # set by `apply`
    _module: nn.Module
    _mesh: DeviceMesh

    def __init__(
        self,
        size: int = 1,
        *,
        plan: Mapping[str, str | ParallelStyle] | None = None,
        loss_parallel: bool | None = None,
        sequence_parallel: bool = False,
    ) -> None:
        self.size, self.plan = size, plan
        self.loss_parallel, self.sequence_parallel = loss_parallel, sequence_parallel
        self._styles: dict[str, Any] = {}
        self._blocks: list[str] = []
        self._heads: list[tuple[str, str, int]] = []
        self._splits_scores = False

    def check(self, module: nn.Module, site: AxisContext) -> None:
        plan = self.plan if self.plan is not None else site.plan.tensor
        self._splits_scores = site.plan.loss_parallel if self.loss_parallel is None else self.loss_parallel
        if plan:
            self._styles = resolved(module, plan)
        else:
            self._styles, uneven = automatic_plan(module, self.size)
            if not self._styles:
                raise no_plan(module, self.size, uneven)
            info(f"tensor={self.size} splits {', '.join(patterns(self._styles, module))}; the rest is not split.")
        self._blocks = list(blocks_of(module, site.plan))
        check_styles(module, self._styles, self.size, self._blocks)
        self._heads = head_counts(module, self._styles)
        if self.sequence_parallel:
            self._styles = _with_norms(module, self._styles, site)
        if self._splits_scores and not any(_gives_scores(module, *entry) for entry in self._styles.items()):
            raise MisconfigurationException(
                "loss_parallel=True, but the tensor plan splits no scores.",
                expected='the Linear layer that gives the scores as "vocab".',
                fix='ParallelPlan(tensor={…, "head": "vocab"}, loss_parallel=True)',
            )
        _check_ties(module, self._styles)
        if site.device.type == "cpu":
            _warn_of_dropout(module, self._styles, self.sequence_parallel)

    def apply(self, module: nn.Module, site: AxisContext) -> None:
        redistribute = logging.getLogger("torch.distributed.tensor._redistribute")
        redistribute.setLevel(logging.ERROR)  # reducing twice is intended
        mesh = self._mesh = site.mesh["tensor"]
        self._module = module
        ties = tied_parameters(module)
        here = dict(module.named_modules())  # a pipeline's stage has only some of them
        blocks = [name for name in self._blocks if name in here]
        for name, style in self._styles.items():
            if name in here and style != "replicate":
                within = self.sequence_parallel and any(name.startswith(f"{block}.") for block in blocks)
                made = style if isinstance(style, ParallelStyle) else self._style(here[name], style, within)
                if not any(parameter.is_meta for parameter in here[name].parameters()):
                    here[name].to(site.device)
                parallelize_module(here[name], mesh, made, src_data_rank=None)
        for (first, key), *others in ties:
            for part, other in others:
                part.register_parameter(other, getattr(first, key))
        for name, key, count in self._heads:
            if name in here:
                setattr(here[name], key, count // self.size)  # the module's forward reads it
        for part in module.modules():
            if isinstance(part, nn.TransformerEncoderLayer):
                part.activation_relu_or_gelu = 0  # torch's fused kernel for evaluation takes no shards of matrices
        for block in blocks:
            here[block].register_forward_hook(own_memory)
        if self.sequence_parallel:
            here[blocks[0]].register_forward_pre_hook(partial(_split_tokens, mesh), with_kwargs=True)
            here[blocks[-1]].register_forward_hook(partial(_join_tokens, mesh))

    def _style(self, part: nn.Module, style: str, within: bool) -> ParallelStyle:
        tokens = Shard(_TOKENS) if within else Replicate()
        if style == "colwise":
            return ColwiseParallel(input_layouts=tokens)
        if style == "rowwise":
            return RowwiseParallel(output_layouts=tokens)
        if style == "sequence":
            return SequenceParallel(sequence_dim=_TOKENS, use_local_output=True)
        if isinstance(part, nn.Embedding):
            return RowwiseParallel(input_layouts=Replicate())
        if self._splits_scores:
            return ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
        return ColwiseParallel(output_layouts=Replicate())

    def enter(self, name: str, method: Step) -> Step:
        if not self._splits_scores:
            return method
        # `around` a training step has the context already, which must not be entered twice
        context = nullcontext if name == "training_step" else loss_parallel

        def with_whole_outputs(*args: Any) -> Any:
            with context():
                return map_tensors(lambda x: x.full_tensor() if isinstance(x, DTensor) else x, method(*args))

        return with_whole_outputs

    def around(self, step: Step) -> Step:
        checked = False

        def checked_once(batch: Any, batch_idx: int, backward: Any, sync: bool) -> Any:
            nonlocal checked
            output = step(batch, batch_idx, backward, sync)
            if sync and not checked:
                checked = True
                self._check_gradients()
            return output

        if not self._splits_scores:
            return checked_once

        def with_split_scores(batch: Any, batch_idx: int, backward: Any, sync: bool) -> Any:
            with loss_parallel():
                return checked_once(batch, batch_idx, backward, sync)

        return with_split_scores

    def _check_gradients(self) -> None:
        """Refuse, after the first backward, a full parameter with gradients that differ between processes."""
        whole = {
            name: p.grad for name, p in self._module.named_parameters() if not _on_tensor(p) and p.grad is not None
        }
        if not whole:
            return
        parts = [one.to_local() if isinstance(one, DTensor) else one for one in whole.values()]
        mine = torch.stack([torch.stack([part.float().norm(), part.float().sum()]) for part in parts])
        mine = mine.to(self._mesh.device_type)
        gathered_here = [torch.empty_like(mine) for _ in range(self.size)]
        distributed.all_gather(gathered_here, mine, group=self._mesh.get_group())
        every = torch.stack(gathered_here)
        if not every.isfinite().all():
            return
        slack = 1e-3 if all(part.dtype == torch.float32 for part in parts) else 5e-2
        scale = torch.stack([torch.ones_like(mine[:, 0]), torch.tensor([p.numel() ** 0.5 for p in parts]).to(mine)], 1)
        bound = scale * slack * (every[0, :, :1] + 1e-2 * mine[:, :1].max())
        wrong = ((every - every[0]).abs() > bound).any(dim=2).any(dim=0)
        if wrong.any():
            name = list(whole)[int(wrong.nonzero()[0])]
            raise MisconfigurationException(
                f"The gradient of {name} differs over the processes of tensor={self.size}, though each of them has all "
                "of it: its layer sees only a shard of the features, heads or tokens.",
                expected="layers that are not in the plan to work on full activations.",
                fix=f'name the layer in the plan: {{"{name.rpartition(".")[0]}": "sequence"}} sums the gradients.',
            )


def _on_tensor(parameter: nn.Parameter) -> bool:
    return isinstance(parameter, DTensor) and "tensor" in (parameter.device_mesh.mesh_dim_names or ())


def _gives_scores(module: nn.Module, name: str, style: Any) -> bool:
    return not isinstance(style, str) or (style == "vocab" and isinstance(module.get_submodule(name), nn.Linear))


def _check_ties(module: nn.Module, styles: Mapping[str, Any]) -> None:
    names = {part: name for name, part in module.named_modules()}
    for tied in tied_parameters(module):
        given = {names[part]: styles.get(names[part], "replicate") for part, _ in tied}
        if len({style if isinstance(style, str) else id(style) for style in given.values()}) > 1:
            shown = " and ".join(f"{name}: {style!r}" for name, style in given.items())
            raise MisconfigurationException(
                f"{' and '.join(given)} share one parameter, but the tensor plan splits them differently ({shown}).",
                expected="the same for all of them.",
                fix="{" + ", ".join(f'"{name}": "vocab"' for name in given) + "}",
            )


# Sequence parallelism
def _with_norms(module: nn.Module, styles: dict[str, Any], site: AxisContext) -> dict[str, Any]:
    """Return the styles with the norms in the blocks added.

    Raises:
        MisconfigurationException: Something in a block would see only a part of the tokens.
    """
    if site.sizes["pipeline"] > 1:
        raise MisconfigurationException(
            "sequence_parallel=True within a pipeline is not tested.",
            expected="one of the two.",
            fix="TensorParallelStrategy(sequence_parallel=False)",
        )
    blocks = blocks_of(module, site.plan)
    if not blocks:
        raise MisconfigurationException(
            f"sequence_parallel=True, but {type(module).__name__} has no blocks, between which the sequence is split.",
            expected="an nn.ModuleList or nn.Sequential of blocks, or their names.",
            fix='ParallelPlan(blocks=["blocks.*"], tensor={…})',
        )
    found = dict(styles)
    for block, part in blocks.items():
        for key, child in part.named_modules(prefix=block):
            own = list(child.named_parameters(recurse=False))
            if not own or key in styles:
                continue
            if any(True for _ in child.children()) or any(parameter.ndim > 1 for _, parameter in own):
                raise MisconfigurationException(
                    f"sequence_parallel=True, but {key} ({type(child).__name__}) is not in the tensor plan: it would "
                    "see a part of the tokens only.",
                    expected="every layer of the blocks in the plan, except norms.",
                    fix=f'{{"{key}": "colwise"}} or {{"{key}": "rowwise"}}, or sequence_parallel=False.',
                )
            found[key] = "sequence"
    return found


def _split_tokens(mesh: DeviceMesh, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    stream = args[0] if args else None
    if not isinstance(stream, torch.Tensor) or stream.ndim <= _TOKENS or not stream.is_floating_point():
        raise MisconfigurationException(
            "sequence_parallel=True, but the first argument of the first block is no batch of sequences.",
            expected="block(x, …) with x of shape (batch, tokens, …).",
            fix="sequence_parallel=False",
        )
    others = [one for one in (*args[1:], *kwargs.values()) if isinstance(one, torch.Tensor)]
    if any(one.ndim == stream.ndim and one.is_floating_point() and len(one) == len(stream) for one in others):
        raise MisconfigurationException(
            "sequence_parallel=True, but the blocks take two sequences (cross-attention).",
            expected="one: only that is split.",
            fix="sequence_parallel=False",
        )
    tokens = stream.shape[_TOKENS]
    if tokens % mesh.size():
        raise MisconfigurationException(
            f"sequence_parallel=True: {tokens} tokens cannot be split over tensor={mesh.size()}.",
            expected=f"a multiple of {mesh.size()}.",
            fix="pad the sequences, or sequence_parallel=False",
        )
    return (shard_of(stream, _TOKENS, mesh.get_group()), *args[1:]), kwargs


def _join_tokens(mesh: DeviceMesh, _: nn.Module, __: Any, output: Any) -> Any:
    if isinstance(output, tuple):
        return gathered(output[0], _TOKENS, mesh.get_group()), *output[1:]
    return gathered(output, _TOKENS, mesh.get_group())


def _warn_of_dropout(module: nn.Module, styles: Mapping[str, Any], sequence_parallel: bool) -> None:
    parents = {name.rpartition(".")[0] for name, style in styles.items() if style in ("colwise", "rowwise")}
    for name, part in module.named_modules():
        split = sequence_parallel or name.rpartition(".")[0] in parents
        if split and isinstance(part, nn.Dropout) and part.p > 0:
            warn(
                f"{name} (Dropout) works on parts of activations: on the CPU, torch gives every process of the tensor "
                "axis the same mask for its part. Training works, with less randomness than on one device.",
                PossibleUserWarning,
            )
            return
