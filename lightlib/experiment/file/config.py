"""ExperimentConfig: an experiment file as frozen dataclasses, checked, with every default filled in."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import Self

from lightlib import report
from lightlib.errors import MisconfigurationException
from lightlib.experiment.file import checks
from lightlib.experiment.file.entrypoint import Entrypoint, entrypoint
from lightlib.experiment.file.environment import Environment
from lightlib.experiment.file.log_policies import DEFAULTS, LogPolicy, log_policies
from lightlib.experiment.file.masks import masked_at, still_masked, variable_of
from lightlib.experiment.file.part import Part, key
from lightlib.experiment.file.place import Place
from lightlib.experiment.file.resources import BindMount, Resources, Slurm
from lightlib.experiment.file.searcher import Searcher
from lightlib.experiment.file.storage import CheckpointStorage
from lightlib.experiment.file.training import LARGEST_SEED, Optimizations, Profiling, Reproducibility, Retention
from lightlib.experiment.file.units import Length, period

LONGEST_DESCRIPTION = 255  # characters, above which a description warns
SMALLEST_UNIT = 10  # batches, below which scheduling_unit warns
BATCH_SIZE = "global_batch_size"


def _description(value: Any, place: Place) -> str:
    text: str = checks.text("a first try")(value, place)
    if len(text) > LONGEST_DESCRIPTION:
        report.warn(f"{place.text} has {len(text)} characters. Tables show at most {LONGEST_DESCRIPTION}; shorten it.")
    return text


def _scheduling_unit(value: Any, place: Place) -> int:
    unit: int = checks.integer(1)(value, place)
    if unit < SMALLEST_UNIT:
        report.warn(
            f"{place.text} is {unit}: metrics are reported every {unit} batches, which slows training down. "
            f"Expected: at least {SMALLEST_UNIT}. Fix: {place.line(100)}"
        )
    return unit


def _records(value: Any, place: Place) -> int | None:
    return checks.integer(0)(value, place) or None


def _folder_above(value: Any, place: Place) -> str | None:
    return None if value == "" else checks.folder_name(value, place)


class ExperimentConfig(Part):
    """An experiment: a search of hyperparameters in which every trial is a fit.

    Attributes:
        name: Of its folder. Default: the name of the file.
        description: Default: none. More than 255 characters warn.
        labels: Default: none.
        workspace: A folder above, together with `project`. Default: none.
        project: A folder below `workspace`. Default: none.
        data: Free; everything below ``secrets`` is masked.
        entrypoint: The program of a trial. Default: what `fit` describes.
        fit: The contents of a `lightlib fit` file, into which hyperparameters are put by their dotted keys.
        hyperparameters: Constants and spaces, as they are written.
        searcher: How hyperparameters are chosen.
        scheduling_unit: Batches between two reports of training metrics, at least 1. Default 100.
        records_per_epoch: The records of an epoch, by which lengths in epochs are converted to batches of
            `global_batch_size`. Default None: the length of the dataset.
        max_restarts: How often a failed trial starts again. Default 5.
        log_policies: Patterns in the output of trials. Default: the labels "CUDA OOM" and "ECC Error".
        retention_policy: How long logs are kept.
        min_validation_period: The longest training without a validation. Default None: only where the searcher needs
            one.
        min_checkpoint_period: The longest training without a checkpoint. Default None: only where needed.
        perform_initial_validation: Whether a trial validates before its first step. Default False.
        checkpoint_policy: The validations that are followed by a checkpoint: ``"best"`` (default; better than all of
            the experiment so far), ``"all"`` or ``"none"``.
        checkpoint_storage: Where checkpoints are stored, and how many are kept.
        resources: Slots and memory.
        bind_mounts: Folders of the machine that each trial gets. Default: none.
        environment: Image and variables.
        reproducibility: Seeds.
        optimizations: Settings of the Trainer.
        profiling: Measurements of the machine.
        slurm: Options of SLURM.
        debug: Whether the log level is DEBUG. Default False.
        preemption_timeout: Seconds between SIGTERM and SIGKILL. Default 3600.
        places: Where each key was written; for errors, not compared.
    """

    name: str = key(checks.folder_name)
    description: str | None = key(_description, default=None)
    labels: tuple[str, ...] = key(checks.several(checks.text("baseline"), "baseline"), default=())
    workspace: str | None = key(_folder_above, default=None)
    project: str | None = key(_folder_above, default=None)
    data: Mapping[str, Any] = key(checks.mapping, default={})
    entrypoint: Entrypoint | None = key(entrypoint, default=None)
    fit: Mapping[str, Any] = key(checks.mapping, default={})
    hyperparameters: Mapping[str, Any] = key(checks.mapping, default={})
    searcher: Searcher = key(Searcher.read)
    scheduling_unit: int = key(_scheduling_unit, default=100)
    records_per_epoch: int | None = key(_records, default=None)
    max_restarts: int = key(checks.integer(0), default=5)
    log_policies: tuple[LogPolicy, ...] = key(log_policies, default=DEFAULTS)
    retention_policy: Retention = key(Retention.read, default=Retention())
    min_validation_period: Length | None = key(period, default=None)
    min_checkpoint_period: Length | None = key(period, default=None)
    perform_initial_validation: bool = key(checks.flag, default=False)
    checkpoint_policy: str = key(checks.choice("best", "all", "none"), default="best")
    checkpoint_storage: CheckpointStorage = key(CheckpointStorage.read, default=CheckpointStorage())
    resources: Resources = key(Resources.read, default=Resources())
    bind_mounts: tuple[BindMount, ...] = key(
        checks.several(BindMount.read, {"host_path": "/data", "container_path": "/data"}), default=()
    )
    environment: Environment = key(Environment.read, default=Environment())
    reproducibility: Reproducibility = key(Reproducibility.read, default=Reproducibility())
    optimizations: Optimizations = key(Optimizations.read, default=Optimizations())
    profiling: Profiling = key(Profiling.read, default=Profiling())
    slurm: Slurm = key(Slurm.read, default=Slurm())
    debug: bool = key(checks.flag, default=False)
    preemption_timeout: int = key(checks.integer(0), default=3600)
    places: Place = dataclasses.field(default=Place("", {}), compare=False, repr=False)

    ignored: ClassVar[dict[str, str]] = {
        "tensorboard_storage": "Determined has not used it for years; logs are in the folder of the experiment.",
        "data_layer": "Determined removed it; a data module reads the data.",
        "internal": "it belongs to Determined's own experiments.",
    }

    @classmethod
    def unknown(cls, place: Place, value: Any, known: Mapping[str, Any]) -> None:
        """Raise for an unknown key; one that belongs to a section is named with it."""
        sections = (Searcher, Resources, Environment, CheckpointStorage, Optimizations, Slurm, Retention)
        fields = ((part.section, name) for part in sections for name in part.known())
        meant = next((f"{section}.{name}" for section, name in fields if name == place.key), "")
        place.unknown(value, known, of="an experiment", meant=meant)

    def checked(self, place: Place) -> Self:
        for name, other in (("workspace", "project"), ("project", "workspace")):
            if getattr(self, name) is not None and getattr(self, other) is None:
                place.below(name).refuse(f"stands without {other}.", "both or neither.", f"add {other}: …")
        if self.entrypoint is None and not self.fit:
            place.refuse("has no 'entrypoint'.", "an entrypoint, or a fit.", "entrypoint: model:Classifier")
        self._check_batch_size(place)
        _check_spaces(self.hyperparameters, place.below("hyperparameters"))
        return self

    def _check_batch_size(self, place: Place) -> None:
        """Require the batch size for a class, as Determined does."""
        here = place.below("hyperparameters").below(BATCH_SIZE)
        batch_size = self.hyperparameters.get(BATCH_SIZE)
        if batch_size is None and self.entrypoint is not None and self.entrypoint.class_path:
            place.below("hyperparameters").refuse(
                f"has no {BATCH_SIZE!r}, which the class {self.entrypoint.class_path} needs.",
                "the batch size over all slots of a trial.",
                here.line(64),
            )
        if batch_size is not None and not isinstance(batch_size, dict):
            checks.integer(1)(batch_size, here)

    def where(self, name: str) -> str:
        """Return the file and line of a dotted key, or of the nearest key above it; empty for a mapping.

        Example:
            >>> from lightlib.experiment.file import read
            >>> read({"name": "a", "fit": {"trainer": {}}, "searcher": {"name": "single", "metric": "x"}}).where("fit")
            ''
        """
        return self.places.below(name).where

    @property
    def masked_secrets(self) -> tuple[str, ...]:
        """The dotted keys of secrets that are ``***``: a stored copy was read, and no environment variable has them."""
        return still_masked(self.plain())

    def require_secrets(self, section: str = "") -> None:
        """Raise if secrets are masked.

        Args:
            section: The dotted key of a section. Default: the full experiment.

        Raises:
            MisconfigurationException: A stored copy was read, and no environment variable has them.
        """
        masked = [secret for secret in self.masked_secrets if secret.startswith(section)]
        if masked:
            raise MisconfigurationException(
                f"The secrets of the experiment are masked in its folder: {', '.join(masked)}.",
                expected="their values in the environment.",
                fix=f"export {' '.join(f'{variable}=…' for variable in dict.fromkeys(map(variable_of, masked)))}",
            )

    @property
    def file_with_secrets(self) -> Path | None:
        """The file from which it was read, if it has secrets; they may also come from variables."""
        return Path(self.places.source) if self.places.source and still_masked(self.masked()) else None

    def masked(self) -> dict[str, Any]:
        """Return the experiment as plain values with ``***`` for its secrets."""
        hidden: dict[str, Any] = masked_at("", self.plain())
        return hidden

    def with_seed(self) -> ExperimentConfig:
        """Return the experiment with a seed, which is drawn if it has none."""
        if self.reproducibility.experiment_seed is not None:
            return self
        drawn = Reproducibility(experiment_seed=secrets.randbelow(LARGEST_SEED + 1))
        return dataclasses.replace(self, reproducibility=drawn)


def _check_spaces(value: Mapping[str, Any], place: Place) -> None:
    """Refuse `val` for `vals` and the reverse; the rest of a space is checked where it is parsed."""
    swapped = {"categorical": ("val", "vals"), "const": ("vals", "val")}
    for name, entry in value.items():
        if not isinstance(entry, dict):
            continue
        here, (written, right) = place.below(name), swapped.get(str(entry.get("type")), ("", ""))
        if written in entry and right not in entry:
            of = f"{here.key}, which is {entry['type']}"
            here.below(written).unknown(entry[written], (right, "type"), of=of, meant=here.below(right).key)
        _check_spaces(entry, here)
