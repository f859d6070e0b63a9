"""Installs packages with pip, with progress on one line: `install.py PYTHON ARGUMENT...`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

TICK = 1.0  # seconds between two updates on a terminal
PERIOD = 15.0  # seconds between two lines where the output is no terminal
STEPS = {
    "Collecting": "finding",
    "Downloading": "downloading",
    "Building": "building",
    "Preparing": "preparing",
    "Installing collected packages": "installing",
}


class Progress:
    """The progress line: pip's current action, the packages found so far, and the elapsed seconds."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.packages = 0
        self.step = "starting pip"
        self.on_terminal = sys.stdout.isatty()
        self.finished = threading.Event()
        self._thread = threading.Thread(target=self._show_until_finished, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finished.set()
        self._thread.join()
        if self.on_terminal:
            print("\r\033[K", end="", flush=True)

    def read(self, line: str) -> None:
        """Take one line of pip's output."""
        for start, step in STEPS.items():
            if line.startswith(start):
                rest = line[len(start) :].strip(" :")
                if step == "installing":
                    self.packages = rest.count(",") + 1
                    self.step = step
                else:
                    self.packages += step == "finding"
                    self.step = f"{step} {short(rest)}"

    def __str__(self) -> str:
        return f"  {time.monotonic() - self.began:4.0f} s  {self.packages} packages, {self.step}"

    def _show_until_finished(self) -> None:
        while not self.finished.wait(TICK if self.on_terminal else PERIOD):
            if self.on_terminal:
                print(f"\r\033[K{str(self)[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)
            else:
                print(self, flush=True)


def short(text: str) -> str:
    """Return the name and size of a file or package, without its address and the reason for it."""
    name = text.partition(" ")[0].rpartition("/")[2]
    size = re.search(r"\(\d[\d.]* [kMG]?B\)", text)
    return f"{name} {size[0]}" if size else name


def main(python: str, *arguments: str) -> int:
    """Run pip and return its exit status; print its full output if it fails."""
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *arguments]
    lines = []
    pip = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        with Progress() as progress:
            for line in pip.stdout or ():
                lines.append(line)
                progress.read(line.strip())
    except KeyboardInterrupt:  # Ctrl-C reaches pip as well
        pip.wait()
        print("Stopped. Run the same command again to continue.", flush=True)
        return 130
    if pip.wait():
        print("".join(lines), f"pip ended with exit status {pip.returncode}: {' '.join(command)}", sep="", flush=True)
    else:
        print(f"  {progress.packages} packages in {time.monotonic() - progress.began:.0f} s", flush=True)
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
