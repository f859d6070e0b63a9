"""`lightlib env`: versions, devices and variables as Markdown, for a bug report."""

from __future__ import annotations

import argparse

from lightlib.command.doctor import facts

EPILOG = "Secrets are masked. Paste the output unchanged; `lightlib doctor` looks for problems."


def run(options: argparse.Namespace) -> int:  # noqa: ARG001  every command gets them
    """Print versions, devices and variables as Markdown."""
    groups = facts.groups(facts.packages())
    del groups["versions"]["not installed"]
    groups["environment"] = groups["environment"] or {"variables": "none that affect a run"}
    blocks = []
    for title in ("versions", "devices", "environment"):
        lines = [f"- {name}: `{str(value).replace('`', chr(39))}`" for name, value in groups[title].items()]
        blocks.append("\n".join([f"**{title.capitalize()}**", "", *lines]))
    print("\n\n".join(blocks))
    return 0
