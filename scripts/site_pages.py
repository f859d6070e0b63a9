"""Writes the tables of docs/index.md, and for the site: the pages of the reference, and llms.txt.

python scripts/site_pages.py --check    fail if docs/index.md has other tables
python scripts/site_pages.py --write    write them
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
INDEX = DOCS / "index.md"
GENERATED = "reference"  # the folder below docs/ with the pages that are made with the site
# By shelf, in order of the site: each page with the question that it answers.
SHELVES: dict[str, dict[str, str]] = {
    "Start": {
        "install": "Install lightlib, for CPUs or a GPU",
        "quickstart": "Ten minutes: train, validate, save, resume and predict",
        "gallery": "Examples with their pictures, outputs and code, and two notebooks",
        "migrating": "Move a Lightning project to lightlib in ten minutes",
        "coming-from": "Names of other trainers (MMEngine, Hugging Face, ColossalAI, …) in lightlib",
    },
    "Guides": {
        "modules": "Plain models, several losses",
        "data": "Loaders, data modules, several loaders",
        "streams": "Streams of five libraries that resume at the sample, with any number of processes",
        "mixtures": "Mixtures of data sets by weight, packed documents, masks, batches without padding",
        "samplers": "Samplers: class balance, lengths, streams",
        "optimization": "Optimizers, schedules, accumulation, clipping, manual optimization",
        "losses": "The loss of a language model without all of its scores at once",
        "precision": "Precision, loss scaling, layers in 4 or 8 bits, and less memory",
        "logging": "`self.log` and the loggers",
        "callbacks": "Built-in and custom callbacks",
        "checkpoints": "Saving, resuming, loading",
        "evaluation": "Metrics, dumped predictions, test-time augmentation, samples as images",
        "monitoring": "Throughput, times, memory and norms, and switches that find mistakes",
        "profiling": "Where the time and memory of a run go, and its bottleneck",
        "plotting": "Learning curves from logs",
        "tuning": "Searches for a learning rate and a batch size",
        "experiments": "Hyperparameter searches: one file, trials that survive any kill",
        "cli": "The command `lightlib`, YAML, `LightningCLI`",
        "strategies": "Several devices: choosing a strategy, its cost, valid combinations",
        "plan": "Will it fit, on how many devices, with which strategy: before you have them",
        "tensor": "Large layers split over processes, found by tracing or by your plan",
        "launching": "How processes start and end",
        "elastic": "Runs that lose machines and get them back, with the same global batch size",
        "fabric": "Your own training loop: Fabric",
        "compat": "Run programs that import Lightning, unchanged",
        "security": "Trusting checkpoints, configurations, folders and networks",
        "testing": "Running and writing tests",
    },
    "How to": {
        "how-to/transformers": "A Hugging Face model: tokens, a warm-up, `from_pretrained`",
        "how-to/peft": "LoRA and other adapters of peft, small checkpoints, and adapters that other programs read",
        "how-to/post-training": "Language models by answers, preferences and rewards: SFT, DPO and GRPO",
        "how-to/timm": "An image model of timm, with its optimizers, schedules and Mixup",
        "how-to/torchvision": "MixUp, CutMix and label smoothing for images, in training only",
        "how-to/export": "ONNX, `torch.export` and TorchScript, with the values compared",
        "how-to/sweep": "Searches by an experiment, a loop, Optuna or Hydra",
        "how-to/ray": "Ray Train: restarts after a lost worker, and a changing number of workers",
        "how-to/hyperparameters": "Results next to hyperparameters in TensorBoard (`hp_metric`)",
        "how-to/unit-tests": "Tests of a module with pytest",
        "how-to/durations": "Lengths and intervals as text: `10ep`, `500ba`, `1e9tok`, `2h`",
        "how-to/compile": "`torch.compile` of the model, blocks or layers; activations recomputed, or on the CPU",
        "how-to/notebooks": "Jupyter: interrupts, curves, several devices, changed code",
        "how-to/operating-systems": "Linux, macOS and Windows: what needs which system",
    },
    "Reference": {
        "lifecycle": "Which hook fires when",
        "differences": "Every difference from Lightning, and the reason for it",
        "names": "Names of Lightning with another default or meaning, and those that are missing",
    },
    "Inside": {
        "architecture": "A map of the code, and where a new feature goes",
        "tree": "Each file with its purpose",
        "parity": "Features of other trainers, with the objects and tests that serve them",
        "campaigns": "Runs that are killed and disks that fill, some hundreds of times, with the results",
        "gpu": "One command for the day a GPU is there, and what has never run on one",
    },
}
CODE_LINK = re.compile(r"^\[(?P<name>[^]]+)\]\((?P<path>\.\./examples/[^)]+)\)$", re.MULTILINE)
UNSEARCHED = "Inside"  # its pages are long lists of names, which would come before the guides in the results


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="fail if docs/index.md has other tables")
    mode.add_argument("--write", action="store_true", help="write the tables of docs/index.md")
    options = parser.parse_args(arguments)
    written = INDEX.read_text(encoding="utf-8")
    current = with_tables(written)
    if options.write:
        INDEX.write_text(current, encoding="utf-8")
    elif current != written:
        print("docs/index.md is out of date: run `python scripts/site_pages.py --write`", file=sys.stderr)
        return 1
    return 0


def with_tables(index: str) -> str:
    """Return the text of docs/index.md with the table of each shelf below its heading."""
    for shelf, pages in SHELVES.items():
        above, heading, below = index.partition(f"\n## {shelf}\n")
        if not heading:
            raise ValueError(f"docs/index.md has no heading `## {shelf}`")
        old, mark, rest = below.partition("<!-- end of the table -->")
        if not mark:
            raise ValueError(f"docs/index.md has no `<!-- end of the table -->` below `## {shelf}`")
        introduction = old.partition("|")[0].strip()
        parts = [*([introduction] if introduction else []), table(pages), f"{mark}{rest}"]
        index = f"{above}{heading}\n" + "\n\n".join(parts)
    return index


def table(pages: dict[str, str]) -> str:
    """Return a table of pages: the title of each, as a link, and its subject."""
    rows = [f"| [{title(page)}]({page}.md) | {about} |" for page, about in pages.items()]
    return "\n".join(["| page | about |", "|---|---|", *rows])


def title(page: str) -> str:
    """Return the first heading of a page below docs/."""
    lines = (DOCS / f"{page}.md").read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix("# ") for line in lines if line.startswith("# "))


def site_index(index: str, generated: dict[str, tuple[str, str]]) -> str:
    """Return the start page of the site: docs/index.md with the generated pages, and the order of all pages.

    Args:
        index: The text of docs/index.md.
        generated: By page of the reference, its title and what it is about.
    """
    rows = "\n".join(f"| [{heading}]({page}.rst) | {about} |" for page, (heading, about) in generated.items())
    table_of_files, mark, rest = index.partition("## Reference\n")[2].partition("\n\n<!-- end of the table -->")
    index = index.replace(f"{table_of_files}{mark}{rest}", f"{table_of_files}\n{rows}{mark}{rest}")
    trees = []
    for shelf, pages in SHELVES.items():
        names = [*pages, *(generated if shelf == "Reference" else ())]
        names += [f"{GENERATED}/decisions"] if shelf == "Inside" else []
        trees.append("\n".join(["```{toctree}", ":hidden:", f":caption: {shelf}", "", *names, "```"]))
    return "\n\n".join([index, *trees]) + "\n"


def with_code(page: str) -> str:
    """Return a page on which each link to a file of examples/ that is a paragraph is the file itself, folded."""

    def folded(link: re.Match[str]) -> str:
        include = f"```{{literalinclude}} {link['path']}\n:language: {Path(link['path']).suffix[1:]}\n```"
        return f"<details>\n<summary>{link['name']}</summary>\n\n{include}\n\n</details>"

    return CODE_LINK.sub(folded, page)


def decisions() -> list[Path]:
    """Return the files of the decision records, in order of their numbers."""
    return sorted((DOCS / "decisions").glob("[0-9]*.md"))


def unsearched(page: str) -> bool:
    """Return whether the search leaves out a page of the site."""
    return page in SHELVES[UNSEARCHED] or page == f"{GENERATED}/decisions" or page.startswith("decisions/")


def llms(generated: dict[str, tuple[str, str]]) -> str:
    """Return llms.txt: the pages by shelf, with links to their sources in the site."""
    lines = ["# lightlib", "", f"> {summary()}", ""]
    for shelf, pages in SHELVES.items():
        lines += [f"## {'Optional' if shelf == UNSEARCHED else shelf}", ""]
        lines += [f"- [{title(page)}](_sources/{page}.md.txt): {about}" for page, about in pages.items()]
        if shelf == "Reference":
            lines += [f"- [{name}]({page}.html): {about}" for page, (name, about) in generated.items()]
        lines.append("")
    return "\n".join(lines)


def llms_full(reference: str) -> str:
    """Return llms-full.txt: the text of all pages but those of the last shelf, and `reference`."""
    names = [page for shelf, pages in SHELVES.items() if shelf != UNSEARCHED for page in pages]
    texts = [(DOCS / f"{page}.md").read_text(encoding="utf-8").strip() for page in names]
    return "\n\n".join([f"# lightlib\n\n> {summary()}", *texts, reference]) + "\n"


def summary() -> str:
    """Return the first paragraph of docs/index.md as one line."""
    return " ".join(INDEX.read_text(encoding="utf-8").split("\n\n")[1].split())


if __name__ == "__main__":
    sys.exit(main())
