"""The command line for checkpoints: inspect, verify, convert, consolidate, export, publish."""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.tools import verbs
from lightlib.checkpoint.tools.inspection import inspect, plural, shown_name, size_text
from lightlib.checkpoint.tools.publish import publish
from lightlib.errors import CheckpointError, CheckpointWriteError, LightlibError, MisconfigurationException
from lightlib.report import LightlibWarning

_EXAMPLES = """examples:
  {program} inspect checkpoints/last.ckpt
  {program} inspect s3://bucket/run/last.ckpt --json
  {program} verify checkpoints/*.ckpt
  {program} convert last.ckpt last-directory
  {program} consolidate last-directory last.ckpt
  {program} export last.ckpt weights.safetensors --strip model. --dtype bfloat16
  {program} publish best.ckpt released/classifier

exit codes: 0 done; 1 missing, damaged, refused or not writable; 2 wrong usage.
A checkpoint is a file, also Lightning's, or a directory; inspect and verify take .safetensors too. Paths and URLs."""


_FLAGS = {
    "json": "print JSON",
    "overwrite": "replace an existing target, in one step",
    "tensors": "list all weights with their shapes and dtypes",
    "trust": "also read a file with Python objects; reading it may run ANY code that the file names",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code: 0 done, 1 damaged or failed, 2 wrong usage."""
    program = "python -m lightlib.checkpoint"
    parser = argparse.ArgumentParser(
        prog=program,
        description="Inspect and verify checkpoints, and convert them to other formats.",
        epilog=_EXAMPLES.format(program=program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_commands(parser.add_subparsers(title="commands", metavar="COMMAND", required=True))
    try:
        options = parser.parse_args(argv)
    except SystemExit as end:  # argparse has printed the error or the help
        return end.code if isinstance(end.code, int) else 2
    return run(options)


def run(options: argparse.Namespace) -> int:
    """Run the parsed command; return the exit code. Errors are printed without a traceback."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", LightlibWarning)
        warnings.showwarning = lambda message, *_, **__: print(f"Warning: {message}", file=sys.stderr)  # noqa: T201
        try:
            code: int = options.command(options)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, for instance `head`, has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except (CheckpointError, CheckpointWriteError) as error:
            needs_trust = "trust=True" in str(error) and hasattr(options, "trust")
            return _print_error(f"{error}\n  Here: --trust" if needs_trust else error, 1)
        except MisconfigurationException as error:
            return _print_error(error, 2)
        except (LightlibError, OSError, MemoryError) as error:
            return _print_error(error, 1)
        except KeyboardInterrupt:
            return _print_error("interrupted; no half-written file was left behind.", 130)
        return code


def _print_error(error: object, code: int) -> int:
    text = str(error) or type(error).__name__
    lines = [shown_name(line) for line in text.splitlines()]
    print("Error: " + "\n".join(lines), file=sys.stderr)  # noqa: T201  the command's output
    return code


def add_commands(commands: Any) -> None:
    """Add the commands to the result of `ArgumentParser.add_subparsers`; `run` runs the parsed one."""
    parser = _command(commands, "inspect", _inspect, "show the content of a checkpoint without reading its tensors")
    parser.add_argument("path", help="a file, a directory, or a .safetensors file")
    _add_flags(parser, "json", "tensors", "trust")

    parser = _command(commands, "verify", _verify, "read checkpoints from end to end and compare their checksums")
    parser.add_argument("paths", nargs="+", metavar="path", help="files or directories")

    parser = _command(
        commands, "convert", _writes(verbs.convert), "write a checkpoint as a file, a directory, or safetensors"
    )
    parser.add_argument("source", help="a file, also Lightning's, or a directory")
    parser.add_argument("target", help="where to write; NAME.safetensors for only the weights")
    parser.add_argument(
        "--to", dest="format", choices=verbs.FORMATS, help="default: file for a directory, directory for a file"
    )
    parser.add_argument("--prefix", default="", help="put PREFIX in front of the names of the weights")
    _add_flags(parser, "overwrite", "trust")

    parser = _command(commands, "consolidate", _writes(verbs.consolidate), "write a checkpoint directory as one file")
    parser.add_argument("directory", help="a checkpoint directory")
    parser.add_argument("file", help="where to write")
    _add_flags(parser, "overwrite")

    parser = _command(commands, "export", _writes(verbs.export), "write only the weights as safetensors or HDF5")
    parser.add_argument("source", help="a file, also Lightning's, or a directory")
    parser.add_argument("target", help="NAME.safetensors or NAME.h5; with --layout any other name")
    parser.add_argument("--strip", default="", metavar="PREFIX", help="remove PREFIX from the names that begin with it")
    parser.add_argument("--dtype", choices=sorted(verbs.DTYPES), help="of floating-point weights; default: unchanged")
    parser.add_argument("--layout", choices=["determined"], help="write a checkpoint for another program instead")
    _add_flags(parser, "overwrite", "trust")

    parser = _command(commands, "publish", _publish, "write the weights to a file with its hash in its name")
    parser.add_argument("source", help="a file, also Lightning's, or a directory")
    parser.add_argument("target", nargs="?", help="the path without hash and ending; default: that of the source")
    parser.add_argument("--keys", nargs="+", default=["state_dict"], metavar="KEY", help="the entries to keep")
    _add_flags(parser, "trust")


def _command(commands: Any, name: str, function: Any, purpose: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.", allow_abbrev=False
    )
    parser.set_defaults(command=function)
    return parser


def _add_flags(parser: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        parser.add_argument(f"--{name}", action="store_true", help=_FLAGS[name])


def _inspect(options: argparse.Namespace) -> int:
    inspection = inspect(options.path, trust=options.trust)
    if options.json:
        print(json.dumps(inspection.as_dict(), indent=2))  # noqa: T201  the command's output
        return 0
    print(inspection)  # noqa: T201
    if options.tensors:
        for name, info in inspection.tensors.items():
            print(f"  {shown_name(name)}  {info.dtype} {list(info.shape)}")  # noqa: T201
    return 0


def _verify(options: argparse.Namespace) -> int:
    code = 0
    for path in options.paths:
        try:
            print(verbs.verify(path))  # noqa: T201
        except (CheckpointError, OSError) as error:
            code = _print_error(error, 1)
    return code


def _publish(options: argparse.Namespace) -> int:
    path = publish(options.source, options.target, keys=options.keys, trust=options.trust)
    print(f"{shown_name(path)}: written, {size_text(filesystem.size_of(path))}.")  # noqa: T201
    return 0


def _writes(verb: Callable[..., None]) -> Callable[[argparse.Namespace], int]:
    """Return a command that calls `verb` with the options of its parameters' names; the second one is the target."""
    parameters = list(signature(verb).parameters)

    def command(options: argparse.Namespace) -> int:
        verb(**{name: getattr(options, name) for name in parameters})
        path = getattr(options, parameters[1])
        written = inspect(path)
        tensors = sum(part.tensors for part in written.parts)
        print(f"{shown_name(path)}: written, {size_text(written.bytes)}, {plural(tensors, 'tensor')}.")  # noqa: T201
        return 0

    return command
