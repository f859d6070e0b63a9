"""Lightning's tqdm: its numbers keep their width."""

from __future__ import annotations

from typing import Any

from tqdm.auto import tqdm  # optional: tqdm

__all__ = ["Tqdm"]

_WIDTH = 5


class Tqdm(tqdm):  # type: ignore[misc]  # tqdm has no types
    """A tqdm bar that pads numbers and texts with zeros, so that it does not flicker."""

    @staticmethod
    def format_num(n: Any) -> str:
        """Return a number or text of at least five characters; an int as it is.

        Example:
            >>> Tqdm.format_num(0.5), Tqdm.format_num(3), Tqdm.format_num("ab")
            ('0.500', '3', 'ab')
        """
        text = n if isinstance(n, str) else str(tqdm.format_num(n))
        if not isinstance(n, (float, str)) or "e" in text or len(text) >= _WIDTH:
            return text
        if "." not in text:
            try:
                float(text)
            except ValueError:
                return text
            text += "."
        return text.ljust(_WIDTH, "0")
