"""Records the output of programs/main.py with Lightning; run it by a Python that has 2.6."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SINGLE = ["methods", "checkpoints", "wrapping", "scratch"]
SEVERAL = ["methods", "checkpoints", "hooked", "controlled"]
CASES = [(name, 1) for name in SINGLE] + [(name, 2) for name in SEVERAL]


def main() -> None:
    file = HERE / "recorded.json"
    recorded = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    wanted = sys.argv[1:]
    for name, devices in CASES:
        if wanted and name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(HERE / "programs" / "main.py"), name, str(devices)]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if not lines:
            raise SystemExit(f"{name}: {done.stdout}\n{done.stderr}")
        recorded[f"{name} {devices}"] = json.loads(lines[0].removeprefix("RESULT "))
        text = json.dumps(recorded, indent=1, sort_keys=True) + "\n"
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
