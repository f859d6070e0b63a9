"""The experiment file: read, checked with file and line, compared, and stored without secrets."""

from __future__ import annotations

from lightlib.experiment.file.changes import Change, changed
from lightlib.experiment.file.config import ExperimentConfig
from lightlib.experiment.file.entrypoint import Entrypoint
from lightlib.experiment.file.environment import Environment, ProxyPort, RegistryAuth
from lightlib.experiment.file.log_policies import LogPolicy
from lightlib.experiment.file.place import Place
from lightlib.experiment.file.read import read, save
from lightlib.experiment.file.resources import BindMount, Device, Resources, Slurm
from lightlib.experiment.file.searcher import Searcher, Stopping
from lightlib.experiment.file.storage import CheckpointStorage
from lightlib.experiment.file.training import Optimizations, Profiling, Reproducibility, Retention
from lightlib.experiment.file.units import Length

__all__ = [
    "BindMount",
    "Change",
    "CheckpointStorage",
    "Device",
    "Entrypoint",
    "Environment",
    "ExperimentConfig",
    "Length",
    "LogPolicy",
    "Optimizations",
    "Place",
    "Profiling",
    "ProxyPort",
    "RegistryAuth",
    "Reproducibility",
    "Resources",
    "Retention",
    "Searcher",
    "Slurm",
    "Stopping",
    "changed",
    "read",
    "save",
]
