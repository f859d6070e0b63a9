"""Draws docs/images/run.svg and killed.svg: the terminal after runs of two examples.

python scripts/picture_of_a_run.py               run the examples in a terminal, and draw the last screens
python scripts/picture_of_a_run.py --show        print the screens instead

The output is real: the examples run in a pseudo-terminal, and their output is drawn. Only the name of the temporary
folder in which they ran is replaced by ~.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
# The commands of each picture, run one after the other in one folder.
PICTURES = {
    "run": ["examples/digits.py"],
    "killed": [
        "examples/killed.py",
        "examples/killed.py --folder killed --kill_at 50",
        "examples/killed.py --folder killed",
    ],
}
COLUMNS, ROWS = 100, 50
FOLDER_AS = "~"
# Sequences of a progress bar: colours, cursor up, erase the line; further ones that begin with ESC are left out.
CONTROL = re.compile(r"\x1b\[(?P<number>[0-9;?]*)(?P<kind>[A-Za-z])|\r\n|\r|\n")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--show", action="store_true", help="print the screens instead of drawing them")
    options = parser.parse_args(arguments)
    for name, commands in PICTURES.items():
        code, lines = session(commands)
        if code:
            print("\n".join(lines), file=sys.stderr)
            return code
        if options.show:
            print("\n".join(lines))
        else:
            (IMAGES / f"{name}.svg").write_text(svg(lines, f"python {commands[0]}"), encoding="utf-8")
    return 0


def session(commands: list[str]) -> tuple[int, list[str]]:
    """Run commands in one folder, and return the exit code and the lines that the terminal shows then.

    A command that kills itself is followed by the word that a shell prints, and does not count as failed.
    """
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for command in commands:
            script, *arguments = command.split()
            code, output = in_a_terminal([sys.executable, str(ROOT / script), *arguments], folder)
            if len(commands) > 1:
                lines += ["", f"\x1b[1m$ python {command}\x1b[0m"] if lines else [f"\x1b[1m$ python {command}\x1b[0m"]
            lines += screen(output.replace(os.path.realpath(folder), FOLDER_AS).replace(folder, FOLDER_AS))
            if code == -signal.SIGKILL:
                lines.append("Killed")
            elif code:
                return code, lines
    return 0, lines


def in_a_terminal(command: list[str], folder: str) -> tuple[int, str]:
    """Run `command` in `folder` in a terminal with colours; return its exit code and its output."""
    quiet = {"NO_COLOR", "CI", "FORCE_COLOR"}
    environment = {name: value for name, value in os.environ.items() if name not in quiet}
    environment |= {
        "TERM": "xterm-256color",
        "COLUMNS": str(COLUMNS),
        "LINES": str(ROWS),
        "PYTHONPATH": str(ROOT),
        "PYTHONIOENCODING": "utf-8",
    }
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    ) as process:
        os.close(theirs)
        written = b""
        try:
            while chunk := os.read(ours, 65536):
                written += chunk
        except OSError:  # Linux signals a closed terminal like this
            pass
    os.close(ours)
    return process.returncode, written.decode("utf-8", errors="replace")


def screen(output: str) -> list[str]:
    r"""Return the lines that a terminal shows after `output`, with their colours as escape sequences.

    Example:
        >>> screen("one\r\ntwo\r\x1b[2K\x1b[1A\x1b[2K1\r\n2")
        ['1', '2']
    """
    lines, row, position = [""], 0, 0
    for match in CONTROL.finditer(output):
        lines[row] += output[position : match.start()]
        position = match.end()
        text, kind = match.group(), match["kind"]
        if kind == "m":
            lines[row] += text
        elif kind == "A":
            row = max(0, row - int(match["number"] or 1))
        elif kind == "K":
            lines[row] = ""
        elif text in ("\n", "\r\n"):
            row += 1
            lines += [""] * (row + 1 - len(lines))
    lines[row] += output[position:]
    while lines and not re.sub(r"\x1b\[[0-9;]*m", "", lines[-1]).strip():
        lines.pop()
    return lines


def svg(lines: list[str], title: str) -> str:
    """Return a picture of a terminal that shows `lines`. It is self-contained."""
    from rich.console import Console  # optional: rich
    from rich.text import Text  # optional: rich

    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, color_system="truecolor", force_terminal=True)
        for line in lines:
            console.print(Text.from_ansi(line), soft_wrap=False)
    drawn = console.export_svg(title=title)
    return re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)


if __name__ == "__main__":
    sys.exit(main())
