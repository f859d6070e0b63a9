"""`lightlib experiment watch` and `open`: look at an experiment while it runs."""

from __future__ import annotations

import argparse
import time
from contextlib import suppress

from lightlib import optional
from lightlib.command.experiments.board import Board, is_possible, shown
from lightlib.command.experiments.trial_names import folder_of
from lightlib.errors import MisconfigurationException
from lightlib.experiment.ledger.snapshot import ENDED
from lightlib.experiment.work.ledger import open_ledger
from lightlib.experiment.work.results import Results, counted

_PAUSE = 0.5  # seconds between two looks
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def watch(options: argparse.Namespace) -> int:
    """Show the state of an experiment until it has ended; without a terminal, a line for each change."""
    folder = folder_of(options.experiment)
    config = folder.config
    with open_ledger(folder, config) as ledger, suppress(KeyboardInterrupt):
        if is_possible():
            with shown(Board(folder, config, ledger)):
                while Results(folder, config, ledger).state not in ENDED:
                    time.sleep(_PAUSE)
            return 0
        line = ""
        while True:
            results = Results(folder, config, ledger)
            if line != (line := f"{results.state}: {counted(results)}"):
                print(line, flush=True)
            if results.state in ENDED:
                return 0
            time.sleep(_PAUSE)
    return 0


def dashboard(options: argparse.Namespace) -> int:
    """Serve Optuna's dashboard of an experiment until Ctrl-C."""
    if not optional.is_installed("optuna_dashboard"):
        raise optional.missing("optuna_dashboard", "`lightlib experiment open`")
    if options.host not in _LOOPBACK and not options.allow_remote:
        raise MisconfigurationException(
            f"--host is {options.host!r}: the dashboard has no login, and can delete trials.",
            expected=f"one of {', '.join(_LOOPBACK)}.",
            fix="an SSH tunnel to 127.0.0.1, or --allow-remote in a network that you trust.",
        )
    folder = folder_of(options.experiment)
    with suppress(KeyboardInterrupt), open_ledger(folder, folder.config) as ledger:
        from optuna_dashboard import run_server  # optional: optuna-dashboard

        print(f"http://{options.host}:{options.port}/dashboard, until Ctrl-C", flush=True)
        run_server(ledger.storage, options.host, options.port)
    return 0
