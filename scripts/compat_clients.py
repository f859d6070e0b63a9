"""Run packages built on Lightning with Lightning and with lightlib, and compare the numbers.

`python scripts/compat_clients.py FOLDER [NAME…] [--write]` installs the packages into environments in FOLDER, runs each
program of tests/compat/clients with both, prints a table, and fails if a number differs. `--write` puts the table of
all programs into docs/compat.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tests" / "compat" / "clients"
PAGE = ROOT / "docs" / "compat.md"
BEGIN, END = "<!-- clients: written by scripts/compat_clients.py --write -->\n", "<!-- end of clients -->"
REAL = ("lightning==2.6.6", "pytorch-lightning==2.6.6")
# Two roundings of a float32: lightlib adds up means in double precision.
SAME = 2.5e-7
LIMIT = 900  # seconds for one program


@dataclass(frozen=True)
class Client:
    """A package and its program.

    Args:
        program: Its file in tests/compat/clients, without the ending.
        requirement: The requirement for pip.
        run: What the program does, for the table.
        environment: Packages with one name share an environment.
    """

    program: str
    requirement: str
    run: str
    environment: str = "new"


CLIENTS = (
    Client("pytorch_forecasting_tft", "pytorch-forecasting==1.8.0", "TemporalFusionTransformer, prediction"),
    Client("darts_nbeats", "darts==0.48.1", "N-BEATS, best checkpoint, forecast"),
    Client("gluonts_deepar", "gluonts[torch]==0.17.0", "DeepAR, sampled forecasts"),
    Client("chemprop_mpnn", "chemprop==2.3.1", "message passing, test, load_from_checkpoint"),
    Client("scvi_vae", "scvi-tools==1.4.2", "SCVI, latent space"),
    Client("optuna_pruning", "optuna-integration==5.0.0", "five trials with the pruning callback"),
    Client("pina_poisson", "pina-mathlab==0.3.2.post2610", "physics-informed network"),
    Client("pytorch_tabular_mlp", "pytorch-tabular==1.2.0", "CategoryEmbedding, save and load", "older numpy"),
    Client("neuralprophet_trend", "neuralprophet", "seasons and lags, forecast", "older numpy"),
    Client("rl4co_tour", "rl4co==0.7.0", "REINFORCE on tours, test, checkpoint", "older numpy"),
    Client("mlflow_autolog", "mlflow==3.17.2", "autolog of a Trainer", "older numpy"),
    Client("dvclive_logger", "dvclive==3.49.1", "DVCLiveLogger", "older numpy"),
    Client("litgpt_pretrain", "litgpt==0.5.13", "GPT with Fabric; again in two processes", "more"),
    Client("torch_geometric_graphs", "torch-geometric==2.8.1", "nodes of a graph; graphs in two processes", "more"),
    Client("neuralforecast_series", "neuralforecast==3.3.0", "NHITS, LSTM, cross-validation, load", "more"),
    Client("nequip_forces", "nequip==0.19.1", "averaged weights; again in two processes", "more"),
    Client("torch_uncertainty_ensemble", "torch-uncertainty[cpu]==0.13.0", "ensemble, unknown classes", "images"),
    Client("lightning_uq_box_regression", "lightning-uq-box==0.2.0", "variance, SWAG, ensemble of files", "images"),
    Client("torchgeo_scenes", "torchgeo==0.8.1", "classifier of scenes, test, prediction", "images"),
    Client("lightly_simclr", "lightly==1.6.0", "SimCLR in two processes, probes", "images"),
)


def install(folder: Path, name: str) -> Path:
    """Make the environment of this name, if it is not there with these packages, and return its interpreter."""
    place = folder / name.replace(" ", "-")
    python = place / "bin" / "python"
    wanted = [client.requirement for client in CLIENTS if client.environment == name]
    done = place / ".installed"
    if done.is_file() and done.read_text("utf-8").split("\n") == wanted:
        return python
    print(f"Installing {', '.join(wanted)} into {place} ...", file=sys.stderr)
    venv.create(place, clear=True, with_pip=True)
    torch = next(
        line for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if line.startswith("torch==")
    )
    pinned = place / "constraints.txt"
    pinned.write_text(f"{torch.split(';')[0].strip()}\n", "utf-8")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # First and alone: pip would fetch the newest torch and its GPU libraries.
    subprocess.run([*pip, torch.split(";")[0].strip()], check=True)
    # lightlib, which is not installed there, needs tensorboard, and torchgeo imports requests without requiring it.
    more = ("scikit-learn", "tensorboard", "requests")
    subprocess.run([*pip, "-c", str(pinned), *REAL, *wanted, *more], check=True)
    # torchvision's wheels on the index are for torch with CUDA. Without it their operators, which no client here needs,
    # do not load, and this file, which adds to them, raises.
    for file in place.glob("lib/*/site-packages/torchvision/_meta_registrations.py"):
        file.write_text("", "utf-8")
    done.write_text("\n".join(wanted), "utf-8")
    return python


def run(python: Path, program: str, *, ours: bool) -> tuple[dict[str, object] | str, float]:
    """Run a program; return the figures of its last line, or the end of its errors, and the seconds."""
    script = str(PROGRAMS / f"{program}.py")
    command = [str(python), *(["-m", "lightlib", "compat", "run"] if ours else []), script]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"} | ({"PYTHONPATH": str(ROOT)} if ours else {})
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
        seconds = time.perf_counter() - began
    if ran.returncode:
        return "\n".join(ran.stderr.splitlines()[-8:]), seconds
    figures: dict[str, object] = json.loads(ran.stdout.splitlines()[-1])
    return figures, seconds


def different(there: object, here: object, place: str = "") -> list[str]:
    """Return the places at which two nested values differ."""
    if isinstance(there, dict) and isinstance(here, dict) and there.keys() == here.keys():
        return [line for key in there for line in different(there[key], here[key], f"{place}/{key}")]
    if isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        pairs = enumerate(zip(there, here, strict=True))
        return [line for index, (one, other) in pairs for line in different(one, other, f"{place}/{index}")]
    if isinstance(there, float) and isinstance(here, float) and math.isclose(there, here, rel_tol=SAME):
        return []
    return [] if there == here else [f"{place}: {there} with Lightning, {here} with lightlib"]


def version(python: Path, client: Client) -> str:
    """Return the name and version of the installed package."""
    name = client.requirement.partition("==")[0].partition("[")[0]
    ask = f"import importlib.metadata as m; print(m.version({name!r}))"
    return f"{name} {subprocess.check_output([str(python), '-c', ask], text=True).strip()}"


def row(python: Path, client: Client) -> tuple[str, list[str]]:
    """Run a client with both; return its row of the table, and its failures."""
    name = version(python, client)
    print(name, file=sys.stderr)
    there, seconds_there = run(python, client.program, ours=False)
    here, seconds_here = run(python, client.program, ours=True)
    wrong = [f"{who}:\n{end}" for who, end in (("Lightning", there), ("lightlib", here)) if isinstance(end, str)]
    losses = [f"{end['loss']:.7g}" if isinstance(end, dict) else "failed" for end in (there, here)]
    wrong = wrong or different(there, here)
    times = f"{seconds_there:.1f} | {seconds_here:.1f}"
    return f"| {name} | {client.run} | {' | '.join(losses)} | {times} |", [f"{name}: {line}" for line in wrong]


def main() -> int:
    """Run the chosen clients and return the exit status."""
    parser = argparse.ArgumentParser(description="Run packages built on Lightning with Lightning and with lightlib.")
    parser.add_argument("folder", type=Path, help="where their environments are, or will be")
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs of tests/compat/clients; default: all")
    parser.add_argument("--write", action="store_true", help="put the table into docs/compat.md")
    given = parser.parse_args()
    rows, wrong = [], []
    for client in CLIENTS:
        if not given.names or client.program in given.names:
            line, errors = row(install(given.folder.resolve(), client.environment), client)
            rows.append(line)
            wrong += errors
    titles = ["package", "what was run", "loss, Lightning", "loss, lightlib", "s, Lightning", "s, lightlib"]
    head = [f"| {' | '.join(titles)} |", "|---|---|---|---|---:|---:|"]
    table = "\n".join([*head, *rows]) + "\n"
    print(table, *wrong, sep="\n")
    if given.write:
        before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        date = f"Run on {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d} with torch on one CPU thread.\n\n"
        PAGE.write_text(before + BEGIN + date + table + END + rest.partition(END)[2], "utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
