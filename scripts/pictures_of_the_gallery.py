"""Draws docs/images/gallery/*, and writes the outputs of the examples on docs/gallery.md.

python scripts/pictures_of_the_gallery.py                 run all commands of the page, which takes minutes
python scripts/pictures_of_the_gallery.py --only gan      run those of this example (repeat it for more)

The commands are read from the page and run in a terminal, in a temporary folder with a copy of examples/. The pictures
show what the runs have logged and made, and the outputs are the last lines that the terminal showed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

ROOT = Path(__file__).resolve().parent.parent
if not __package__:
    sys.path.insert(0, str(ROOT))

from lightlib import experiment  # noqa: E402  the folder has to be known first
from lightlib.command.plot.curves import read_run  # noqa: E402
from scripts.picture_of_a_run import COLUMNS, FOLDER_AS, in_a_terminal, screen, svg  # noqa: E402

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE = ROOT / "docs" / "gallery.md"
IMAGES = ROOT / "docs" / "images" / "gallery"
MOST_BYTES, MOST_PIXELS = 60_000, 800
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
KILLED = re.compile(r"bash: line \d+: +\d+ Killed.*")
RUN = re.compile(
    r"```bash\n(?P<commands>[^`]*)```\n\n"
    r"<!-- output of (?P<name>[\w-]+), lines: (?P<lines>\d+) -->\n```text\n(?P<output>.*?)```\n",
    re.DOTALL,
)
Curve = Sequence[tuple[float, float]]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", choices=PICTURES, metavar="NAME", help=", ".join(PICTURES))
    options = parser.parse_args(arguments)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    sys.path.insert(0, str(ROOT / "examples"))
    IMAGES.mkdir(exist_ok=True)
    for name in options.only or PICTURES:
        commands = runs(PAGE.read_text(encoding="utf-8"))[name]["commands"]
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(ROOT / "examples", Path(folder, "examples"))
            code, printed = in_a_terminal(["bash", "-c", commands], folder)
            lines = screen(printed.replace(os.path.realpath(folder), FOLDER_AS).replace(folder, FOLDER_AS))
            if code:
                print("\n".join(lines), file=sys.stderr)
                return code
            PICTURES[name](Path(folder), lines)
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(with_output(page, name, lines), encoding="utf-8")
    return 0


def runs(page: str) -> dict[str, re.Match[str]]:
    """Return the commands and outputs on the page, by the name of the example."""
    return {run["name"]: run for run in RUN.finditer(page)}


def with_output(page: str, name: str, lines: Sequence[str]) -> str:
    r"""Return the page with the last of the lines that a terminal shows as the output of an example.

    Example:
        >>> fences = "```bash\npython a.py\n```\n\n<!-- output of a, lines: 1 -->\n```text\n{}\n```\n"
        >>> with_output(fences.format("old"), "a", ["first", "\x1b[1mlast\x1b[0m "]) == fences.format("last")
        True
    """
    run = runs(page)[name]
    plain = [KILLED.sub("Killed", COLOUR.sub("", line)).rstrip() for line in lines]
    wrapped = [line[start : start + COLUMNS] for line in plain for start in range(0, len(line) or 1, COLUMNS)]
    start, end = run.span("output")
    return page[:start] + "\n".join([*wrapped[-int(run["lines"]) :], ""]) + page[end:]


def logged(folder: Path, metric: str, version: int = 0) -> Curve:
    """Return the steps and values of a metric that a run has logged."""
    points = read_run(str(folder / f"lightning_logs/version_{version}"), "run").points(metric)
    if not points:
        raise ValueError(f"run {version} has logged no {metric}")
    return points


def draw(name: str, *panels: Callable[[Axes], None], widths: Sequence[float] = (), height: float = 3) -> None:
    """Write a picture of panels next to each other."""
    import matplotlib as mpl  # optional: matplotlib

    mpl.use("Agg")
    from matplotlib import pyplot  # optional: matplotlib

    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(8, height), squeeze=False, layout="constrained", width_ratios=widths or None
    )
    for panel, axis in zip(panels, axes[0], strict=True):
        panel(axis)
    figure.savefig(IMAGES / f"{name}.png", dpi=100, metadata={"Software": None})
    pyplot.close(figure)


def curves(x: str, y: str, lines: Mapping[str, Curve], **style: Any) -> Callable[[Axes], None]:
    """Return a panel of curves, by name."""

    def panel(axes: Axes) -> None:
        for name, points in lines.items():
            axes.plot(*zip(*points, strict=True), label=name, **style)
        axes.set(xlabel=x, ylabel=y)
        axes.locator_params(axis="x", integer=True)
        axes.grid(alpha=0.3)
        if len(lines) > 1:
            axes.legend(frameon=False)

    return panel


def picture(image: Any, title: str) -> Callable[[Axes], None]:
    """Return a panel with an image."""

    def panel(axes: Axes) -> None:
        axes.imshow(image, cmap="gray_r", interpolation="nearest")
        axes.set_title(title, fontsize="medium")
        axes.set_axis_off()

    return panel


def digits(folder: Path, _: Sequence[str]) -> None:
    """Draw the accuracy, and digits of the test with the predictions of the best checkpoint."""
    example = importlib.import_module("digits")
    (best,) = folder.glob("lightning_logs/version_0/checkpoints/*.ckpt")
    model, data = example.Classifier.load_from_checkpoint(best).eval(), example.Digits()
    data.setup("test")
    images, labels = (torch.cat(tensors) for tensors in zip(*data.test_dataloader(), strict=True))
    with torch.no_grad():
        predicted = model(images).argmax(1)
    shown = (predicted != labels).nonzero().flatten().tolist()
    shown = (shown + [i for i in range(len(images)) if i not in shown])[:24]

    def predictions(axes: Axes) -> None:
        grid = images[shown, 0].view(3, 8, 8, 8)
        framed = torch.nn.functional.pad(grid, (1, 1, 4, 1)).transpose(1, 2).flatten(2).flatten(0, 1)
        picture(framed, f"{len(images)} test images, the mistakes first")(axes)
        for place, i in enumerate(shown):
            right = bool(predicted[i] == labels[i])
            x, y = 10 * (place % 8) + 4.5, 13 * (place // 8) + 1.5
            axes.text(x, y, str(int(predicted[i])), color="tab:green" if right else "tab:red", ha="center", va="center")

    accuracy = curves("step", "validation accuracy", {"": logged(folder, "val_accuracy")}, marker=".")
    draw("digits", accuracy, predictions, widths=(2, 3))


def gan(folder: Path, _: Sequence[str]) -> None:
    """Draw the losses of the two networks, and the digits that the generator painted."""
    from matplotlib import pyplot  # optional: matplotlib

    losses = {name: logged(folder, f"{name}_loss") for name in ("generator", "discriminator")}
    painted = pyplot.imread(folder / "digits.png")
    draw("gan", curves("step", "loss", losses), picture(painted, "generated"), widths=(3, 2), height=3.4)


def gpt(folder: Path, _: Sequence[str]) -> None:
    """Draw the loss on one and on two processes."""
    names = ("one process, two batches a step", "two processes, a batch each")
    lines = {name: logged(folder, "train_loss", version) for version, name in enumerate(names)}
    draw("gpt", curves("step", "training loss", lines))


def fine_tuning(folder: Path, _: Sequence[str]) -> None:
    """Draw the accuracy of the average and of the trained weights, by epoch."""
    names = ("average of the weights", "trained weights")
    values = [[value for _, value in logged(folder, "val_accuracy", version)] for version in (0, 1)]
    lines = {name: list(enumerate(of_run, 1)) for name, of_run in zip(names, values, strict=True)}

    def panel(axes: Axes) -> None:
        curves("epoch", "accuracy on the new digits", lines, marker=".")(axes)
        unfrozen = len(values[0]) // 3 + 0.5
        axes.axvline(unfrozen, color="gray", linestyle=":")
        place = axes.get_xaxis_transform()
        axes.text(unfrozen + 0.1, 0.4, "the backbone is trained from here on", color="gray", transform=place)

    draw("fine-tuning", panel)


def segmentation(folder: Path, _: Sequence[str]) -> None:
    """Show the picture that the example has painted last."""
    shutil.copyfile(max((folder / "masks").glob("epoch_*.png")), IMAGES / "segmentation.png")


def cli(_: Path, lines: Sequence[str]) -> None:
    """Draw the terminal."""
    title = "python main.py fit --config config.yaml"
    (IMAGES / "cli.svg").write_text(svg(list(lines), title), encoding="utf-8")


def fabric(_: Path, lines: Sequence[str]) -> None:
    """Draw the accuracies that the loop has printed."""
    found = [
        (int(epoch), float(share)) for epoch, share in re.findall(r"epoch (\d+): ([\d.]+)% right", "\n".join(lines))
    ]
    half = len(found) // 2
    draw(
        "fabric",
        curves("epoch", "right, in %", {"one process": found[:half], "two processes": found[half:]}, marker="."),
    )


def search(folder: Path, _: Sequence[str]) -> None:
    """Draw the accuracy of each trial, and the best one of each over its learning rate."""
    found = experiment.open(folder / "experiments" / "search")
    ends = {"completed": "tab:blue", "stopped": "tab:orange"}

    def trials(axes: Axes) -> None:
        for trial in found.trials:
            values = [(one["step"], one["val_accuracy"]) for one in found.metrics(trial.number)]
            axes.plot(*zip(*values, strict=True), color=ends[trial.state], marker=".")
        axes.set(xlabel="epoch", ylabel="validation accuracy")
        axes.grid(alpha=0.3)

    def rates(axes: Axes) -> None:
        for state, colour in ends.items():
            values = [(one.hparams["lr"], one.metric) for one in found.trials if one.state == state]
            axes.scatter(*zip(*values, strict=True), color=colour, label=state)
        axes.set(xscale="log", xlabel="learning rate", ylabel="best accuracy")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)

    draw("search", trials, rates)


def nothing(_: Path, __: Sequence[str]) -> None:
    """Draw nothing: scripts/picture_of_a_run.py has the picture."""


PICTURES: dict[str, Callable[[Path, Sequence[str]], None]] = {
    "digits": digits,
    "gan": gan,
    "gpt": gpt,
    "fine-tuning": fine_tuning,
    "segmentation": segmentation,
    "cli": cli,
    "fabric": fabric,
    "killed": nothing,
    "search": search,
}


if __name__ == "__main__":
    sys.exit(main())
