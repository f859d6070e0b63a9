"""Names of experiments and trials on the command line."""

from __future__ import annotations

import shlex
from pathlib import Path

from lightlib import translations
from lightlib.errors import MisconfigurationException, closest, nearest
from lightlib.experiment.work.folder import ExperimentFolder


def folder_of(text: str) -> ExperimentFolder:
    """Return the folder of an experiment that has begun."""
    folder = ExperimentFolder.named(text)
    if folder is not None:
        return folder
    names = ExperimentFolder.names()
    meant = closest(text, names)
    listed = f", one of {', '.join(names)}" if names else ""
    raise MisconfigurationException(
        f"There is no experiment {text!r}.{nearest(text, names)}",
        expected=f"the folder or the name of an experiment{listed}.",
        fix=f"write {shlex.quote(meant)}." if meant else "`lightlib experiment list` lists those that there are.",
    )


def trial_of(text: str) -> tuple[str, int, int | None]:
    """Return experiment, trial and attempt of ``EXPERIMENT/TRIAL[/ATTEMPT]``."""
    words = text.rstrip("/").split("/")
    numbers: list[int] = []
    while words and words[-1].isdecimal() and len(numbers) < 2:
        numbers.insert(0, int(words.pop()))
    if not numbers or not words:
        raise MisconfigurationException(
            f"{text!r} is no trial.",
            expected="EXPERIMENT/TRIAL, with the number of the trial.",
            fix=f"lightlib experiment logs {text}/0",
        )
    return "/".join(words), numbers[0], numbers[1] if len(numbers) > 1 else None


def trial_or_all(text: str) -> tuple[str, int | None]:
    """Return experiment and trial of ``EXPERIMENT[/TRIAL]``; None for all trials."""
    above, _, last = text.rstrip("/").rpartition("/")
    return (above, int(last)) if above and last.isdecimal() else (text, None)


def near(path: Path | str) -> Path | str:
    """Return a path as seen from here, if it is below; a URL of a store is returned as it is."""
    if isinstance(path, str):
        return path
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def command(*words: str) -> str:
    """Return a command line of `lightlib experiment`, under another framework's names if this process has them."""
    return shlex.join(["lightlib", *translations.start_of_commands(), "experiment", *words])


def worker_of(folder: ExperimentFolder) -> str:
    """Return the sentence that names the command of a worker."""
    return f"`{command('work', str(near(folder.path)))}` runs its trials."
