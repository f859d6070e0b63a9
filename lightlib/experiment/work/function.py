"""search: an experiment of which each trial is a call of a Python function."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightlib.errors import MisconfigurationException, shown
from lightlib.experiment.current import CurrentTrial, is_trial
from lightlib.experiment.job import FUNCTION
from lightlib.experiment.parameters import Parameter
from lightlib.experiment.work.folder import ROOT
from lightlib.experiment.work.handle import Experiment, run

Result = float | Mapping[str, float] | None


def search(
    function: Callable[[CurrentTrial], Result],
    hyperparameters: Mapping[str, Any],
    *,
    metric: str | Sequence[str] = "loss",
    searcher: str = "random",
    max_trials: int | None = None,
    smaller_is_better: bool | Sequence[bool] = True,
    seed: int | None = None,
    name: str | None = None,
    slots: int | str = "auto",
    root: str | os.PathLike[str] = ROOT,
    storage: str | None = None,
    wait: bool = True,
    **more: Any,
) -> Experiment:
    """Search the hyperparameters of a function: each trial is a call of it, in a process of its own.

    The folder of its file is copied for the trials, so that it may be edited meanwhile. The same call continues an
    experiment that was stopped.

    Args:
        function: Of a module; it gets the trial, and returns the metric (several: by name), or reports it with
            `trial.report` and returns None.
        hyperparameters: By name: constants, and spaces such as ``Log(-4, -1)`` or as mappings of a file.
        metric: The name, or names, of what is returned or reported. Default ``"loss"``.
        searcher: The name of a searcher. Default ``"random"``.
        max_trials: How many trials; needed by most searchers.
        smaller_is_better: Whether less is better, for each metric. Default True.
        seed: Of the experiment. Default: a random one.
        name: Of the experiment. Default: that of the function.
        slots: How many GPUs or cores, or which: ``"0,1,3"``. Default: all.
        root: The folder of all experiments.
        storage: As in `run`.
        wait: False returns at once; a worker runs in the background.
        more: Further keys of the section ``searcher``, such as ``max_length`` or ``options``.

    Raises:
        MisconfigurationException: The function cannot be imported by another process, or a key is wrong.
        LightlibError: The worker has ended before the experiment.
    """
    target, context = _importable(function)
    plain = {
        key: parameter.plain() if isinstance(parameter, Parameter) else parameter
        for key, parameter in hyperparameters.items()
    }
    options = {"name": searcher, "metric": metric, "smaller_is_better": smaller_is_better, "max_trials": max_trials}
    names = [metric] if isinstance(metric, str) else list(metric)
    options["metric"] = names[0] if len(names) == 1 else names
    file = {
        "name": name or function.__name__,
        "entrypoint": ["python3", "-m", FUNCTION, target],
        "hyperparameters": plain,
        "searcher": {**{key: option for key, option in options.items() if option is not None}, **more},
        **({} if seed is None else {"reproducibility": {"experiment_seed": seed}}),
    }
    return run(file, slots=slots, context=context, root=root, storage=storage, wait=wait)


def _importable(function: Callable[..., object]) -> tuple[str, Path]:
    """Return ``"module:name"`` of a function, and the folder from which other processes import the module."""
    if is_trial():
        raise MisconfigurationException(
            "search() was called by a trial, which imports the file of its function.",
            expected="a file that can be imported without an effect.",
            fix="if __name__ == '__main__': around the call of search.",
        )
    qualified, module = getattr(function, "__qualname__", "<"), getattr(function, "__module__", None)
    loaded = sys.modules.get(str(module))
    file = getattr(loaded, "__file__", None)
    if "<" in qualified or file is None:
        raise MisconfigurationException(
            f"search({shown(function)}): other processes cannot import it.",
            expected="a function with a name of its own at the top of a file.",
            fix="def objective(trial): … in objective.py, and from objective import objective.",
        )
    path = Path(file).absolute()
    if module == "__main__":
        return f"{path.stem}:{qualified}", path.parent
    depth = str(module).count(".") + (path.stem == "__init__")
    return f"{module}:{qualified}", path.parents[depth]
