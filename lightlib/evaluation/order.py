"""The order of results: ranks read different samples of a loader, and some samplers repeat samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from torch.utils.data.distributed import DistributedSampler

from lightlib.data.lengths import by_name
from lightlib.data.resumable_loader import is_read_by_index
from lightlib.data.sharding import inner_sampler, world_size_of
from lightlib.data.train_loaders import combine
from lightlib.errors import MisconfigurationException

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer


@dataclass(frozen=True)
class Sharding:
    """How the ranks share the samples of a loader.

    Attributes:
        num_samples: The number of samples, when rank r of n takes the samples r, r + n, …; None: ranks take batches.
        batch_size: Of each batch, but the last.
        repeats: Whether samples are repeated so that all ranks have equally many.
    """

    num_samples: int | None = None
    batch_size: int = 1
    repeats: bool = False

    def samples_of(self, place: int, size: int) -> int:
        """Return how many samples a rank reads."""
        assert self.num_samples is not None
        return -(-self.num_samples // size) if self.repeats else len(range(place, self.num_samples, size))

    def num_repeated(self, size: int) -> int:
        """Return how many samples are read twice by `size` ranks together."""
        return -(self.num_samples or 0) % size if self.repeats else 0


def sharding_of(loader: Any, training: bool, shards: bool) -> Sharding:
    """Return how the ranks share a loader.

    Args:
        loader: The user's.
        training: Whether it is read by training, which gives all ranks equally many samples.
        shards: Whether lightlib shards it unless the user did.
    """
    if not is_read_by_index(loader):
        return Sharding()
    batches = loader.batch_sampler
    sampler = None if batches is None else inner_sampler(batches)
    if sampler is None:
        return Sharding()
    drops = bool(getattr(batches, "drop_last", False))
    if isinstance(sampler, DistributedSampler):
        repeats = not sampler.drop_last
        total = len(sampler.dataset) if repeats else sampler.total_size  # type: ignore[arg-type]  # it has a length
        return Sharding(total, batches.batch_size, repeats)
    if world_size_of(sampler) is not None or not shards or (drops and not training):
        return Sharding()
    return Sharding(len(sampler), batches.batch_size, repeats=training and not drops)


def sharded_loaders(trainer: Trainer, stage: str) -> list[tuple[Any, Sharding]]:
    """Return the loaders of a stage ("train", "val", "test" or "predict"), and how the ranks share each.

    Loaders that are read together, as training reads several, count as one.
    """
    shards = bool(trainer.settings.use_distributed_sampler)
    if stage == "train":
        data = None if trainer.run is None else trainer.run.train_data
        assert data is not None, "called while training"
        loaders = [source.given for source in data.sources]  # perhaps with smaller batches
        together = len(loaders) > 1
        user_loaders = trainer.train_dataloader
    else:
        user_loaders = getattr(trainer, f"{stage}_dataloaders")
        combined = combine(user_loaders, "sequential")
        loaders, together = combined.flattened, combined.mode != "sequential" and len(combined.flattened) > 1
    if together:
        return [(user_loaders, Sharding())]
    return [(loader, sharding_of(loader, stage == "train", shards)) for loader in loaders]


def chosen_loaders(trainer: Trainer, stage: str, owner: str, chosen: Sequence[str] | None) -> list[bool]:
    """Return of each loader of a stage whether it is read and one of the chosen; None chooses all.

    Raises:
        MisconfigurationException: Loaders were chosen, but they have no names.
        UnknownNameError: There is none of this name.
    """
    data = None if trainer.run is None else trainer.run.evaluations.loaded.get(stage)
    if data is None or (chosen is None and not data.names):
        return [True] * (1 if data is None else data.num_loaders)
    named = by_name(f"loaders of {owner}", dict.fromkeys(chosen or data.names, True), data.names, data.name, False)
    return [is_named and read for is_named, read in zip(named, data.is_read, strict=True)]


def in_order(owner: str, parts: Sequence[Sequence[Sequence[Any]]], sharding: Sharding) -> list[Any]:
    """Return the results of all ranks in the order of the loader, without those of repeated samples.

    Args:
        owner: Of the results, for errors.
        parts: By rank and batch, the results of a batch: one for each of its samples, or any number.
        sharding: How the ranks share the loader. If they take single samples and there is one result for each, the
            order is that of the samples, else that of the batches.

    Raises:
        MisconfigurationException: Samples are repeated, and there is not one result for each.

    Example:
        >>> in_order("Metric", [[["a", "c"], ["e"]], [["b", "d"], ["a"]]], Sharding(5, 2, repeats=True))
        ['a', 'b', 'c', 'd', 'e']
    """
    size = len(parts)
    if sharding.num_samples is not None and _one_result_per_sample(parts, sharding):
        rows = [list(chain.from_iterable(part)) for part in parts]
        longest = max(map(len, rows), default=0)
        ordered = [row[i] for i in range(longest) for row in rows if i < len(row)]
        return ordered[: sharding.num_samples]
    if repeated := sharding.num_repeated(size):
        count = sum(len(batch) for part in parts for batch in part)
        raise MisconfigurationException(
            f"{owner} has {count} results for {sharding.num_samples} samples, of which the sampler repeats {repeated}.",
            expected="one result for each sample, so that those of repeated samples can be dropped.",
            fix="self.results.append(…) once per sample; or, in an evaluation, a loader without DistributedSampler: "
            "lightlib shards it without repeats.",
        )
    longest = max(map(len, parts), default=0)
    return [result for i in range(longest) for part in parts if i < len(part) for result in part[i]]


def _one_result_per_sample(parts: Sequence[Sequence[Sequence[Any]]], sharding: Sharding) -> bool:
    """Whether each batch has one result for each of its samples."""
    for place, part in enumerate(parts):
        total = sharding.samples_of(place, len(parts))
        expected = [min(sharding.batch_size, total - i * sharding.batch_size) for i in range(len(part))]
        if [len(batch) for batch in part] != expected:
            return False
    return True
