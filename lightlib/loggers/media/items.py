"""Media that loggers record: each checks its content when it is made, and can be written as a file."""

from __future__ import annotations

import csv
import ctypes
import io
import json
import struct
import wave
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightlib.errors import ArgumentTypeError, MisconfigurationException, check_type, shown, wrong_type, wrong_value


class Media(ABC):
    """Something other than a number that a logger records; see `Trainer.log_media`.

    Attributes:
        extension: Of a file with the content, with a dot.
    """

    extension: ClassVar[str]

    @abstractmethod
    def encoded(self) -> bytes:
        """Return the content of a file."""


def check_media(name: str, media: Any) -> None:
    """Refuse a value that is no media."""
    if not isinstance(media, Media):
        raise ArgumentTypeError(
            f"trainer.log_media({name!r}, …) got a {type(media).__name__}.",
            expected="an Image, Figure, Histogram, Text, Table or Audio of lightlib.loggers.media.",
            fix=f"trainer.log_media({name!r}, Image(tensor))",
        )


class Image(Media):
    """An image.

    Args:
        data: A tensor or an array (channels, height, width) or (height, width), of 1, 3 or 4 channels: integers of 0 to
            255 as uint8, or floats of 0 to 1. Floats outside of this range are clipped.
        caption: Shown with it where the service does so. Default: none.

    Raises:
        ArgumentTypeError: `data` is no tensor or array, or of another dtype.
        MisconfigurationException: Another shape.

    Example:
        >>> Image(torch.zeros(3, 4, 5)).pixels.shape  # height, width, channels
        torch.Size([4, 5, 3])
    """

    extension = ".png"

    def __init__(self, data: Any, caption: str = "") -> None:
        tensor = _tensor("Image", data)
        tensor = tensor[None] if tensor.ndim == 2 else tensor
        if tensor.ndim != 3 or tensor.shape[0] not in (1, 3, 4) or not tensor.numel():
            raise MisconfigurationException(
                f"Image got a tensor of shape {tuple(tensor.shape)}.",
                expected="(channels, height, width) with 1, 3 or 4 channels, or (height, width).",
                fix="Image(x.permute(2, 0, 1)) if channels come last; Image(make_grid(batch)) for several images.",
            )
        if tensor.is_floating_point():
            tensor = tensor.float().nan_to_num(0.0).clamp(0, 1).mul(255).round().to(torch.uint8)
        elif tensor.dtype == torch.bool:
            tensor = tensor.to(torch.uint8) * 255
        elif tensor.dtype != torch.uint8:
            raise ArgumentTypeError(
                f"Image got a tensor of dtype {tensor.dtype}.",
                expected="uint8 of 0 to 255, bool, or floats of 0 to 1.",
                fix="Image(x.to(torch.uint8)), or Image(x / x.max()).",
            )
        self.pixels = tensor.permute(1, 2, 0).contiguous()
        self.caption = caption

    def encoded(self) -> bytes:
        """Return a PNG."""
        height, width, channels = self.pixels.shape
        rows = self.pixels.reshape(height, width * channels)
        filtered = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), rows], 1)  # filter 0 before each row
        kind = {1: 0, 3: 2, 4: 6}[channels]  # grey, RGB, RGB and alpha: RFC 2083, section 4.1.1
        return b"".join(
            [
                b"\x89PNG\r\n\x1a\n",
                _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)),
                _chunk(b"IDAT", zlib.compress(ctypes.string_at(filtered.data_ptr(), filtered.numel()))),
                _chunk(b"IEND", b""),
            ]
        )


class Figure(Media):
    """A figure of matplotlib, or any object with its method `savefig`.

    Args:
        figure: The figure. It is drawn when it is logged, so it may be closed or changed afterwards.
        caption: Shown with it where the service does so. Default: none.

    Raises:
        ArgumentTypeError: It has no `savefig`.
    """

    extension = ".png"

    def __init__(self, figure: Any, caption: str = "") -> None:
        if not callable(getattr(figure, "savefig", None)):
            fix = "Figure(plt.gcf()), or Image(tensor) for pixels."
            raise wrong_type("Figure", "figure", figure, "a figure of matplotlib", fix=fix)
        self.figure, self.caption = figure, caption

    def encoded(self) -> bytes:
        """Return a PNG."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png")
        return buffer.getvalue()


class Histogram(Media):
    """The distribution of the values of a tensor.

    Args:
        values: A tensor, an array or a list of numbers. NaN and infinite values are left out and counted.
        bins: The number of bins of equal width between the smallest and the largest value. Default: 64.

    Attributes:
        counts: How many values are in each bin.
        edges: The ends of the bins, one more than there are bins.
        num_not_finite: How many values were left out.

    Raises:
        ArgumentTypeError: `values` or `bins` has another type.
        MisconfigurationException: There is no finite value, or `bins` is below 1.

    Example:
        >>> histogram = Histogram([0.0, 1.0, 1.0, 4.0], bins=2)
        >>> histogram.counts, histogram.edges
        ([3, 1], [0.0, 2.0, 4.0])
    """

    extension = ".json"

    def __init__(self, values: Any, bins: int = 64) -> None:
        if type(bins) is not int:
            raise ArgumentTypeError(f"Histogram(bins={bins!r}).", expected="an int.", fix="Histogram(values, bins=64)")
        if bins < 1:
            raise wrong_value("Histogram", "bins", bins, "1 or more", fix="Histogram(values, bins=64)")
        numbers = _tensor("Histogram", values).double().flatten()
        finite = numbers[numbers.isfinite()]
        self.num_not_finite = numbers.numel() - finite.numel()
        if not finite.numel():
            raise MisconfigurationException(
                f"Histogram got {numbers.numel()} values, none of them finite.",
                expected="at least one finite number.",
                fix="log it only if tensor.isfinite().any().",
            )
        low, high = finite.min().item(), finite.max().item()
        if low == high:
            low, high = low - 0.5, high + 0.5
        counts, edges = torch.histogram(finite, bins, range=(low, high))
        self.counts, self.edges = [int(count) for count in counts.tolist()], edges.tolist()
        self.smallest, self.largest = finite.min().item(), finite.max().item()
        self.sum, self.sum_of_squares = finite.sum().item(), finite.square().sum().item()

    def encoded(self) -> bytes:
        """Return JSON with the counts, the edges and the number of values that are not finite."""
        values = {"counts": self.counts, "edges": self.edges, "not_finite": self.num_not_finite}
        return json.dumps(values).encode()


class Text(Media):
    """A text.

    Args:
        text: The text.

    Raises:
        ArgumentTypeError: It is no string.
    """

    extension = ".txt"

    def __init__(self, text: str) -> None:
        check_type("Text", "text", text, str, "a string", "str(value)")
        self.text = text

    def encoded(self) -> bytes:
        """Return the text as UTF-8."""
        return self.text.encode(errors="backslashreplace")


class Table(Media):
    """A table of numbers and text.

    Args:
        columns: The names of the columns.
        rows: The rows, each with one value for each column.

    Raises:
        MisconfigurationException: A row has another length.

    Example:
        >>> print(Table(["class", "recall"], [["cat", 0.5], ["dog", 1.0]]).markdown())
        | class | recall |
        |---|---|
        | cat | 0.5 |
        | dog | 1.0 |
    """

    extension = ".csv"

    def __init__(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        self.columns, self.rows = [str(name) for name in columns], [list(row) for row in rows]
        for index, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise MisconfigurationException(
                    f"Table got {len(self.columns)} columns, but row {index} has {len(row)} values.",
                    expected="one value for each column.",
                    fix=f"Table({self.columns!r}, rows) with rows of {len(self.columns)} values.",
                )

    def markdown(self) -> str:
        """Return the table in Markdown."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        texts = [[str(value).replace("|", "\\|").replace("\n", " ") for value in line] for line in lines]
        texts[1:2] = []
        rule = "|" + "---|" * len(self.columns)
        first, *others = ["| " + " | ".join(line) + " |" for line in texts]
        return "\n".join([first, rule, *others])

    def encoded(self) -> bytes:
        """Return CSV."""
        text = io.StringIO(newline="")
        csv.writer(text).writerows([self.columns, *self.rows])
        return text.getvalue().encode(errors="backslashreplace")


class Audio(Media):
    """A sound.

    Args:
        samples: A tensor, an array or a list (samples,) or (channels, samples), floats of -1 to 1; values
            outside are clipped.
        sample_rate: Samples per second.

    Raises:
        ArgumentTypeError: `samples` holds no floats, or `sample_rate` is no int.
        MisconfigurationException: Another shape, or `sample_rate` is below 1.
    """

    extension = ".wav"

    def __init__(self, samples: Any, sample_rate: int) -> None:
        tensor = _tensor("Audio", samples)
        if not tensor.is_floating_point():
            raise ArgumentTypeError(
                f"Audio got samples of dtype {tensor.dtype}.",
                expected="floats of -1 to 1.",
                fix="Audio(x / 32768, rate)",
            )
        if type(sample_rate) is not int:
            raise wrong_type("Audio", "sample_rate", sample_rate, "an int", fix="Audio(samples, sample_rate=16000)")
        tensor = tensor[None] if tensor.ndim == 1 else tensor
        if tensor.ndim != 2 or not tensor.numel() or tensor.shape[0] > 8 or sample_rate < 1:
            raise MisconfigurationException(
                f"Audio got samples of shape {tuple(tensor.shape)} at {sample_rate} per second.",
                expected="(samples,) or (channels, samples) with at most 8 channels, and a rate of 1 or more.",
                fix="Audio(x.T, sample_rate=16000) if channels come last.",
            )
        self.samples, self.sample_rate = tensor.float().nan_to_num(0.0).clamp(-1, 1), sample_rate

    def encoded(self) -> bytes:
        """Return a WAV file with 16 bits for each sample."""
        buffer = io.BytesIO()
        values = (self.samples.T.flatten() * 32767).round().to(torch.int16).tolist()
        with wave.open(buffer, "wb") as file:
            file.setnchannels(self.samples.shape[0])
            file.setsampwidth(2)
            file.setframerate(self.sample_rate)
            file.writeframes(struct.pack(f"<{len(values)}h", *values))
        return buffer.getvalue()


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def _tensor(owner: str, data: Any) -> Tensor:
    """Return tensors, arrays and lists of numbers as a tensor on the CPU."""
    try:
        return torch.as_tensor(data).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError(
            f"{owner} got {shown(data)}.",
            expected="a tensor, an array or a list of numbers.",
            fix=f"{owner}(torch.as_tensor(values), …)",
        ) from error
