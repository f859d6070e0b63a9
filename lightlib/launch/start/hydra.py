"""Hydra: options by which a program that is run again for another rank uses the same output folder."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

_OVERRIDE = re.compile(r"(?!-)[^=]*=|~")


def original_folder() -> str | None:
    """Return the folder in which a program of `hydra.main` was started; None for another program."""
    hydra = _of_running_program()
    return None if hydra is None else str(hydra.runtime.cwd)


def with_folder(arguments: list[str]) -> list[str]:
    """Return the arguments of a program of `hydra.main` for its other ranks; those of any other one unchanged.

    They make no folder, copy no configuration, and write log files with their rank in the name. A rank of a sweep goes
    through all of its jobs, as this one does.
    """
    hydra = _of_running_program()
    if hydra is None:
        return arguments
    sweep = not _is_missing(hydra.job, "num")
    name, folder = ("sweep", hydra.sweep.dir) if sweep else ("run", hydra.runtime.output_dir)
    options = [f"hydra.{name}.dir={_quoted(os.path.join(hydra.runtime.cwd, folder))}", "hydra.output_subdir=null"]
    if "filename" in ((hydra.job_logging.get("handlers") or {}).get("file") or {}):
        file = "${hydra.runtime.output_dir}/${hydra.job.name}_rank_${oc.env:RANK}.log"
        options.append(f"hydra.job_logging.handlers.file.filename='{file}'")
    overrides = [place for place, word in enumerate(arguments) if _OVERRIDE.match(word)]
    place = overrides[-1] + 1 if overrides else len(arguments)  # next to them: Hydra takes one sequence of overrides
    return [*arguments[:place], *options, *arguments[place:]]


def _of_running_program() -> Any:
    """Return Hydra's own configuration while a function of `hydra.main` runs, else None."""
    module = sys.modules.get("hydra.core.hydra_config")
    if module is None or not module.HydraConfig.initialized():
        return None
    hydra = module.HydraConfig.get()
    return None if _is_missing(hydra.runtime, "output_dir") else hydra  # as with Hydra's compose


def _is_missing(config: Any, key: str) -> bool:
    return bool(sys.modules["omegaconf"].OmegaConf.is_missing(config, key))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\${")
    return f"'{escaped}'"
