"""Tensor: shards the matrices of each layer over processes, for one batch that all of them read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
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
from lightlib.strategies.axes.axis import Axis, AxisContext, Step
from lightlib.strategies.axes.parallel_plan import blocks_of
from lightlib.strategies.axes.shard import own_memory
from lightlib.strategies.axes.tensor import planes
from lightlib.strategies.axes.tensor.layer_names import below, head_counts
from lightlib.strategies.axes.tensor.proposal import Proposal, proposed
from lightlib.strategies.axes.tensor.sequence import TOKENS, join_tokens, split_tokens, with_norms
from lightlib.strategies.axes.tensor.tensor_plan import check_styles, no_plan, resolved
from lightlib.strategies.axes.tensor.verify import FirstForward
from lightlib.torch_private import tied_parameters, unflattened_mesh
from lightlib.tree import map_tensors


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

    Without a plan, or with one of nothing but ``"replicate"``, the forward of each module is traced, and Linear layers
    that give their outputs only to other Linear layers are split: with elementwise functions between them, or where a
    trial with random weights gives the same results, as for the heads of attention. What is split, and why the rest is
    not, is logged, and the first forward compares the outputs with those of unsplit layers.

    An attention whose projections are split gets its part of the heads: attributes such as ``num_heads`` and
    ``n_kv_heads`` of the module that holds them are divided by the size.

    Args:
        size: Processes; -1: as many as are left.
        plan: In place of the module's.
        loss_parallel: Leave the scores of the ``"vocab"`` Linear split over the classes; `cross_entropy` in the step
            works on the parts. What else a step does with them may need ``scores.full_tensor()``. Default: that of
            the module's plan.
        sequence_parallel: Split also what blocks give each other, along the sequence (dimension 1): less memory for
            the same communication. Norms in the blocks become ``"sequence"``. Default False.
        mode: ``"1d"`` (default), or ``"2d"``: the processes form rows and columns, and each matrix is split in both
            dimensions. Heads and the features between two layers are split over the rows only, so fewer of them
            suffice, and a process exchanges with its row or its column.
        dims: With ``"2d"``, the numbers of rows and columns. Default: as near to a square as possible.

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
        mode: Literal["1d", "2d"] = "1d",
        dims: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        planes.check_mode(mode, dims)
        self.size, self.plan = size, plan
        self.loss_parallel, self.sequence_parallel = loss_parallel, sequence_parallel
        self.mode, self.dims = mode, dims
        self._planes: DeviceMesh | None = None
        self._styles: dict[str, Any] = {}
        self._blocks: list[str] = []
        self._heads: list[tuple[str, str, int]] = []
        self._splits_scores = False
        self._proposal: Proposal | None = None

    def check(self, module: nn.Module, site: AxisContext) -> None:
        plan = self.plan if self.plan is not None else site.plan.tensor
        rows, columns = (self.size, 1) if self.mode == "1d" else planes.dims_of(self.size, self.dims)
        self._splits_scores = site.plan.loss_parallel if self.loss_parallel is None else self.loss_parallel
        styles = resolved(module, plan)
        if any(style != "replicate" for style in styles.values()):
            self._styles = styles
        else:
            self._proposal = proposed(module, rows, styles, columns)
            self._styles = dict(self._proposal.styles)
            if not self._styles:
                raise no_plan(module, self.size, self._proposal.left)
            info(self._proposal.described(module, rows, columns))
        self._blocks = list(blocks_of(module, site.plan))
        if self._proposal is None:
            check_styles(module, self._styles, rows, self._blocks)
        if self.mode == "2d":
            planes.check_layers(module, self._styles, columns)
            self._refuse_with_planes()
        self._heads = self._proposal.heads if self._proposal is not None else head_counts(module, self._styles)
        if self.sequence_parallel:
            self._styles = with_norms(module, self._styles, site)
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
        rows = self.size
        if self.mode == "2d":
            sizes = rows, _ = planes.dims_of(self.size, self.dims)
            self._planes = self._planes or unflattened_mesh(mesh, sizes, planes.NAMES)
        self._module = module
        ties = tied_parameters(module)
        here = dict(module.named_modules())  # a pipeline's stage has only some of them
        blocks = [name for name in self._blocks if name in here]
        cast = site.precision.compute_dtype if site.casts and site.precision.autocasts else None
        verified = self._verified(here, blocks, cast)
        for name, style in self._styles.items():
            if name in here and style != "replicate":
                if not any(parameter.is_meta for parameter in here[name].parameters()):
                    here[name].to(site.device)
                if self._planes is not None:
                    planes.split(here[name], style, self._planes)
                    continue
                within = self.sequence_parallel and any(name.startswith(f"{block}.") for block in blocks)
                parallel_style = style if isinstance(style, ParallelStyle) else self._style(here[name], style, within)
                parallelize_module(here[name], mesh, parallel_style, src_data_rank=None)
        for (first, key), *others in ties:
            for part, other in others:
                part.register_parameter(other, getattr(first, key))
        for name, key, count in self._heads:
            if name in here:
                setattr(here[name], key, count // rows)  # the module's forward reads it
        for part in module.modules():
            if isinstance(part, nn.TransformerEncoderLayer):
                part.activation_relu_or_gelu = 0  # torch's fused kernel for evaluation takes no shards of matrices
        for parameter in module.parameters():
            if isinstance(parameter, DTensor) and parameter.requires_grad:
                parameter.register_hook(partial(_placed_as, parameter.placements))  # type: ignore[no-untyped-call]
        for block in blocks:
            here[block].register_forward_hook(own_memory)
        if self.sequence_parallel:
            here[blocks[0]].register_forward_pre_hook(partial(split_tokens, mesh), with_kwargs=True)
            here[blocks[-1]].register_forward_hook(partial(join_tokens, mesh))
        for first_forward in verified:
            first_forward.watch()

    def _verified(self, here: dict[str, nn.Module], blocks: list[str], dtype: torch.dtype | None) -> list[FirstForward]:
        """Return the checks of an automatic plan, one for each block, or other module, with split layers."""
        units: dict[str, dict[str, list[str]]] = {}
        for part, groups in self._proposal.parts.items() if self._proposal is not None else ():
            if part in here:
                unit = next((block for block in blocks if f"{part}.".startswith(f"{block}.")), part)
                layers = [name for group in groups for name in (*group.first, *group.second)]
                units.setdefault(unit, {})[below(part, unit)] = [below(name, part) for name in layers]
        tokens = self._mesh if self.sequence_parallel else None
        return [
            FirstForward(name, here[name], parts, tokens if name in blocks else None, dtype)
            for name, parts in units.items()
        ]

    def _refuse_with_planes(self) -> None:
        for name, value in {"sequence_parallel": self.sequence_parallel, "loss_parallel": self._splits_scores}.items():
            if value:
                raise MisconfigurationException(
                    f"Tensor(mode='2d', {name}=True): activations between layers are full with mode='2d'.",
                    expected="one of the two.",
                    fix=f"{name}=False, or mode='1d'",
                )

    def _style(self, part: nn.Module, style: str, within: bool) -> ParallelStyle:
        tokens = Shard(TOKENS) if within else Replicate()
        if style == "colwise":
            return ColwiseParallel(input_layouts=tokens)
        if style == "rowwise":
            return RowwiseParallel(output_layouts=tokens)
        if style == "sequence":
            return SequenceParallel(sequence_dim=TOKENS, use_local_output=True)
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

        def with_full_outputs(*args: Any) -> Any:
            with context():
                return map_tensors(lambda x: x.full_tensor() if isinstance(x, DTensor) else x, method(*args))

        return with_full_outputs

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
        parts = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in whole.values()]
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


def _placed_as(placements: tuple[Placement, ...], gradient: Any) -> Any:
    """Return a gradient as its parameter is placed: that of an embedding, or of a norm, arrives full or unreduced."""
    same = not isinstance(gradient, DTensor) or gradient.placements == placements
    return gradient if same else gradient.redistribute(placements=placements)


def _on_tensor(parameter: nn.Parameter) -> bool:
    names = ("tensor", *planes.NAMES)
    return isinstance(parameter, DTensor) and any(name in names for name in parameter.device_mesh.mesh_dim_names or ())


def _gives_scores(module: nn.Module, name: str, style: Any) -> bool:
    return not isinstance(style, str) or (style == "vocab" and isinstance(module.get_submodule(name), nn.Linear))


def _check_ties(module: nn.Module, styles: Mapping[str, Any]) -> None:
    names = {part: name for name, part in module.named_modules()}
    for tied in tied_parameters(module):
        by_layer = {names[part]: styles.get(names[part], "replicate") for part, _ in tied}
        if len({style if isinstance(style, str) else id(style) for style in by_layer.values()}) > 1:
            shown = " and ".join(f"{name}: {style!r}" for name, style in by_layer.items())
            raise MisconfigurationException(
                f"{' and '.join(by_layer)} share one parameter, but the tensor plan splits them differently ({shown}).",
                expected="the same for all of them.",
                fix="{" + ", ".join(f'"{name}": "vocab"' for name in by_layer) + "}",
            )


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
