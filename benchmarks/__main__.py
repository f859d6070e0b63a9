"""`python -m benchmarks [--quick] [--only step calls]`: print one table, and write it to RESULTS.md."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import torch

from benchmarks import (
    calls,
    checkpoints,
    distributed,
    end_to_end,
    evaluation,
    features,
    first_step,
    imports,
    ledger,
    search,
    sizes,
    step,
    strategies,
    table,
)
from benchmarks.measure import FULL, QUICK, Result, load
from benchmarks.peers import PEERS

__all__ = ["main"]

BENCHMARKS = {
    "calls": calls.run,
    "step": step.run,
    "import": imports.run,
    "first-step": first_step.run,
    "evaluation": evaluation.run,
    "end-to-end": end_to_end.run,
    "distributed": distributed.run,
    "strategies": strategies.run,
    "checkpoints": checkpoints.run,
    "sizes": sizes.run,
    "features": features.run,
    "search": search.run,
    "ledger": ledger.run,
}
RESULTS = Path(__file__).parent / "RESULTS.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure. Return 0; a missed target is printed and is no error, for times depend on the machine."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about a minute, less exact; nothing is written")
    parser.add_argument(
        "--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS), help="some of the benchmarks"
    )
    parser.add_argument(
        "--output", type=Path, help=f"where to write; default: {RESULTS.name}, if all was measured, of every framework"
    )
    given = parser.parse_args(arguments)
    size = QUICK if given.quick else FULL
    quiet()
    before, results = load(), list[Result]()
    for name in given.only:
        began = monotonic()
        print(f"measuring {name} … ", end="", file=sys.stderr, flush=True)
        results += BENCHMARKS[name](size)
        print(f"{monotonic() - began:.0f} s", file=sys.stderr)
    print(table.versions(), table.text(results), sep="\n\n")
    missing = {peer.distribution or peer.package: None for peer in PEERS if not peer.installed}
    whole = not given.quick and len(given.only) == len(BENCHMARKS)
    if whole and missing and given.output is None:
        print(
            f"\n{RESULTS.name} is unchanged, because it compares all frameworks. Fix: pip install {' '.join(missing)}"
        )
    output = given.output or (RESULTS if whole and not missing else None)
    if output is not None:
        output.write_text(table.markdown(results, size, (before, load())), encoding="utf-8")
    return 0


def quiet() -> None:
    """One thread, no GPU, and no messages of the frameworks between the numbers."""
    torch.set_num_threads(1)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["ACCELERATE_USE_CPU"] = "true"
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that are started
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an import is that of an installed package, which is compiled
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
