"""`lightlib experiment report`: one page about an experiment."""

from __future__ import annotations

import argparse

from lightlib.command.experiments.trial_names import folder_of, near
from lightlib.experiment.report.page import write_report
from lightlib.experiment.work.ledger import open_ledger


def report(options: argparse.Namespace) -> int:
    """Write the page, and print its path."""
    folder = folder_of(options.experiment)
    with open_ledger(folder, folder.config) as ledger:
        path = write_report(folder, folder.config, ledger, options.output)
    print(f"Wrote {near(path)}")
    return 0
