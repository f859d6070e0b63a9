"""Loaders as users write them with five streaming libraries, and their data: numbered samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

SAMPLES, SHARDS, BATCH = 144, 12, 4  # of two or three ranks with two workers each, all read equally many batches
EACH = SAMPLES // SHARDS


class Place(NamedTuple):
    """Where the data lie.

    Attributes:
        folder: A folder of this machine: the data, or the caches of a store.
        url: The same within a store; empty for a folder.
        endpoint: The address of the store.
    """

    folder: str
    url: str = ""
    endpoint: str = ""

    def at(self, name: str) -> str:
        return f"{self.url or self.folder}/{name}"

    @property
    def options(self) -> dict[str, Any]:
        """Options of fsspec."""
        if not self.url:
            return {}
        return {
            "key": "test",
            "secret": "test",
            "client_kwargs": {"endpoint_url": self.endpoint, "region_name": "us-east-1"},
        }


def write_torchdata(folder: Path) -> None:
    """Write one JSON file per shard."""
    for shard in range(SHARDS):
        (folder / f"{shard:02}.json").write_text(json.dumps(list(range(shard * EACH, (shard + 1) * EACH))))


class Mapped(Dataset[int]):
    """Samples by index, from files."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return int(self.shard(index // EACH)[index % EACH])

    def shard(self, number: int) -> list[int]:
        import fsspec

        with fsspec.open(self.place.at(f"{number:02}.json"), **self.place.options) as file:
            return list(json.load(file))


class Streamed(IterableDataset[int]):
    """The same as a stream; each worker reads its own shards."""

    def __init__(self, place: Place, first: int = 0, last: int = SHARDS) -> None:
        self.data, self.shards = Mapped(place), range(first, last)

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in self.shards[first::step]:
            yield from self.data.shard(number)


def plain(place: Place, workers: int) -> Any:
    """A stream without a position, in torch's own loader."""
    return DataLoader(Streamed(place), BATCH, num_workers=workers)


def torchdata_map(place: Place, workers: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Mapped(place), BATCH, shuffle=True, num_workers=workers)


def torchdata_stream(place: Place, workers: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Streamed(place), BATCH, num_workers=workers)


def torchdata_nodes(place: Place, workers: int) -> Any:
    from torch.utils.data import RandomSampler, default_collate
    from torchdata import nodes

    data = Mapped(place)
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(3))
    node: Any = nodes.MapStyleWrapper(data, sampler) if not workers else None
    if workers:
        node = nodes.ParallelMapper(nodes.SamplerWrapper(sampler), data.__getitem__, workers, method="thread")
    node = nodes.Mapper(nodes.Batcher(node, BATCH), default_collate)
    return nodes.Loader(node)


def _halves(place: Place) -> Any:
    from lightlib.data import MixtureDataset

    return MixtureDataset([Streamed(place, 0, SHARDS // 2), Streamed(place, SHARDS // 2)])


def mixture(place: Place, workers: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(_halves(place), BATCH, num_workers=workers)


class Documents(IterableDataset[list[int]]):
    """The same as documents of one token."""

    def __init__(self, place: Place) -> None:
        self.data = _halves(place)

    def __iter__(self) -> Iterator[list[int]]:
        return ([number] for number in self.data)

    def state_dict(self) -> Any:
        return self.data.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.data.load_state_dict(state)


def packed(place: Place, workers: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    from lightlib.data import pack

    rows = pack(Documents(place), 1, mode="best_fit", window=7)
    return StatefulDataLoader(rows, BATCH, num_workers=workers, collate_fn=_ids_of_rows)


def _ids_of_rows(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {"id": torch.cat([row["input_ids"] for row in rows])}


def write_datasets(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    for shard in range(SHARDS):
        table = pyarrow.table({"id": list(range(shard * EACH, (shard + 1) * EACH))})
        pyarrow.parquet.write_table(table, folder / f"{shard:02}.parquet")


def _hugging_face(place: Place, streaming: bool) -> Any:
    import datasets

    files = [place.at(f"{shard:02}.parquet") for shard in range(SHARDS)]
    options = {"storage_options": place.options} if place.url else {}
    cache = f"{place.folder}/cache"
    return datasets.load_dataset(
        "parquet", data_files=files, split="train", streaming=streaming, cache_dir=cache, **options
    )


def datasets_map(place: Place, workers: int) -> Any:
    return DataLoader(_hugging_face(place, False).with_format("torch"), BATCH, shuffle=True, num_workers=workers)


def datasets_stream(place: Place, workers: int) -> Any:
    data = _hugging_face(place, True).shuffle(seed=5, buffer_size=20)
    return DataLoader(data, BATCH, num_workers=workers)


def _split() -> tuple[int, int]:
    import os

    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def datasets_split(place: Place, workers: int) -> Any:
    """As the library's pages have it for several processes."""
    from datasets.distributed import split_dataset_by_node

    rank, size = _split()
    data = split_dataset_by_node(_hugging_face(place, True).shuffle(seed=5, buffer_size=20), rank, size)
    return DataLoader(data, BATCH, num_workers=workers)


def datasets_stateful(place: Place, workers: int) -> Any:
    from datasets.distributed import split_dataset_by_node
    from torchdata.stateful_dataloader import StatefulDataLoader

    rank, size = _split()
    data = split_dataset_by_node(_hugging_face(place, True), rank, size)
    return StatefulDataLoader(data, BATCH, num_workers=workers)


def write_webdataset(folder: Path) -> None:
    import webdataset

    for shard in range(SHARDS):
        with webdataset.TarWriter(str(folder / f"{shard:02}.tar")) as writer:
            for number in range(shard * EACH, (shard + 1) * EACH):
                writer.write({"__key__": f"{number:04}", "id.cls": number})


def _shards(place: Place) -> str:
    if not place.url:
        return place.folder + f"/{{00..{SHARDS - 1:02}}}.tar"
    bucket, _, key = place.url.removeprefix("s3://").partition("/")
    return f"{place.endpoint}/{bucket}/{key}".rstrip("/") + f"/{{00..{SHARDS - 1:02}}}.tar"


def webdataset(place: Place, workers: int) -> Any:
    import webdataset as wds

    data = wds.WebDataset(_shards(place), shardshuffle=100, detshuffle=True, seed=5, nodesplitter=wds.split_by_node)
    data = data.shuffle(20, seed=7).decode().to_tuple("id.cls").batched(BATCH)
    return wds.WebLoader(data, batch_size=None, num_workers=workers)


def webdataset_torch(place: Place, workers: int) -> Any:
    import webdataset as wds

    data = wds.WebDataset(_shards(place), shardshuffle=False, nodesplitter=wds.split_by_node)
    return DataLoader(data.decode().to_tuple("id.cls"), BATCH, num_workers=workers)


def write_litdata(folder: Path) -> None:
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_size=EACH)
    for number in range(SAMPLES):
        writer[number] = {"id": number}
    writer.done()
    writer.merge()


def litdata(place: Place, workers: int) -> Any:
    from litdata import StreamingDataLoader, StreamingDataset

    options = {}
    if place.url:
        from litdata.streaming import downloader

        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"  # the store of a test has no certificate
        storage = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        options = {"storage_options": {"endpoint_url": place.endpoint, **storage}}
    data = StreamingDataset(
        place.url or place.folder, shuffle=True, cache_dir=f"{place.folder}/../lit-cache", **options
    )
    return StreamingDataLoader(data, batch_size=BATCH, num_workers=workers)


def write_mosaicml(folder: Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"id": "int"}, size_limit=EACH * 12 + 120) as writer:
        for number in range(SAMPLES):
            writer.write({"id": number})


def _mosaicml(place: Place) -> Any:
    from streaming import StreamingDataset

    where = {"remote": place.url, "local": f"{place.folder}/cache"} if place.url else {"local": place.folder}
    return StreamingDataset(**where, shuffle=True, shuffle_seed=5, batch_size=BATCH, num_canonical_nodes=2)


def mosaicml(place: Place, workers: int) -> Any:
    from streaming import StreamingDataLoader

    return StreamingDataLoader(_mosaicml(place), batch_size=BATCH, num_workers=workers)


def mosaicml_torch(place: Place, workers: int) -> Any:
    return DataLoader(_mosaicml(place), BATCH, num_workers=workers)


class Library(NamedTuple):
    """A library.

    Attributes:
        module: What is imported.
        write: Writes the samples into a folder.
        loaders: The loaders that users write with it.
    """

    module: str
    write: Callable[[Path], None]
    loaders: tuple[Callable[[Place, int], Any], ...]


LIBRARIES = {
    "torchdata": Library(
        "torchdata", write_torchdata, (torchdata_map, torchdata_stream, torchdata_nodes, plain, mixture, packed)
    ),
    "datasets": Library("datasets", write_datasets, (datasets_map, datasets_stream, datasets_split, datasets_stateful)),
    "webdataset": Library("webdataset", write_webdataset, (webdataset, webdataset_torch)),
    "litdata": Library("litdata", write_litdata, (litdata,)),
    "mosaicml": Library("streaming", write_mosaicml, (mosaicml, mosaicml_torch)),
}
