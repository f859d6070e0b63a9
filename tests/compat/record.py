"""Records the figures of the programs with the real Lightning.

`python -m tests.compat.record PYTHON [NAME…]`

PYTHON is an interpreter with the real Lightning 2.6. Without names, all programs are recorded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
RECORDED = PROGRAMS / "recorded.json"
# What decides the last digits of a float.
MACHINE = "import torch; print(torch.__version__.partition('+')[0], torch.backends.cpu.get_cpu_capability())"


def names() -> list[str]:
    """Return the programs: paths below `PROGRAMS`, without the ending."""
    return sorted(path.relative_to(PROGRAMS).with_suffix("").as_posix() for path in PROGRAMS.rglob("*.py"))


def recorded() -> dict[str, object]:
    """Return the recorded figures."""
    content: dict[str, object] = json.loads(RECORDED.read_text("utf-8"))
    return content


def environment() -> dict[str, str]:
    """Return the variables of a recording: one thread, and nothing but Lightning's own packages."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}


def record(python: str, name: str) -> dict[str, object]:
    """Run a program with an interpreter in an empty folder and return its figures."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, str(PROGRAMS / f"{name}.py")]
        ran = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{name} ended with {ran.returncode}:\n{ran.stderr}")
    figures: dict[str, object] = json.loads(ran.stdout.splitlines()[-1])
    return figures


def write(versions: dict[str, str], programs: dict[str, object]) -> None:
    """Write the figures, a line for each program."""
    lines = [f"  {json.dumps(name)}: {json.dumps(programs[name])}" for name in sorted(programs)]
    head = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in versions.items())
    RECORDED.write_text(f'{{{head},\n"programs": {{\n' + ",\n".join(lines) + "\n}}\n", "utf-8")


def main(python: str, *chosen: str) -> None:
    """Record the chosen programs, all by default."""
    ask = "import lightning; print(lightning.__version__)"
    run = [subprocess.check_output([python, "-c", code], text=True, env=environment()) for code in (ask, MACHINE)]
    versions = {"lightning": run[0].strip(), "machine": run[1].strip()}
    old = recorded().get("programs", {}) if chosen else {}
    programs = {name: value for name, value in dict(old).items() if name in names()}
    for name in chosen or names():
        print(name, file=sys.stderr)
        programs[name] = record(python, name)
    write(versions, programs)


if __name__ == "__main__":
    main(*sys.argv[1:])
