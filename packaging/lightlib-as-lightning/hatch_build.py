"""Refuses to build the distributions for an environment in which a real Lightning is installed."""

from __future__ import annotations

import importlib.metadata
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LOCAL_VERSION = "+lightlib"
NAMES = ("lightning", "pytorch-lightning")


class RefusesRealLightning(MetadataHookInterface):
    """Looks for a real Lightning before pip replaces it."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Raise if a real Lightning is installed next to this interpreter; pip builds with the one it installs for.

        The project that only installs both gets them as its dependencies.
        """
        if "dependencies" in metadata.get("dynamic", ()):
            metadata["dependencies"] = [f"{name} @ {Path(self.root, name).as_uri()}" for name in NAMES]
        folders = [*{sysconfig.get_paths()[name] for name in ("purelib", "platlib")}]
        found = {
            f"{name} {one.version}"
            for one in importlib.metadata.distributions(path=folders)
            if (name := (one.metadata["Name"] or "").lower().replace("_", "-")) in NAMES
            and not one.version.endswith(LOCAL_VERSION)
        }
        if found:
            names = " ".join(sorted(text.partition(" ")[0] for text in found))
            raise SystemExit(
                f"lightlib-as-lightning would replace what is installed: {', '.join(sorted(found))}.\n"
                "  Expected: an environment without Lightning.\n"
                f"  Fix: keep it and use `lightlib compat run PROGRAM`, or first: pip uninstall {names}"
            )
