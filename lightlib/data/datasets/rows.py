"""Rows of documents: which tokens are in each row, as tensors, and the mask between documents."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightlib.errors import ArgumentTypeError, MisconfigurationException, check_type, shown

_IGNORED = -100  # the label that cross_entropy leaves out by default
Tokens = tuple[Tensor, Tensor]  # ids and labels


class Piece(NamedTuple):
    """Some tokens of a document: those from `start` on, before `stop`."""

    document: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


def wrapped(pieces: Sequence[Piece], length: int, filled: int) -> list[list[Piece]]:
    """Put pieces one after the other into rows, cut where a row ends; the last row is incomplete, and may be empty.

    Args:
        filled: Tokens that the first row has already.

    Example:
        >>> wrapped([Piece(0, 0, 5)], 4, 2)
        [[Piece(document=0, start=0, stop=2)], [Piece(document=0, start=2, stop=5)]]
    """
    rows: list[list[Piece]] = [[]]
    room = length - filled
    for document, begin, stop in pieces:
        start = begin
        while start < stop:
            end = min(stop, start + room)
            rows[-1].append(Piece(document, start, end))
            room -= end - start
            start = end
            if not room:
                rows.append([])
                room = length
    return rows


def best_fit(pieces: Sequence[Piece], length: int) -> list[list[Piece]]:
    """Put each piece, the longest first, into the row with the least room that has enough (best-fit decreasing).

    Example:
        >>> best_fit([Piece(0, 0, 2), Piece(1, 0, 3)], 5)
        [[Piece(document=1, start=0, stop=3), Piece(document=0, start=0, stop=2)]]
    """
    rows: list[list[Piece]] = []
    rooms: list[tuple[int, int]] = []  # of rows that are not full, ascending
    for piece in sorted(pieces, key=lambda piece: -piece.size):
        at = bisect_left(rooms, (piece.size, 0))
        if at == len(rooms):
            rows.append([])
        room, row = rooms.pop(at) if at < len(rooms) else (length, len(rows) - 1)
        rows[row].append(piece)
        if room > piece.size:
            insort(rooms, (room - piece.size, row))
    return rows


def tokens_of(owner: str, document: Any, number: int) -> Tokens:
    """Return the token ids and the labels of a document.

    Args:
        owner: The function that reads it.
        number: Of the document, for errors.

    Raises:
        MisconfigurationException: It is no sequence of whole numbers, and no dict of them with "input_ids".
    """
    where, labels = f"{owner}: document {number}", None
    if isinstance(document, Mapping):
        if "input_ids" not in document:
            raise MisconfigurationException(
                f"{where} has the keys {sorted(map(str, document))}.",
                expected='"input_ids", and "labels" if they differ.',
                fix='{"input_ids": tokenizer(text)["input_ids"]}',
            )
        document, labels = document["input_ids"], document.get("labels")
    ids = _numbers(f"{where} is", document)
    if labels is None:
        return ids, ids
    labels = _numbers(f"{where}: the labels are", labels)
    if len(labels) != len(ids):
        raise MisconfigurationException(
            f"{where} has {len(ids)} input_ids and {len(labels)} labels.",
            expected="a label for each token, not shifted; -100 for a token that is not predicted.",
            fix='leave "labels" out, or copy "input_ids".',
        )
    return ids, labels


def _numbers(subject: str, values: Any) -> Tensor:
    text = shown(values)
    try:
        numbers = (
            values
            if isinstance(values, Tensor)
            else torch.tensor(values if hasattr(values, "__array__") else [*values])
        )
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.zeros(())
    else:
        text = f"of the shape {tuple(numbers.shape)} and the dtype {numbers.dtype}"
    if numbers.ndim != 1 or (
        len(numbers) and (numbers.is_floating_point() or numbers.is_complex() or numbers.dtype is torch.bool)
    ):
        raise ArgumentTypeError(
            f"{subject} {text}.",
            expected="a sequence of token ids: whole numbers, in one dimension.",
            fix='tokenizer(text)["input_ids"] for each document.',
        )
    return numbers.long()


def joined(pieces: Sequence[Tokens], length: int = 0, pad_id: int = 0) -> dict[str, Tensor]:
    """Return documents one after the other as a row, with padding up to `length`.

    The first label of each document is -100: a model that shifts labels would predict it from the document before.
    """
    parts = []
    for number, (ids, labels) in enumerate(pieces):
        parts.append((ids, labels.clone(), number))
        parts[-1][1][:1] = _IGNORED
    missing = torch.full((max(0, length - sum(len(ids) for ids, _ in pieces)),), pad_id)
    if len(missing):
        parts.append((missing, torch.full_like(missing, _IGNORED), -1))
    return {
        "input_ids": torch.cat([ids for ids, _, _ in parts]),
        "position_ids": torch.cat([torch.arange(len(ids)) for ids, _, _ in parts]),
        "document_ids": torch.cat([torch.full_like(ids, number) for ids, _, number in parts]),
        "labels": torch.cat([labels for _, labels, _ in parts]),
    }


def document_mask(document_ids: Tensor, causal: bool = True) -> Tensor:
    """Return the mask with which tokens attend to their own document alone: True where a query may see a key.

    Args:
        document_ids: Of a batch of rows, as `pack` and `padding_free_collate` give them: (batch, length).
        causal: Whether a token sees only itself and those before. Default True.

    Returns:
        A mask of the shape (batch, 1, length, length): the `attn_mask` of ``scaled_dot_product_attention`` for any
        number of heads, without `is_causal`.

    Example:
        >>> document_mask(torch.tensor([[0, 0, 1]])).int().tolist()
        [[[[1, 0, 0], [1, 1, 0], [0, 0, 1]]]]
    """
    fix = 'document_mask(batch["document_ids"])'
    check_type("document_mask", "document_ids", document_ids, Tensor, "a tensor", fix=fix)
    if document_ids.ndim != 2:
        raise MisconfigurationException(
            f"document_mask got document_ids of the shape {tuple(document_ids.shape)}.",
            expected="(batch, length).",
            fix='document_mask(row["document_ids"][None]) for one row.',
        )
    same = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    return same.tril() if causal else same


def padding_free_collate(documents: Sequence[Any]) -> dict[str, Any]:
    """Collate documents into one row without padding, with the arguments of transformers for variable lengths.

    It is a DataLoader's `collate_fn`. A document is a sequence of token ids, or a dict with "input_ids" and perhaps
    "labels". Labels are not shifted; the first of each document is -100.

    Returns:
        "input_ids", "position_ids", "document_ids" and "labels" of the shape (1, tokens); "cu_seq_lens_q" and
        "cu_seq_lens_k": the tokens before each document, and all (int32); "max_length_q" and "max_length_k".

    Raises:
        MisconfigurationException: A document is no sequence of whole numbers, or there are no tokens.

    Example:
        >>> batch = padding_free_collate([[5, 6, 7], [8, 9]])
        >>> batch["input_ids"], batch["cu_seq_lens_q"], batch["max_length_q"]
        (tensor([[5, 6, 7, 8, 9]]), tensor([0, 3, 5], dtype=torch.int32), 3)
    """
    pieces = [tokens_of("padding_free_collate", document, number) for number, document in enumerate(documents)]
    pieces = [piece for piece in pieces if len(piece[0])]
    if not pieces:
        raise MisconfigurationException(
            f"padding_free_collate got {len(documents)} documents without a token.",
            expected="one token at least.",
            fix="leave empty documents out of the data set.",
        )
    ends = torch.tensor([0, *(len(ids) for ids, _ in pieces)]).cumsum(0)
    longest = max(stop - start for start, stop in pairwise(ends.tolist()))
    batch: dict[str, Any] = {name: column[None] for name, column in joined(pieces).items()}
    for side in ("q", "k"):
        batch |= {f"cu_seq_lens_{side}": ends.int(), f"max_length_{side}": longest}
    return batch
