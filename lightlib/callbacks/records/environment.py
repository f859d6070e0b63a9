"""EnvironmentRecord: how a run was made: machine, versions, commit, command and callbacks."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from lightlib.callbacks.callback import Callback
from lightlib.errors import wrong_type
from lightlib.loggers.media.items import Text
from lightlib.report import MASK, info, is_secret, without_passwords
from lightlib.version import __version__

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "PL_GLOBAL_SEED")
_PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "LIGHTLIB_", "SLURM_JOB_")
_OPTION = re.compile(r"--?([\w.-]+)(?:=(.*))?", re.DOTALL)
_SHORTEST_SECRET = 6  # shorter values, such as "1", may be in any text


class EnvironmentRecord(Callback):
    """Records how a run was made, once when `fit` begins, on rank zero.

    The record is text: the platform, the versions of Python, torch and lightlib, the devices, the strategy, precision
    and processes, the command line and working directory, the git commit and whether files differ from it, variables of
    the environment that change the computation, and the callbacks in the order of their calls. It is printed, and all
    loggers that record text get it as ``environment`` (CSVLogger as a file in ``media/environment``). A resumed run
    records its environment as well, at the step at which it begins.

    Passwords and tokens are masked: in options such as ``--hf_token``, in URLs with a password, and wherever the value
    of a variable of the environment with such a name appears.

    Args:
        verbose: Whether to print it. Default: True.
        variables: Names of further variables of the environment to record. Default: none.

    Raises:
        ArgumentTypeError: `variables` is not a list of names.

    Example:
        >>> import lightlib as L
        >>> trainer = L.Trainer(callbacks=[EnvironmentRecord(variables=["MY_CLUSTER"])])
    """

    def __init__(self, verbose: bool = True, variables: Sequence[str] = ()) -> None:
        super().__init__()
        if isinstance(variables, str) or not all(isinstance(name, str) for name in variables):
            raise wrong_type("EnvironmentRecord", "variables", variables, "a list of names", '["MY_VARIABLE"]')
        self.verbose, self.variables = verbose, tuple(variables)

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        if not trainer.is_global_zero:
            return
        text = self.text(trainer)
        if self.verbose:
            info(text)
        trainer.log_media("environment", Text(text))

    def text(self, trainer: Trainer) -> str:
        """Return the record of a run."""
        facts = {
            "Platform": platform.platform(),
            "Python": f"{platform.python_version()} ({sys.executable})",
            "torch": f"{torch.__version__}, CUDA {torch.version.cuda or 'not built in'}",
            "lightlib": __version__,
            "Devices": ", ".join(_device(device) for device in trainer.devices),
            "Processes": f"{trainer.world_size}, strategy {type(trainer.strategy).__name__}",
            "Precision": trainer.precision,
            "Deterministic": torch.are_deterministic_algorithms_enabled(),
            "Directory": os.getcwd(),
            "Command": " ".join(without_secrets(sys.argv)),
            "Git": _git() or "no commit",
            **{f"${name}": os.environ[name] for name in self._names() if not is_secret(name, os.environ[name])},
        }
        width = max(map(len, facts))
        lines = [f"  {name:{width}}  {value}" for name, value in facts.items()]
        calls = [f"  {number}. {callback!r}" for number, callback in enumerate(trainer.callbacks, 1)]
        text = "\n".join(["Environment", *lines, "Callbacks in the order of their calls", *(calls or ["  none"])])
        return _without_values(text, os.environ)

    def _names(self) -> Iterable[str]:
        variables = {*_VARIABLES, *self.variables}
        return sorted(name for name in os.environ if name in variables or name.startswith(_PREFIXES))


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """Return the words of a command line, with the values of secret options masked.

    Example:
        >>> without_secrets(["train.py", "--lr=1", "--model.api_key=abc", "--hf_token", "xyz", "https://me:pw@host/x"])
        ['train.py', '--lr=1', '--model.api_key=***', '--hf_token', '***', 'https://me:***@host/x']
    """
    words: list[str] = []
    name = ""  # of an option; the next word is its value
    for word in arguments:
        option = _OPTION.fullmatch(word)
        if option is None:
            words.append(MASK if name and _is_secret(name, word) else without_passwords(word))
            name = ""
        elif option[2] is None:
            words.append(word)
            name = option[1]
        else:
            shown = MASK if _is_secret(option[1], option[2]) else without_passwords(option[2])
            words.append(word[: option.start(2)] + shown)
            name = ""
    return words


def _is_secret(name: str, word: str) -> bool:
    """Whether a word of the command line must not be shown; a number may be one of tokens to generate."""
    return is_secret(name, 0 if word.isdigit() else word)


def _without_values(text: str, variables: Mapping[str, str]) -> str:
    """Mask the values of secret variables, wherever they appear."""
    for name, value in variables.items():
        if len(value) >= _SHORTEST_SECRET and is_secret(name, value):
            text = text.replace(value, MASK)
    return without_passwords(text)


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({platform.processor() or platform.machine()})" if device.type == "cpu" else str(device)


def _git() -> str:
    """Return the commit of the program's folder, and whether files differ from it; "" outside of a repository.

    A program of an installed package, such as `lightlib` or `torchrun`, is run on the code of the working directory.
    """
    program: Any = getattr(sys.modules.get("__main__"), "__file__", None)
    folder = os.path.dirname(os.path.abspath(program or os.path.join(os.getcwd(), "-c")))
    if folder.startswith(os.path.join(os.path.abspath(sys.prefix), "")):
        folder = os.getcwd()

    def run(*words: str) -> str:
        call = ["git", "-C", folder, *words]
        done = subprocess.run(  # noqa: S603  git, with words of this file
            call, capture_output=True, text=True, timeout=10, check=True, env=variables
        )
        return done.stdout.strip()

    variables = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        commit = run("rev-parse", "HEAD")
        changed = run("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{commit} with changes in {len(changed.splitlines())} files" if changed else commit
