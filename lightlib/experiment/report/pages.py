"""Pages: HTML files that need no network, with a policy that allows their own scripts only."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import os
import re

from lightlib import safe_files
from lightlib.errors import LightlibError, MisconfigurationException

__all__ = ["COLORS", "as_text", "page", "refuse_foreign", "write"]

COLORS = ("#0072b2", "#d55e00", "#008a64", "#b5528a", "#8f6400", "#2b87b9", "#3d3d42", "#7a5cc0")
_SCRIPT = re.compile(r"<script\b[^>]*>(.*?)</script>", re.DOTALL)
_BEGINNING = 2048  # bytes of a file, in which its mark is


def as_text(value: object) -> str:
    """Return text that HTML and plotly, which reads a part of HTML, show as it is.

    Example:
        >>> as_text("<b>lr</b>")
        '&lt;b&gt;lr&lt;/b&gt;'
    """
    return html.escape(str(value).encode(errors="backslashreplace").decode(), quote=False)


def page(title: str, mark: str, body: str, style: str = "body { font-family: sans-serif }") -> str:
    """Return a page with a content security policy.

    The policy lists the hashes of the page's scripts: the browser runs only these, and loads nothing.

    Args:
        title: Of the page, as plain text.
        mark: The `meta` element by which `refuse_foreign` knows such pages.
        body: HTML, with all scripts of the page.
        style: CSS.
    """
    digests = (hashlib.sha256(code.encode()).digest() for code in _SCRIPT.findall(body))
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src "
    policy += " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{mark}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{as_text(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def refuse_foreign(path: str | os.PathLike[str], mark: str, program: str, fix: str) -> None:
    """Refuse a path at which there is something that a program of lightlib has not written.

    Args:
        path: Of the file to write.
        mark: In the first 2 KiB of the program's files.
        program: The command that writes them.
        fix: For the error.

    Raises:
        MisconfigurationException: There is a file, a folder or a link without the mark.
    """
    if not os.path.lexists(path):
        return
    with contextlib.suppress(OSError), open(path, "rb") as file:
        if mark.encode() in file.read(_BEGINNING):
            return
    raise MisconfigurationException(
        f"{os.fspath(path)!r} exists, and was not written by `{program}`.",
        expected=f"no such file, or one written by `{program}`, which is replaced.",
        fix=fix,
    )


def write(path: str | os.PathLike[str], content: bytes, fix: str) -> None:
    """Write a file completely or not at all; its folder is created.

    Args:
        path: Of the file.
        content: All of it.
        fix: For the error.

    Raises:
        LightlibError: It cannot be written.
    """
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        safe_files.replace(path, content)
    except OSError as error:
        raise LightlibError(
            f"{os.fspath(path)!r} cannot be written: {error}",
            expected="a folder that this user may write to.",
            fix=fix,
        ) from error
