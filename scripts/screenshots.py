"""Draws docs/images/cli-*.svg: output of the command `lightlib`, as pictures of a terminal.

python scripts/screenshots.py                    draw all pictures
python scripts/screenshots.py --only fit-help    draw this one (repeat it for more)
python scripts/screenshots.py --show             print the output instead of drawing it
python scripts/screenshots.py --check            fail if a picture shows something else than the command prints now

The output is real: each command runs in a pseudo-terminal, in a temporary folder that is shown as ~/project. What
differs from run to run or from machine to machine (seconds, versions, devices) is written as …, as is the rest of long
lists of classes, or, where it is most of a picture, the picture is left out of --check.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if not __package__:
    sys.path.insert(0, str(ROOT))

from scripts.picture_of_a_run import in_a_terminal, screen  # noqa: E402  the folder has to be known first

IMAGES = ROOT / "docs" / "images"
COLUMNS = 100
FOLDER_AS = "~/project"
INDENTED = re.compile(
    r'x="(?P<x>[\d.]+)"(?P<between>[^>]*?)textLength="(?P<length>[\d.]+)"(?P<after>[^>]*)>'
    r"(?P<spaces>(?:&#160;)+)(?P<text>[^<]+)<"
)
BOLD_PROMPT = "\x1b[1;32m$\x1b[0m \x1b[1m{}\x1b[0m"


@dataclass(frozen=True)
class Picture:
    """A command and the part of its output that is shown."""

    command: str
    """Shown at the prompt, and run."""
    files: dict[str, str] = field(default_factory=dict)
    """What is written first, by path."""
    before: tuple[str, ...] = ()
    """Commands that run first, unseen."""
    show: tuple[str, ...] = ()
    """Files that are shown above, as `cat` shows them."""
    lines: int = 60
    """Of a longer output only so many are shown."""
    stable: bool = True
    """Whether the command prints the same everywhere and always."""
    hidden: str = ""
    """Names of rows whose values are not shown: a regular expression."""
    columns: int = COLUMNS
    since: str = ""
    """Only the output from the line that begins so is shown."""
    figures: bool = False
    """Whether its times are what it shows, so that they are not masked."""


SLOW_DATA = """import time
import torch
import lightlib


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        time.sleep(0.0005)
        return torch.rand(64)


class Net(lightlib.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))

    def training_step(self, batch, batch_idx):
        loss = (self.layers(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


trainer = lightlib.Trainer(max_epochs=4, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Net(), torch.utils.data.DataLoader(Slow(), batch_size=4))
"""
PROJECT = ("lightlib init",)
FIT = "lightlib fit --config config.yaml"
PICTURES = {
    "help": Picture("lightlib --help"),
    "fit-help": Picture("lightlib fit --help"),
    "class-help": Picture("lightlib fit --trainer.callbacks.help EarlyStopping"),
    "misspelt-key": Picture(
        f"{FIT} --config longer.yaml",
        files={"longer.yaml": "trainer:\n  max_epoch: 50\n"},
        before=PROJECT,
        show=("longer.yaml",),
    ),
    "wrong-type": Picture(
        f"{FIT} --config longer.yaml",
        files={"longer.yaml": "trainer:\n  max_epochs: fifty\n"},
        before=PROJECT,
        show=("longer.yaml",),
    ),
    "misspelt-class": Picture(
        f"{FIT} --config stop.yaml",
        files={
            "stop.yaml": "trainer:\n  callbacks:\n    - class_path: EarlyStoping\n      init_args: {monitor: loss}\n"
        },
        before=PROJECT,
        show=("stop.yaml",),
    ),
    "broken-yaml": Picture(
        f"{FIT} --config longer.yaml",
        files={"longer.yaml": "trainer:\n  max_epochs: 50\n  callbacks: [EarlyStopping\nmodel:\n  width: 32\n"},
        before=PROJECT,
        show=("longer.yaml",),
    ),
    "init": Picture("lightlib init shapes"),
    "doctor": Picture("lightlib doctor", stable=False, hidden="system|cpu|cores.*?|memory.*?|interfaces"),
    "profile": Picture(
        "lightlib doctor --profile train.py",
        files={"train.py": SLOW_DATA},
        stable=False,
        since="Where the time of training went",
        figures=True,
    ),
    "fit": Picture(f"{FIT} --trainer.max_epochs 2", before=PROJECT, stable=False),
    "checkpoint-inspect": Picture(
        "lightlib checkpoint inspect lightning_logs/version_0/checkpoints/last.ckpt",
        before=(*PROJECT, f"{FIT} --trainer.max_epochs 1"),
        stable=False,
    ),
}
# Patterns that depend on the machine or the time, or that become longer with each class, and their replacements.
MASKS = (
    (re.compile(r"(?<![\d.\[;])\d+(?:\.\d+)?(?= ?(?:s|ms|it/s|batches/s)\b)"), "…"),
    (re.compile(r"\b\d\d?:\d\d(?::\d\d)?\b"), "…"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[ T]?…?"), "…"),
    (re.compile(r"\b[\d.]+(?= GiB)"), "…"),
    (re.compile(r"\b[0-9a-f]{16}\b"), "…"),  # ids of runs
    (re.compile(r"(known\s+subclasses:(?:\s+\w+,){3})[^)]*"), r"\1 …"),
    (re.compile(r"(Expected: one of (?:'\w+', ){3}).*"), r"\1…"),
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", choices=PICTURES, metavar="NAME", help=", ".join(PICTURES))
    parser.add_argument("--show", action="store_true", help="print the output instead of drawing it")
    parser.add_argument("--check", action="store_true", help="fail if a picture is missing or out of date")
    options = parser.parse_args(arguments)
    stale = []
    for name in options.only or PICTURES:
        picture, path = PICTURES[name], IMAGES / f"cli-{name}.svg"
        if options.check and not picture.stable:
            stale += [] if path.exists() else [name]
            continue
        lines = shown(picture)
        if options.show:
            print("\n".join(lines))
            continue
        drawn = svg(lines, name, picture.columns)
        if not options.check:
            IMAGES.mkdir(exist_ok=True)
            path.write_text(drawn, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != drawn:
            stale.append(name)
    if stale:
        only = " ".join(f"--only {name}" for name in stale)
        print(f"Out of date in docs/images: run `python scripts/screenshots.py {only}`", file=sys.stderr)
    return int(bool(stale))


def shown(picture: Picture) -> list[str]:
    """Run the commands of a picture and return its lines, with colours as escape sequences."""
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer, "project")
        folder.mkdir()
        for command in picture.before:
            code, output = run(command, folder, picture.columns)
            if code:
                raise RuntimeError(f"{command!r} ended with status {code}:\n{output}")
        for name, text in picture.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        lines = []
        for name in picture.show:
            lines += [BOLD_PROMPT.format(f"cat {name}"), *picture.files[name].splitlines(), ""]
        _, output = run(picture.command, folder, picture.columns)
        for path in {os.path.realpath(folder), str(folder)}:
            output = output.replace(path, FOLDER_AS)
        if picture.hidden:
            output = re.sub(rf"(?m)^(  (?:{picture.hidden})  +)[^\s].*?(?=\r?$)", r"\g<1>…", output)
    printed = screen(output if picture.figures else masked(output))
    printed = printed[next((i for i, line in enumerate(printed) if line.startswith(picture.since)), 0) :]
    lines += [BOLD_PROMPT.format(picture.command), *printed[: picture.lines]]
    return [*lines, "…"] if len(printed) > picture.lines else lines


def run(command: str, folder: Path, columns: int) -> tuple[int, str]:
    """Run a command line in a terminal, with nothing of our own environment but where programs are."""
    words = command.split()
    program = [sys.executable, "-m", "lightlib", *words[1:]] if words[0] == "lightlib" else words
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "PYTHONIOENCODING": "utf-8",
        "TERM": "xterm-256color",
        "COLUMNS": str(columns),
        "LINES": "50",
    }
    given = [f"{name}={value}" for name, value in environment.items()]
    return in_a_terminal(["/usr/bin/env", "-i", *given, *program], str(folder))


def masked(output: str) -> str:
    """Return the output with everything masked that differs between runs or machines.

    Example:
        >>> masked("epoch 1 of 2, 12.5 s, 3.1 batches/s, 00:12")
        'epoch 1 of 2, … s, … batches/s, …'
    """
    for pattern, place in MASKS:
        output = pattern.sub(place, output)
    return output


def svg(lines: list[str], name: str, columns: int = COLUMNS) -> str:
    """Return a picture of a terminal that shows `lines`. It is self-contained and deterministic.

    Example:
        >>> drawn = svg(["hello"], "greeting")
        >>> drawn == svg(["hello"], "greeting"), "hello" in drawn, "font-face" in drawn
        (True, True, False)
    """
    from rich.console import Console  # optional: rich
    from rich.text import Text  # optional: rich

    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=columns, file=nowhere, color_system="truecolor", force_terminal=True)
        for line in [*lines, ""]:
            console.print(Text.from_ansi(line), soft_wrap=False)
    drawn = console.export_svg(title="", unique_id=f"cli-{name}")
    drawn = re.sub(r"\s*(?:@font-face \{.*?\}|<!--.*?-->)", "", drawn, flags=re.DOTALL)
    return INDENTED.sub(_moved, drawn)


def _moved(found: re.Match[str]) -> str:
    """Move a text to the right by its leading spaces, which some programs would not draw."""
    spaces = found["spaces"].count(";")
    start, length = (float(found[name]) for name in ("x", "length"))
    width = length / (spaces + len(html.unescape(found["text"])))
    moved = f'x="{start + spaces * width:g}"{found["between"]}textLength="{length - spaces * width:g}"'
    return f"{moved}{found['after']}>{found['text']}<"


if __name__ == "__main__":
    sys.exit(main())
