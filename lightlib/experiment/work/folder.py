"""The folder of an experiment: its file, a copy of the user's code, and a folder for each attempt."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from lightlib import report
from lightlib.checkpoint.storage import filesystem
from lightlib.errors import MisconfigurationException
from lightlib.experiment.file import ExperimentConfig, changed, read, save
from lightlib.experiment.store import Store
from lightlib.experiment.work.database import Database

ROOT = "experiments"
FILE, TRIALS = "experiment.yaml", "trials"
WEIGHTS = "first.ckpt"
CONTEXT = ".context"  # hidden, so that pytest does not collect the copies of tests
IGNORED = ".detignore"
_NEW = ".new-"  # begins the name of a folder that is being made, or that a killed process has left
LARGEST_CONTEXT = 95 * 2**20  # bytes, above which a context warns
_NEVER = (".git", "__pycache__", ".venv", "venv", ".mypy_cache", ".pytest_cache", ".ipynb_checkpoints", "node_modules")


class ExperimentFolder:
    """Where an experiment is: ``ROOT/[WORKSPACE/PROJECT/]NAME``.

    Args:
        path: The folder.

    Attributes:
        path: It, absolute.
        context: The copy of the user's code that trials import.
        weights: The copy of the checkpoint with the first weights of each trial, if there is one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self.context, self.weights = self.path / CONTEXT, self.path / WEIGHTS

    @classmethod
    def of(cls, config: ExperimentConfig, root: str | os.PathLike[str] = ROOT) -> ExperimentFolder:
        """Return the folder of an experiment, which may not exist yet."""
        above = (config.workspace, config.project) if config.workspace and config.project else ()
        return cls(Path(root).joinpath(*above, config.name))

    @classmethod
    def named(cls, name: str | os.PathLike[str]) -> ExperimentFolder | None:
        """Return the experiment that has begun in a folder, or in one of this name below ``experiments``; else None."""
        folders = (cls(place) for place in (Path(name), Path(ROOT) / name))
        return next((folder for folder in folders if folder.exists), None)

    @staticmethod
    def names() -> list[str]:
        """Return the folders of the experiments below ``experiments``, by which `named` finds them."""
        return [str(path.parent.relative_to(ROOT)) for path in sorted(Path(ROOT).glob(f"**/{FILE}"))]

    @property
    def exists(self) -> bool:
        """Whether the experiment has begun."""
        return (self.path / FILE).is_file()

    @property
    def config(self) -> ExperimentConfig:
        """The experiment as it is stored."""
        return read(self.path / FILE)

    def begin(
        self,
        config: ExperimentConfig,
        context: str | os.PathLike[str],
        weights: str | Path | None = None,
        database: Database | None = None,
    ) -> ExperimentConfig:
        """Store an experiment with its code, or compare it with the stored one; return it with the stored seed.

        Secrets are in what is returned, and masked in what is stored.

        Args:
            config: The experiment.
            context: The folder of the user's code.
            weights: The checkpoint with the first weights of each trial. Default: the module initialises them.
            database: With the ledger. Default: the ledger is in the folder.

        Raises:
            ConfigError: The experiment has begun with other settings, which may not change.
            MisconfigurationException: The folder has files of something else, or the experiment has another database.
        """
        if not self.exists:
            self._create(config.with_seed(), Path(context), weights, database)
        elif database is not None:
            self._require_same(database)
        stored = self.config
        changes = changed(stored, config)
        if changes:
            report.info("\n".join(f"{change.key}: {change.new!r} instead of {change.old!r}" for change in changes))
        begun = _with_seed_of(config, stored.reproducibility.experiment_seed)
        if changes:
            save(begun, self.path / FILE)
        return begun

    def extend(self, max_trials: int) -> None:
        """Let an experiment that has begun have more trials.

        Raises:
            ConfigError: It has as many, or its searcher cannot have more.
        """
        stored = self.config
        place = stored.places.below("searcher.max_trials")
        if stored.searcher.has_rungs or stored.searcher.max_trials is None:
            name = stored.searcher.name or stored.searcher.class_path
            place.refuse(
                f"cannot grow: the trials of {name!r} follow from its other settings.",
                "a searcher of which the number of trials is free, such as random.",
                "begin another experiment, with another `name:`.",
            )
        if max_trials <= stored.searcher.max_trials:
            place.refuse(
                f"is {stored.searcher.max_trials}, and {max_trials} is not more.",
                "a larger number of trials.",
                f"--max-trials {2 * stored.searcher.max_trials}",
            )
        new = read(self.path / FILE, [f"searcher.max_trials={max_trials}"])
        changed(stored, new, continued=True)
        save(new, self.path / FILE)

    def attempt(self, trial: int, attempt: int) -> Path:
        """Return the folder of an attempt."""
        return self.path / TRIALS / f"{trial:04d}" / f"attempt-{attempt}"

    def attempts(self, trial: int) -> list[Path]:
        """Return the folders of the attempts of a trial that have begun, in order."""
        paths = (self.path / TRIALS / f"{trial:04d}").glob("attempt-*")
        return sorted(paths, key=lambda path: int(path.name.rpartition("-")[2]))

    def _require_same(self, database: Database) -> None:
        present = Database.of(self.path)
        if present is None or present.url != database.url:
            place = "its folder" if present is None else repr(present.url)
            raise MisconfigurationException(
                f"The storage is {database.url!r}, and the ledger of the experiment is in {place}.",
                expected="the storage with which it began.",
                fix="the command without --storage and without LIGHTLIB_STORAGE.",
            )

    def _create(
        self, config: ExperimentConfig, context: Path, weights: str | Path | None, database: Database | None
    ) -> None:
        there = [path.name for path in self.path.iterdir()] if self.path.exists() else []
        foreign = [name for name in there if not name.startswith(_NEW)]
        if foreign and CONTEXT not in there:
            names = ", ".join(sorted(foreign)[:5])
            raise MisconfigurationException(
                f"{str(self.path)!r} is not the folder of an experiment; it has {names}.",
                expected="an empty folder, or one that does not exist.",
                fix="another `name:` in the experiment file.",
            )
        self.path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.path, prefix=_NEW) as folder:
            new = Path(folder)
            if not self.context.exists():
                copy_context(context, new / CONTEXT, self.path, config.file_with_secrets)
                _move(new / CONTEXT, self.context)
            if weights is not None and not self.weights.exists():
                filesystem.copy(weights, new / WEIGHTS)
                _move(new / WEIGHTS, self.weights)
            if database is not None and Database.of(self.path) is None:
                database.save(self.path)
            Store.begin(self.path, new, config)
            file = new / FILE
            save(config, file)
            with suppress(FileExistsError):  # of several processes that begin at once, one draws the seed
                os.link(file, self.path / FILE)


def _move(new: Path, target: Path) -> None:
    try:
        new.rename(target)
    except OSError:
        if not target.exists():  # else another process has just made it
            raise


def _with_seed_of(config: ExperimentConfig, seed: int | None) -> ExperimentConfig:
    section = dataclasses.replace(config.reproducibility, experiment_seed=seed)
    return dataclasses.replace(config, reproducibility=section)


def copy_context(source: Path, target: Path, experiment: Path, secret: Path | None = None) -> None:
    """Copy the user's code, except experiments and the files that `.detignore` names.

    Args:
        source: The folder of the code.
        target: The copy, which must not exist.
        experiment: The folder of the experiment; the one above it is not copied.
        secret: The experiment file, if it has secrets; it is not copied.
    """
    patterns = [*_NEVER, *_patterns(source / IGNORED)]
    above = experiment.parent.absolute()
    hidden = secret and secret.resolve()
    size = 0

    def ignored(folder: str, names: list[str]) -> set[str]:
        nonlocal size
        here = Path(folder)
        out = set()
        for name in names:
            path = here / name
            inside = path.absolute() in (above, experiment) or path.resolve() == hidden
            if inside or _matches(path.relative_to(source), path.is_dir(), patterns) or not _is_plain(path):
                out.add(name)
            elif path.is_file():
                size += path.stat().st_size
        return out

    shutil.copytree(source, target, ignore=ignored)
    if size > LARGEST_CONTEXT:
        report.warn(
            f"The code of the experiment has {size / 2**20:.0f} MB. Expected: at most {LARGEST_CONTEXT // 2**20} MB. "
            f"Fix: name data and results in {IGNORED}."
        )


def _is_plain(path: Path) -> bool:
    return path.is_dir() or path.is_file()


def _patterns(path: Path) -> list[str]:
    if not path.is_file():
        return []
    lines = (line.strip() for line in path.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _matches(path: Path, is_folder: bool, patterns: Iterable[str]) -> bool:
    for pattern in patterns:
        glob = pattern.rstrip("/")
        if pattern.endswith("/") and not is_folder:
            continue
        if fnmatch.fnmatch(path.name, glob) or fnmatch.fnmatch(path.as_posix(), glob.lstrip("/")):
            return True
    return False
