"""One process of a part: runs cases one after the other, and notes each in a file."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
import warnings
from pathlib import Path

from tests.gpu.device import Device
from tests.gpu.parts import named


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", help="its name, or module:ATTRIBUTE")
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--pretend", action="store_true")
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--notes", type=Path, required=True)
    given = parser.parse_args()
    part, device = named(given.part), Device(given.pretend, given.devices)
    warnings.simplefilter("ignore")
    with given.notes.open("a", buffering=1, encoding="utf-8") as notes:

        def note(**values: object) -> None:
            notes.write(json.dumps(values) + "\n")

        case = given.cases[0]
        try:
            if part.prepare is not None:
                part.prepare(given.cases, device)
            for case in given.cases:
                print(f"--- {case}", flush=True)
                begun = time.monotonic()
                note(case=case)
                _wait_for_peers(given.notes, case)
                figures = part.run(case, device)
                note(case=case, figures=figures, seconds=round(time.monotonic() - begun, 2))
        except BaseException as error:  # noqa: BLE001  the parent reports it
            note(case=case, problem=f"{type(error).__name__}: {error}", at=time.time())
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)  # at once: after an error of the device, or with a peer that waits, an orderly end may hang
    return 0


def _wait_for_peers(notes: Path, case: str) -> None:
    """Wait until all ranks begin the case, so that an error belongs to it; the parent ends those that wait in vain."""
    line = json.dumps({"case": case})
    peers = [notes.with_name(f"rank{rank}.jsonl") for rank in range(int(os.environ.get("WORLD_SIZE", "1")))]
    while len(peers) > 1 and not all(peer.exists() and line in peer.read_text(encoding="utf-8") for peer in peers):
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
