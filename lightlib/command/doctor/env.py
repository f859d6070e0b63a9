"""`lightlib env`: versions, devices and variables as Markdown, for a bug report."""

from __future__ import annotations

import argparse

from lightlib.command.doctor import facts

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Set the epilog of `lightlib env`, which takes no arguments."""
    parser.epilog = "Secrets are masked. Paste the output unchanged; `lightlib doctor` looks for problems."


def run(options: argparse.Namespace) -> int:  # noqa: ARG001  every command gets them
    """Print versions, devices and variables as Markdown."""
    packages = facts.packages()
    torch = next(package for package in packages if package.name == "torch")
    groups = {
        "Versions": facts.versions(packages),
        "Devices": facts.devices(torch.version is not None and not torch.error),
        "Environment": facts.environment() or {"variables": "none that affect a run"},
    }
    blocks = []
    for title, group in groups.items():
        lines = [
            f"- {name}: `{str(value).replace('`', chr(39))}`"
            for name, value in group.items()
            if name != "not installed"
        ]
        blocks.append("\n".join([f"**{title}**", "", *lines]))
    print("\n\n".join(blocks))
    return 0
