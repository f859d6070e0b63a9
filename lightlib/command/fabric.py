"""`lightlib fabric run`: run a script that has a Fabric, on the devices of the options."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from lightlib.errors import MisconfigurationException
from lightlib.fabric.fabric_call import LAUNCHED_BY_COMMAND, OPTIONS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand and its options."""
    commands = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND", title="commands")
    script = commands.add_parser("run", help="run a script that has a Fabric", allow_abbrev=False)
    script.add_argument("--accelerator", help="cpu, gpu, cuda, mps, auto, …")
    script.add_argument("--strategy", help="ddp, fsdp, hsdp, zero1, tensor, model_parallel, deepspeed, …")
    script.add_argument("--devices", default="1", help="a number per machine, indices (0,1), or auto; default: 1")
    script.add_argument("--num-nodes", "--num_nodes", type=int, default=1, help="number of machines; default: 1")
    script.add_argument("--node-rank", "--node_rank", type=int, default=0, help="number of this machine; default: 0")
    script.add_argument("--main-address", "--main_address", default="127.0.0.1", help="host of machine 0")
    script.add_argument("--main-port", "--main_port", type=int, default=29400, help="a free port there; default: 29400")
    script.add_argument("--precision", help="32-true, bf16-mixed, 16-mixed, bf16-true, 16-true, 64-true, …")
    script.add_argument("script", metavar="SCRIPT", help="a Python script")
    script.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="arguments of the script")


def run(arguments: argparse.Namespace) -> int:
    """Run the script in place of this process, and return its exit status where a process cannot be replaced.

    Raises:
        MisconfigurationException: There is no such script, or the number of this machine is out of range.
    """
    script = arguments.script
    if not Path(script).is_file():
        raise MisconfigurationException(
            f"lightlib fabric run {script}: there is no such file.",
            expected="a Python script that has a Fabric.",
            fix="correct the path; options stand before it, and arguments of the script after it.",
        )
    if not 0 <= arguments.node_rank < arguments.num_nodes:
        raise MisconfigurationException(
            f"lightlib fabric run got --node-rank={arguments.node_rank} and --num-nodes={arguments.num_nodes}.",
            expected=f"--node-rank from 0 to {arguments.num_nodes - 1}.",
            fix=f"--num-nodes={arguments.node_rank + 1}, or count machines from 0.",
        )
    command = [sys.executable, script, *arguments.arguments]
    return _replace_this_process(command, {**os.environ, **variables(arguments)})


def variables(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the variables by which the options reach the Fabric of the script.

    Example:
        >>> parser = argparse.ArgumentParser()
        >>> add_arguments(parser)
        >>> variables(parser.parse_args(["run", "--devices", "2", "train.py"]))["LIGHTLIB_DEVICES"]
        '2'
    """
    options = {name: getattr(arguments, name) for name in OPTIONS}
    environment = {f"LIGHTLIB_{name.upper()}": str(value) for name, value in options.items() if value is not None}
    if arguments.num_nodes > 1:
        environment["NODE_RANK"] = str(arguments.node_rank)
        environment["MASTER_ADDR"], environment["MASTER_PORT"] = arguments.main_address, str(arguments.main_port)
    return {**environment, LAUNCHED_BY_COMMAND: "1"}


def _replace_this_process(command: list[str], environment: dict[str, str]) -> int:
    sys.stdout.flush()
    if os.name == "posix":
        os.execve(command[0], command, environment)  # noqa: S606  the user's script, with no shell
    return subprocess.call(command, env=environment)  # noqa: S603  likewise
