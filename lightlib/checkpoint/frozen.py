"""Frozen weights that a checkpoint leaves out: they are recognized and found again by checksums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lightlib import report
from lightlib.checkpoint import formats
from lightlib.checkpoint.directory.tensors import dtensor_type
from lightlib.checkpoint.storage.content import AVERAGED, FROZEN, TRAINED
from lightlib.errors import CheckpointError, few

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # by their bytes
_FACTOR = 0x1E3779B97F4A7C15  # its multiples differ in all of 64 bits
Gather = Callable[[Any], Sequence[Any]]
Digest = list[Any]  # the name of the dtype, the shape, and the hash of the bytes


@dataclass
class FrozenWeights:
    """The parameters of a module that checkpoints leave out: frozen since training began, and unchanged.

    A parameter that is trained, or written by other means, is in every checkpoint from then on. So are those that a
    complete checkpoint has put into the module, unless `source` holds them: the program builds different ones.

    Args:
        source: A checkpoint or safetensors file with these weights, under any names. None: the module builds them.
        are_left_out: Whether `left_out` has an effect.
    """

    source: str | None = None
    are_left_out: bool = False
    _loaded: dict[str, Digest] | None = field(default_factory=dict)  # left out by the last file; None: it was complete
    _began_from_nothing: bool = True
    _digests: dict[str, Digest] | None = None  # None until training begins
    _marks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _leaves_out: bool = False

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Surround a save that leaves the weights out: the content of any other one is left as it is."""
        self._leaves_out = self.are_left_out
        try:
            yield
        finally:
            self._leaves_out = False

    def note_loaded(self, content: Mapping[str, Any]) -> None:
        """Note the weights that a checkpoint, which has been loaded, has left out."""
        self._loaded = dict(content[FROZEN]["tensors"]) if FROZEN in content else None
        self._began_from_nothing = False

    def begin(self, trainer: Trainer, module: nn.Module, owner: str) -> None:
        """Take the frozen parameters as training begins. All processes call this; a second call changes nothing.

        Raises:
            CheckpointError: The source cannot be read.
        """
        if self._digests is not None:
            return
        gather = trainer.strategy.collectives.all_gather_object
        frozen, loaded = _frozen(module), self._loaded
        if loaded is not None and not self._began_from_nothing:
            digests = {name: loaded[name] for name in frozen if name in loaded}
        elif self._began_from_nothing or self.source is not None:
            digests = {name: digest(value) for name, value in frozen.items()}
        else:
            digests = {}
        if self.source is not None:
            tensors = _by_digest(self.source, digests.values())
            digests = {name: mark for name, mark in digests.items() if mark[-1] in tensors}
        self._digests, self._marks = digests, {name: _mark(frozen[name]) for name in digests}
        answers = gather((bool(frozen), sorted(set(frozen) - set(digests))))
        kept = sorted({name for _, names in answers for name in names})
        surprising = kept or not any(has_source for has_source, _ in answers)
        if surprising and (loaded is None or self._began_from_nothing):
            report.warn(_why_kept(kept, self.source, owner), report.PossibleUserWarning)

    def leave_out(self, trainer: Trainer, module: nn.Module, content: dict[str, Any]) -> None:
        """Remove the weights from the content of a checkpoint, and name them in it. All processes call this."""
        if not self._leaves_out:
            return
        gather = trainer.strategy.collectives.all_gather_object
        frozen, digests = _frozen(module), self._digests or {}
        self._digests = digests = {
            name: mark for name, mark in digests.items() if name in frozen and _mark(frozen[name]) == self._marks[name]
        }
        local_names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
        answers = gather((digests, sorted(set(local_names) - set(digests)), sorted(content["state_dict"])))
        changed = {name for _, names, _ in answers for name in names}
        present = {name for _, _, names in answers for name in names}
        tensors = {
            name: mark
            for rank_digests, _, _ in answers
            for name, mark in rank_digests.items()
            if name in present and name not in changed
        }
        for key in ("state_dict", TRAINED, AVERAGED):
            if key in content and tensors:
                content[key] = {name: value for name, value in content[key].items() if name not in tensors}
        content[FROZEN] = {"source": self.source, "tensors": tensors}


def complete(
    content: dict[str, Any], own: Callable[[], Mapping[str, Any]], gather: Gather | None = None, strict: bool = True
) -> None:
    """Put the weights that a checkpoint has left out into its content, from the module or from their source.

    Args:
        content: The content of any checkpoint; unchanged if it holds all weights.
        own: Returns the state of the module, under parallelism the shards of this process.
        gather: Returns the values of all processes, each of which calls this.
        strict: Refuse weights that the module does not have.

    Raises:
        CheckpointError: The module and the source have other weights.
    """
    entry = content.get(FROZEN)
    if not entry or not entry["tensors"]:
        return
    gather = gather or (lambda value: [value])
    tensors, source = entry["tensors"], entry["source"]
    present = {name: value for name, value in own().items() if name in tensors}
    there = {name for names in gather(list(present)) for name in names}
    state = {name: _as_saved(value, tensors[name]) for name, value in present.items()}
    wrong = [name for name, value in state.items() if digest(value) != list(tensors[name])]
    wrong = sorted({name for names in gather(wrong) for name in names})
    if wrong and source is not None:
        read = _by_digest(source, [tensors[name] for name in wrong])
        state |= {name: read[tensors[name][-1]] for name in wrong if tensors[name][-1] in read}
        wrong = [name for name in wrong if tensors[name][-1] not in read]
    missing = sorted(set(tensors) - there) if strict else []
    if wrong or missing:
        raise _wrong_weights(wrong, missing, source)
    filled = {**dict.fromkeys(there), **state}  # those of another stage of a pipeline are not read here
    for key in ("state_dict", TRAINED, AVERAGED):
        if key in content:
            content[key] = {**content[key], **filled}


def digest(value: Any) -> Digest:
    """Return the dtype, the shape and the hash of a tensor; a sharded one is gathered, by all of its processes.

    Example:
        >>> digest(torch.ones(2)) == digest(torch.ones(2)), digest(torch.ones(2))[:2]
        (True, ['float32', [2]])
    """
    full = value.full_tensor() if isinstance(value, dtensor_type()) else value
    data = full.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return [str(full.dtype).removeprefix("torch."), list(full.shape), blake2b(data, digest_size=16).hexdigest()]


def _frozen(module: nn.Module) -> dict[str, Tensor]:
    """Return the frozen parameters; not those of a kind of its own, such as quantized ones."""
    kinds = (Tensor, dtensor_type())
    return {
        name: parameter.detach()
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if not parameter.requires_grad and parameter.numel() and type(parameter.data) in kinds
    }


def _mark(value: Tensor) -> tuple[int, ...]:
    """Return numbers that differ once the local part of a tensor was written to, at about the speed of its memory.

    An XOR of all bits would stay if two equal elements were set to zero, or two rows exchanged. So each element is
    multiplied by an odd number of its place first.
    """
    local = (value.to_local() if isinstance(value, dtensor_type()) else value).reshape(-1).contiguous()
    if not len(local):  # a shard may have no elements
        return ()
    bits = local.view(_INTEGERS[min(local.element_size(), 4)])
    size = min(len(bits), 2**14 if bits.device.type == "cpu" else 2**22)  # products that fit into a CPU's cache
    odd = torch.arange(size, device=bits.device) * _FACTOR | 1
    hashes = [torch.hash_tensor(part * odd[: len(part)]).view(torch.int64) for part in bits.split(size)]
    return tuple(torch.stack(hashes).tolist())


def _as_saved(value: Any, of: Sequence[Any]) -> Any:
    dtype = getattr(torch, of[0], None)
    return value.to(dtype) if isinstance(dtype, torch.dtype) else value


def _by_digest(source: str, digests: Iterable[Sequence[Any]]) -> dict[str, Tensor]:
    """Return the tensors of a file by their hash, among those that are wanted, whatever their names are."""
    dtypes: dict[tuple[int, ...], set[str]] = {}
    hashes = set()
    for dtype, shape, hashed in digests:
        dtypes.setdefault(tuple(shape), set()).add(dtype)
        hashes.add(hashed)
    tensors = {}
    for value in formats.read_weights(source)["state_dict"].values():
        for dtype in dtypes.get(tuple(value.shape), ()) if isinstance(value, Tensor) else ():
            cast = _as_saved(value, [dtype])
            if (hashed := digest(cast)[-1]) in hashes:
                tensors[hashed] = cast
    return tensors


def _why_kept(kept: Sequence[str], source: str | None, owner: str) -> str:
    if not kept:
        return (
            f"{owner}(save='trainable'): no parameter of the module is frozen, so its checkpoints hold all weights.\n"
            "  Fix: call requires_grad_(False) on the parts that are not trained before training begins, or leave out "
            "save."
        )
    if source is not None:
        where = f"{source!r} does not hold them"
    else:
        where = "a complete checkpoint has put them into the module, which builds different ones"
    return (
        f"{owner}(save='trainable') saves {len(kept)} frozen parameters as well ({few(kept)}): {where}.\n"
        f"  Fix: {owner}(save='trainable', frozen_source=path) with the file that holds them."
    )


def _wrong_weights(wrong: Sequence[str], missing: Sequence[str], source: str | None) -> CheckpointError:
    parts = [f"the module builds other values of {few(wrong)}"] if wrong else []
    parts += [f"the module has no {few(missing)}"] if missing else []
    looked = f", and {source!r} does not hold them either" if wrong and source is not None else ""
    return CheckpointError(
        f"The checkpoint leaves out frozen weights, of which {len(wrong) + len(missing)} cannot be restored: "
        f"{'; '.join(parts)}{looked}.",
        expected="the frozen weights with which the run began, in the module as it is built, or in the file that "
        "ModelCheckpoint(frozen_source=…) has named.",
        fix="load the same pretrained weights in __init__ or configure_model, as the run did.",
    )
