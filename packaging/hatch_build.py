"""Addresses in the metadata of lightlib: those of the repository from which it is built."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# A link or picture of README.md to a file of the repository, which an index cannot show.
_LOCAL = re.compile(r"(?P<start>(?P<picture>!?)\[[^\]]*\]\()(?P<path>(?!https?:|#)[^)\s]+)(?=\))")


def repository() -> str:
    """Return the address of the repository, without a slash at the end; empty where it is not known.

    ``LIGHTLIB_REPOSITORY`` gives it. In a workflow of GitHub it is the repository of the workflow.
    """
    server, name = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    return os.environ.get("LIGHTLIB_REPOSITORY", f"{server}/{name}" if server and name else "").rstrip("/")


def with_addresses(text: str, address: str, tag: str) -> str:
    """Return Markdown with full addresses of files at `tag`.

    Args:
        text: README.md.
        address: Of the repository; empty: links stay as they are.
        tag: Of the release, such as ``"v0.1.0"``.
    """
    if not address:
        return text

    def full(match: re.Match[str]) -> str:
        return f"{match['start']}{address}/{'raw' if match['picture'] else 'blob'}/{tag}/{match['path']}"

    return _LOCAL.sub(full, text)


class Addresses(MetadataHookInterface):
    """Adds the project's addresses to the metadata, and makes the links of its description full ones."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme`, and `urls` where the repository is known."""
        address, tag = repository(), f"v{metadata['version']}"
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": with_addresses(text, address, tag)}
        metadata["urls"] = {}
        if address:
            metadata["urls"] = {
                "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
                "Documentation": f"{address}/tree/{tag}/docs",
                "Issues": f"{address}/issues",
                "Source": address,
            }
