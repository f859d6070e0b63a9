"""`lightlib experiment logs`: the output of a trial."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import time
from functools import partial
from pathlib import Path

from lightlib.command.experiments.trial_names import folder_of, trial_of
from lightlib.errors import MisconfigurationException
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.ledger import open_ledger
from lightlib.experiment.work.logs import as_text
from lightlib.experiment.work.logs import read as lines_of
from lightlib.experiment.work.results import Results

_PAUSE = 0.5  # seconds between two looks for the next attempt of a trial


def logs(options: argparse.Namespace) -> int:
    """Print the output of a trial."""
    where, trial, attempt = trial_of(options.experiment)
    folder = folder_of(where)
    folders = folder.attempts(trial)
    if attempt is not None:
        folders = [path for path in folders if path.name == f"attempt-{attempt}"]
    if not folders:
        raise MisconfigurationException(
            f"There is no output of {options.experiment!r}.",
            expected="a trial and an attempt that have begun.",
            fix=f"lightlib experiment trials {shlex.quote(where)} lists the trials.",
        )
    try:
        pattern = re.compile(options.grep or "")
    except re.error as error:
        raise MisconfigurationException(
            f"--grep is {options.grep!r}: {error}.",
            expected="a regular expression.",
            fix=f"--grep {re.escape(options.grep)!r}",
        ) from None
    with open_ledger(folder, folder.config) as ledger:
        shown = 0
        while shown < len(folders) or (options.follow and attempt is None and _continues(folder, ledger, trial)):
            folders = folders if shown < len(folders) else folder.attempts(trial)
            if shown == len(folders):
                time.sleep(_PAUSE)
                continue
            path = folders[shown]
            number = path.name.rpartition("-")[2]
            if not options.json:
                print(f"== attempt {number}")
            follow = partial(_is_running, ledger, trial, path) if options.follow else None
            for line in lines_of(path, follow):
                if options.rank in (None, line.rank) and pattern.search(line.text):
                    plain = {"time": line.time or None, "trial": trial, "attempt": int(number)}
                    as_json = json.dumps({**plain, "rank": line.rank, "text": line.text})
                    print(as_json if options.json else as_text(line), flush=True)
            shown += 1
    return 0


def _continues(folder: ExperimentFolder, ledger: Ledger, trial: int) -> bool:
    states = {result.number: result.state for result in Results(folder, folder.config, ledger).trials}
    return states[trial] in ("waiting", "running", "paused")


def _is_running(ledger: Ledger, trial: int, folder: Path) -> bool:
    """Whether the attempt with this folder runs."""
    chain = ledger.snapshot().chains[trial]
    return any(attempt.state == "running" and folder.name == f"attempt-{attempt.attempt}" for attempt in chain)
