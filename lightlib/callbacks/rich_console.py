"""The console of rich that callbacks print with; a broken pipe does not end the program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rich.console import Console  # optional: rich


def console(**options: Any) -> Console:
    """Return a `rich.console.Console`; rich's own ends the program when nothing reads its pipe."""
    from rich.console import Console  # optional: rich

    class OwnConsole(Console):
        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError("nothing reads the pipe")

    return OwnConsole(**options)
