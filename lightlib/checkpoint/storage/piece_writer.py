"""PieceWriter: a file that is written in bounded pieces and keeps its first error."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from typing import Any, ClassVar

__all__ = ["PieceWriter"]


class PieceWriter(io.BufferedIOBase, ABC):
    """Base of the files that `torch.save` writes to: splits the data, counts it, and keeps the first error.

    Attributes:
        piece: Largest number of bytes handed on at once.
        failed: The first error, even if the caller has turned it into another one; later writes raise it again.
        written: Number of bytes written.
    """

    piece: ClassVar[int]
    kept_errors: ClassVar[type[BaseException]] = BaseException

    def __init__(self) -> None:
        self.failed: BaseException | None = None
        self.written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.written

    def write(self, data: Any) -> int:
        if self.failed is not None:
            raise self.failed
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), self.piece):
                piece = view[start : start + self.piece]
                self._put(piece)
                self.written += len(piece)
        except self.kept_errors as error:
            self.failed = error
            raise
        return len(view)

    @abstractmethod
    def _put(self, piece: memoryview) -> None:
        """Write one piece."""

    def flush(self) -> None:
        """No-op: the owner of the file completes it."""
