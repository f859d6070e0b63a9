"""Context: shards the sequences of one batch over processes; attention swaps heads for sequences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightlib.errors import MisconfigurationException, check_word
from lightlib.report import PossibleUserWarning, warn
from lightlib.strategies.axes.attention import Attention, Exchanged, Ring, replaced, require_fused
from lightlib.strategies.axes.autograd_collectives import gathered
from lightlib.strategies.axes.axis import Axis, AxisContext, Step
from lightlib.strategies.axes.parallel_plan import blocks_of
from lightlib.torch_private import AnyBatchNorm, shadowed
from lightlib.tree import map_tensors, named_children, with_children

_METHODS = ("all_to_all", "ring")
_MIX_TOKENS = (nn.RNNBase, nn.Conv1d, nn.Conv2d, nn.Conv3d, AnyBatchNorm)
_rank = 0  # along the sequence, while a step runs


def positions(length: int, device: torch.device | str | None = None) -> Tensor:
    """Return the positions in the full sequence of the `length` tokens that this process works on.

    For position embeddings: ``self.places(positions(text.shape[1], text.device))`` is right under every strategy.

    Example:
        >>> positions(4)
        tensor([0, 1, 2, 3])
    """
    return torch.arange(length, device=device) + offset(length)


def offset(length: int) -> int:
    """Return the position in the full sequence of the first of the `length` tokens of this process.

    Example:
        >>> offset(4)
        0
    """
    return _rank * length


class Context(Axis):
    """Every process works on its shard of each sequence of a batch that all processes of this axis read.

    The entries of a batch are cut along the sequence before a step sees them: a batch that is a tensor, or each tensor
    in it (tuples and dicts in each other) that has the dimension `sequence_dim` of `parallel_plan` (default
    1). If not all of these are sequences, `context_buffers` names those that are: keys of a dict, places in a
    tuple (``"0"``), or both (``"0.text"``). While a step runs, `F.scaled_dot_product_attention` (which torch's own
    layers call as well) works on full sequences. Everything else must treat tokens one by one.

    - *Positions*: use `positions`, or name the table in `context_buffers`: ``"places.weight"`` or a buffer, cut
      along its first dimension while a step runs; ``"rope:2"`` cuts along dimension 2.
    - *Targets that the step shifts itself* (``text[:, :-1]`` and ``text[:, 1:]``) need ``overlap=1``, so that each part
      has the first token of the next one. Targets that the data has shifted need nothing.
    - *Losses* are means over tokens (or ``{"loss": sum, "weight": tokens}``, exact where tokens are left out);
      gradients and logged values are means over the processes.
    - *Masks* of attention: ``is_causal=True``, a mask of the full sequence, or one of keys only (batch, 1, 1, length).
    - *Random numbers* that a step draws differ over the processes, as dropout needs it: draw numbers for a full
      sample in the dataset.
    - What `predict_step` returns is joined along the sequence again.

    Args:
        size: Processes; -1: as many as are left. It divides the number of heads and the length.
        method: ``"all_to_all"`` (default): each process computes full sequences for its shard of the heads (Jacobs et
            al., 2023: arXiv 2309.14509). ``"ring"``: keys and values go round; torch's, which needs CUDA.
        overlap: Tokens at the end of each shard that are also the first of the next. Default: ``sequence_overlap`` of
            `parallel_plan`, else 0.

    Raises:
        MisconfigurationException: A module or batch that cannot be cut; the message has the names and numbers.

    Example:
        >>> Context(2, overlap=1).method
        'all_to_all'
    """

    name = "context"
    order = 40
    splits_samples = True
    # set by `apply`
    _site: AxisContext
    _module: nn.Module
    _attention: Attention

    def __init__(
        self, size: int = 1, *, method: Literal["all_to_all", "ring"] = "all_to_all", overlap: int | None = None
    ) -> None:
        super().__init__()
        check_word("Context", "method", method, _METHODS, example="all_to_all")
        self.size, self.method, self.overlap = size, method, overlap
        self._entries: list[str] = []
        self._tables: dict[str, int] = {}
        self._running: ExitStack | None = None

    # the module
    def check(self, module: nn.Module, site: AxisContext) -> None:
        if self.method == "ring" and not site.accelerator.has_ring_attention:
            raise MisconfigurationException(
                f'Context(method="ring") on {site.device.type}: torch has no ring attention there.',
                expected="CUDA devices.",
                fix='Context(method="all_to_all"), which works everywhere.',
            )
        for name, part in module.named_modules():
            if isinstance(part, _MIX_TOKENS):
                raise MisconfigurationException(
                    f"{name or type(module).__name__} ({type(part).__name__}) mixes the tokens of a sequence, of which "
                    f"each process of context={self.size} has a part.",
                    expected="layers that treat tokens one by one, and F.scaled_dot_product_attention.",
                    fix="context=1; long sequences take less memory with activation_checkpointing=True.",
                )
        tables = {**dict(module.named_buffers()), **dict(module.named_parameters())}
        split = {name: _with_dimension(name) for name in site.plan.context_buffers}
        self._tables = {name: dim or 0 for name, dim in split.values() if name in tables}
        self._entries = [indices for indices, (name, _) in split.items() if name not in tables]
        sharded = site.sizes["shard"] > 1 or site.casts
        for name in self._tables:
            block = next((block for block in blocks_of(module, site.plan) if name.startswith(f"{block}.")), None)
            if sharded and block is not None and isinstance(tables[name], nn.Parameter):
                raise MisconfigurationException(
                    f"context_buffers names {name}, a parameter of {block}, which shard gathers only within it.",
                    expected="a buffer, or a parameter outside of the blocks.",
                    fix="self.places(lightlib.strategies.axes.context.positions(length)) in forward.",
                )

    def apply(self, module: nn.Module, site: AxisContext) -> None:
        self._site, self._module = site, module
        mesh = site.mesh["context"]
        self._attention = Ring(mesh) if self.method == "ring" else Exchanged(mesh.get_group())
        require_fused(module)

    # a step
    def enter(self, name: str, method: Step) -> Step:
        joins = name == "predict_step"

        def on_shard(batch: Any, *args: Any) -> Any:
            part, lengths = self._cut(batch)
            with ExitStack() as stack:
                running = self._running
                if running is None:
                    running = stack
                    stack.enter_context(self._replaced())
                for table in self._cut_tables(lengths):
                    running.enter_context(table)
                output = method(part, *args)
            return self._joined(output, lengths) if joins else output

        return on_shard

    def around(self, step: Step) -> Step:
        checked, attention = False, self._attention

        def with_attention(batch: Any, batch_idx: int, backward: Any, sync: bool) -> Any:
            nonlocal checked
            with ExitStack() as running:  # until backward is done, which may run forwards again
                running.enter_context(self._replaced())
                self._running = running
                try:
                    output = step(batch, batch_idx, backward, sync)
                finally:
                    self._running = None
            if not checked and not attention.calls:
                raise MisconfigurationException(
                    f"The training step of {type(self._module).__name__} did not call "
                    "F.scaled_dot_product_attention: nothing is exchanged along the sequence.",
                    expected="attention by that function, or by torch's layers.",
                    fix="F.scaled_dot_product_attention(query, key, value, is_causal=True) in place of softmax(query @ "
                    "key).",
                )
            checked = True
            return output

        return with_attention

    @contextmanager
    def _replaced(self) -> Iterator[None]:
        global _rank  # noqa: PLW0603  `positions` is called where no strategy is known
        _rank = self._site.coordinate("context")
        try:
            with replaced(self._module, self._attention):
                yield
        finally:
            _rank = 0

    # a batch
    def _cut(self, batch: Any) -> tuple[Any, list[int]]:
        """Return this process's part of `batch`, and the lengths of its parts of sequences."""
        plan = self._site.plan
        overlap = plan.sequence_overlap if self.overlap is None else self.overlap
        chosen = self._sequences(batch)
        rank, lengths = self._site.coordinate("context"), []
        for name, (tensor, dim) in chosen.items():
            whole = tensor.shape[dim] - overlap
            if whole % self.size or whole <= 0:
                raise _uneven(name, tensor, dim, overlap, self.size)
            lengths.append(whole // self.size)
            chosen[name] = tensor.narrow(dim, rank * lengths[-1], lengths[-1] + overlap), dim
        lengths = list(dict.fromkeys(lengths))
        self._attention.expect(lengths)
        return _with_entries(batch, {name: tensor for name, (tensor, _) in chosen.items()}), lengths

    def _sequences(self, batch: Any) -> dict[str, tuple[Tensor, int]]:
        """Return the entries that are to be cut, and along which dimension."""
        entries, dim = dict(_entries(batch)), self._site.plan.sequence_dim
        if self._entries:
            named = {name: along if along is not None else dim for name, along in map(_with_dimension, self._entries)}
            for name, along in named.items():
                if name not in entries or entries[name].ndim <= along:
                    raise MisconfigurationException(
                        f"context_buffers names {name!r} (dimension {along}), which is no buffer, and no such entry of "
                        "the batch.",
                        expected=f"an entry of the batch ({_shapes(entries)}), or a name as in named_buffers().",
                        fix=f"context_buffers={[key for key, tensor in entries.items() if tensor.ndim > along]!r}",
                    )
            return {name: (entries[name], along) for name, along in named.items()}
        sequences = {name: (tensor, dim) for name, tensor in entries.items() if tensor.ndim > dim}
        if len({tensor.shape[dim] for tensor, _ in sequences.values()}) != 1:
            raise MisconfigurationException(
                f"Which entries of the batch are sequences along dimension {dim}? It has {_shapes(entries)}.",
                expected="tensors of one length along that dimension, or their names.",
                fix=f"ParallelPlan(context_buffers={[*sequences][:1] or ['text']!r}), or another sequence_dim.",
            )
        whole = [
            f"{name!r} of shape {tuple(tensor.shape)}" for name, tensor in entries.items() if name not in sequences
        ]
        if whole:
            warn(
                f"The entry {whole[0]} of the batch is no sequence: every process of the context axis sees all of it. "
                "A loss per sample, rather than per token, would be wrong.",
                PossibleUserWarning,
            )
        return sequences

    def _cut_tables(self, lengths: list[int]) -> Iterator[AbstractContextManager[None]]:
        """Yield contexts in which the module sees this process's part of the tables that go by position."""
        for name, dim in self._tables.items():
            owner, _, key = name.rpartition(".")
            part = self._module.get_submodule(owner)
            table, start = getattr(part, key), self._site.coordinate("context") * lengths[0]
            if table.shape[dim] < start + lengths[0]:
                raise MisconfigurationException(
                    f"{name} has {table.shape[dim]} places (dimension {dim}), but the sequences have "
                    f"{lengths[0] * self.size} tokens.",
                    expected="an entry for each token of the full sequence.",
                    fix=f'a longer table, or "{name}:1" for another dimension.',
                )
            yield shadowed(part, {key: table.narrow(dim, start, table.shape[dim] - start)})

    def _joined(self, output: Any, lengths: list[int]) -> Any:
        dim, group = self._site.plan.sequence_dim, self._site.mesh["context"].get_group()

        def join(tensor: Tensor) -> Tensor:
            return gathered(tensor, dim, group) if tensor.ndim > dim and tensor.shape[dim] in lengths else tensor

        return map_tensors(join, output)


def _with_dimension(name: str) -> tuple[str, int | None]:
    """Return ``("rope", 2)`` for ``"rope:2"``, and ``("rope", None)`` for ``"rope"``."""
    name, _, dim = name.partition(":")
    return name, int(dim) if dim else None


def _entries(batch: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a batch with their names; that of a batch that is a tensor is empty."""
    if isinstance(batch, Tensor):
        yield prefix, batch
    else:
        for key, value in named_children(batch):
            yield from _entries(value, f"{prefix}.{key}" if prefix else str(key))


def _with_entries(batch: Any, new: Mapping[str, Tensor], prefix: str = "") -> Any:
    """Return the same batch with some of its tensors replaced."""
    if isinstance(batch, Tensor):
        return new.get(prefix, batch)
    entries = named_children(batch)
    values = [_with_entries(value, new, f"{prefix}.{key}" if prefix else str(key)) for key, value in entries]
    return with_children(batch, values)


# Refusals
def _uneven(name: str, tensor: Tensor, dim: int, overlap: int, size: int) -> MisconfigurationException:
    label = f"entry {name!r} of the batch" if name else "batch"
    length, rest = tensor.shape[dim], (tensor.shape[dim] - overlap) % size
    fix = f"pad or cut to {length - rest} or {length - rest + size}."
    if not overlap and rest == 1:
        fix = "Context(overlap=1), if the step shifts its targets itself (text[:, :-1] and text[:, 1:]); else " + fix
    return MisconfigurationException(
        f"The {label} has {length} tokens{f', {overlap} of overlap,' if overlap else ''} (dimension {dim} of shape "
        f"{tuple(tensor.shape)}), which cannot be cut in {size} equal parts.",
        expected=f"a multiple of context={size}{f', and {overlap}' if overlap else ''}.",
        fix=fix,
    )


def _shapes(entries: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name!r}: {tuple(tensor.shape)}" for name, tensor in entries.items()) or "no tensors"
