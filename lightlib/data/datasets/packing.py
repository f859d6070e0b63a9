"""pack: documents of any length as rows of one length, for map-style data sets and streams."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from lightlib import report
from lightlib.data.datasets.reader import END, StreamReader, is_stream
from lightlib.data.datasets.rows import Piece, Tokens, best_fit, joined, tokens_of, wrapped
from lightlib.errors import ArgumentTypeError, MisconfigurationException, check_int, check_word, shown
from lightlib.samplers.checks import numbers_of, size_of

_MODES = {"wrap": "cut", "best_fit": "error"}  # with the default of `longer`
_LONGER = ("error", "cut", "drop")


def pack(
    dataset: Any,
    length: int,
    *,
    mode: str = "wrap",
    longer: str | None = None,
    window: int = 1000,
    pad_id: int = 0,
    lengths: Any = None,
) -> PackedDataset | PackedStream:
    """Pack documents into rows of one length; no token is lost, except with ``longer="drop"``.

    A document is a sequence of token ids, or a dict with "input_ids" and perhaps "labels"; its other keys are left out.
    A row is a dict of tensors: "input_ids"; "position_ids", which start at 0 in each document; "document_ids", for
    `document_mask`; and "labels". Labels are not shifted, as models of transformers shift them; the first of each
    document is -100. Padding has the document -1 and the label -100.

    Args:
        dataset: A map-style data set, which gives a map-style one for any sampler; or a stream, which gives a stream
            with a position that torchdata's ``StatefulDataLoader`` saves.
        length: Tokens of a row.
        mode: ``"wrap"``: one document after the other, cut where a row ends. The rest begins the next row as a document
            of its own, and only the last row has padding. ``"best_fit"``: complete documents, by best-fit decreasing.
        longer: Treatment of a document that is longer than a row: ``"error"``, ``"cut"`` into several, or ``"drop"``.
            Default: ``"cut"`` for ``"wrap"``, and ``"error"`` for ``"best_fit"``.
        window: The number of consecutive documents that are packed together. A stream that resumes reads up to so many
            again.
        pad_id: The token of the padding.
        lengths: The length of each document of a map-style data set. Default: each document is read once, here.

    Raises:
        MisconfigurationException: A document is too long, has other keys, or is no sequence of whole numbers; there are
            no tokens; or an argument is out of range.

    Example:
        >>> rows = pack([[1, 2, 3], [4, 5], [6]], length=4)
        >>> [row["input_ids"].tolist() for row in rows]
        [[1, 2, 3, 4], [5, 6, 0, 0]]
        >>> rows[1]["document_ids"].tolist(), rows[0]["labels"].tolist()
        ([0, 1, -1, -1], [-100, 2, 3, -100])
    """
    check_word("pack", "mode", mode, _MODES)
    longer = check_word("pack", "longer", longer or _MODES[mode], _LONGER)
    packer = _Packer(
        check_int("pack", "length", length, 1), mode, longer, check_int("pack", "window", window, 1),
        check_int("pack", "pad_id", pad_id, 0),
    )  # fmt: skip
    if not is_stream(dataset):
        return PackedDataset(dataset, packer, lengths)
    if lengths is not None or hasattr(dataset, "__next__"):
        raise ArgumentTypeError(
            f"pack({shown(dataset)}{'' if lengths is None else ', lengths=…'}).",
            expected="a map-style data set, or without lengths a stream that each pass reads from its start.",
            fix="pack(dataset, length) of an IterableDataset.",
        )
    return PackedStream(dataset, packer)


@dataclass(frozen=True)
class _Packer:
    """The arguments of `pack`, and the rows that follow from the lengths of documents."""

    length: int
    mode: str
    longer: str
    window: int
    pad_id: int

    def rows(self, sizes: Sequence[int], first: int, filled: int) -> list[list[Piece]]:
        """Return the rows of a window: the first continues the row that was incomplete, the last is incomplete.

        Args:
            first: The number of the first document, among all.
            filled: Tokens in the incomplete row.
        """
        pieces = [piece for number, size in enumerate(sizes, first) for piece in self._pieces(number, size)]
        wraps = self.mode == "wrap"
        return wrapped(pieces, self.length, filled) if wraps else [*best_fit(pieces, self.length), []]

    def _pieces(self, number: int, size: int) -> list[Piece]:
        if size > self.length and self.longer == "error":
            raise MisconfigurationException(
                f"pack: document {number} has {size} tokens.",
                expected=f"at most {self.length}, the length of a row.",
                fix=f"pack(…, length={size}), longer='cut' or longer='drop'.",
            )
        if size > self.length and self.longer == "drop":
            report.warn_once(
                ("pack", self.length),
                f"pack(longer='drop') leaves out every document of more than {self.length} tokens; the first is "
                f"document {number}, of {size}.",
            )
            return []
        step = self.length if self.mode == "best_fit" else max(1, size)
        return [Piece(number, at, min(at + step, size)) for at in range(0, size, step)]

    def row(self, pieces: Sequence[Tokens]) -> dict[str, Tensor]:
        return joined(pieces, self.length, self.pad_id)


class PackedDataset(Dataset[dict[str, Tensor]]):
    """Rows of packed documents by index; `pack` makes it."""

    not_in_checkpoint = ("_pieces", "_ends", "_sizes")

    def __init__(self, dataset: Any, packer: _Packer, lengths: Any = None) -> None:
        super().__init__()
        number_of = size_of("pack", dataset)
        self.dataset, self.packer = dataset, packer
        if lengths is None:
            lengths = [len(tokens_of("pack", dataset[number], number)[0]) for number in range(number_of)]
        self._sizes = numbers_of("pack", "lengths", lengths, 0)
        if len(self._sizes) != number_of:
            raise MisconfigurationException(
                f"pack got {len(self._sizes)} lengths for {number_of} documents.",
                expected="the length of each document.",
                fix="pack(dataset, length, lengths=[len(document) for document in dataset])",
            )
        pieces, ends, rest = array("q"), array("q", [0]), list[Piece]()
        for first in range(0, number_of, packer.window):
            sizes = self._sizes[first : first + packer.window].tolist()
            rows = packer.rows(sizes, first, sum(piece.size for piece in rest))
            rows[0] = rest + rows[0]
            rest = rows.pop()
            for row in [*rows, rest] if first + packer.window >= number_of and rest else rows:
                pieces.extend(number for piece in row for number in piece)
                ends.append(len(pieces) // 3)
        if len(ends) == 1:
            raise MisconfigurationException(
                f"pack: none of {number_of} documents has a token that is kept.",
                expected="one token at least.",
                fix="check the tokenizer, or choose longer='cut'.",
            )
        self._pieces, self._ends = torch.tensor(pieces).reshape(-1, 3), torch.tensor(ends)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} rows")
        row = index % len(self)
        return self.packer.row(
            [self._taken(*piece) for piece in self._pieces[self._ends[row] : self._ends[row + 1]].tolist()]
        )

    def _taken(self, number: int, start: int, stop: int) -> Tokens:
        ids, labels = tokens_of("pack", self.dataset[number], number)
        if len(ids) != self._sizes[number]:
            raise MisconfigurationException(
                f"pack: document {number} has {len(ids)} tokens now, and had {int(self._sizes[number])} before.",
                expected="the same documents in each epoch.",
                fix="a mixture of packed data sets in place of a packed mixture; or pack a stream.",
            )
        return ids[start:stop], labels[start:stop]


class PackedStream(IterableDataset[dict[str, Tensor]]):
    """Rows of packed documents of a stream; `pack` makes it.

    Its position is that of the stream at the start of a window, the incomplete row at that moment, and the number of
    rows that were read since.
    """

    not_in_checkpoint = ("dataset", "packer", "_position", "_loaded")  # the loader saves it, or reads the stream again

    def __init__(self, dataset: Any, packer: _Packer) -> None:
        super().__init__()
        self.dataset, self.packer = dataset, packer
        self._position: dict[str, Any] = {}
        self._loaded: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        reader = StreamReader(self.dataset)
        self._position = self._loaded or {"stream": reader.state_dict(), "rest": [], "rows": 0}
        self._loaded = None
        return self._rows(reader, **self._position)

    def _rows(self, reader: StreamReader, stream: Any, rest: list[Any], rows: int) -> Iterator[dict[str, Tensor]]:
        reader.load_state_dict(stream)
        packer, num_yielded, is_last = self.packer, rows, False
        incomplete = [(torch.tensor(ids), torch.tensor(labels)) for ids, labels in rest]
        while not is_last:
            begun = {
                "stream": reader.state_dict(),
                "rest": [[ids.tolist(), labels.tolist()] for ids, labels in incomplete],
            }
            first = reader.read
            read = [tokens_of("pack", document, number) for number, document in enumerate(self._window(reader), first)]
            is_last = len(read) < packer.window
            plan = packer.rows([len(ids) for ids, _ in read], first, sum(len(ids) for ids, _ in incomplete))
            taken = [[_part(read[number - first], start, stop) for number, start, stop in row] for row in plan]
            taken[0] = incomplete + taken[0]
            incomplete = taken.pop()
            for number, row in enumerate([*taken, incomplete] if is_last and incomplete else taken, 1):
                if number > num_yielded:
                    self._position = {**begun, "rows": number}
                    yield packer.row(row)
            num_yielded = 0

    @property
    def underlying_streams(self) -> list[Any]:
        """The stream of documents."""
        return [self.dataset]

    def _window(self, reader: StreamReader) -> Iterator[Any]:
        return islice(iter(reader.next, END), self.packer.window)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch of the stream, if that has `set_epoch`."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position: numbers, tokens, and the state of the stream."""
        return self._loaded or self._position

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration begin at a position that `state_dict` returned."""
        self._loaded = state


def _part(tokens: Tokens, start: int, stop: int) -> Tokens:
    return tokens[0][start:stop], tokens[1][start:stop]
