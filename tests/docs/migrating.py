"""The project of docs/migrating.md, and the run of Lightning that the page resumes.

``python -m tests.docs.migrating`` records that run again with the installed Lightning.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "migrating.md"
STORED = Path(__file__).with_name("migrating_2_6_6.zip")
FILES = re.compile(r"^```(?:py|yaml)\n# (\S+)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
COMMANDS = re.compile(r"^```bash\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def write_project(folder: Path) -> None:
    """Write the files of the page."""
    for name, content in FILES.findall(PAGE.read_text(encoding="utf-8")):
        (folder / name).write_text(content, encoding="utf-8")


def commands() -> list[str]:
    """Return the command lines of the page."""
    blocks = COMMANDS.findall(PAGE.read_text(encoding="utf-8"))
    return [line for block in blocks for line in block.splitlines()]


def val_losses(folder: Path) -> list[float]:
    """Return the validation losses of the run that wrote into `folder` last."""
    newest = max((folder / "logs" / "csv").iterdir(), key=lambda path: int(path.name.rpartition("_")[2]))
    with (newest / "metrics.csv").open(encoding="utf-8") as file:
        return [float(row["val_loss"]) for row in csv.DictReader(file) if row["val_loss"]]


def main() -> None:
    """Train as on the page, and store the checkpoint after two epochs and the losses of the two that follow."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_project(folder)
        fit = [sys.executable, "train.py", "fit", "--config", "config.yaml"]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*fit, "--trainer.max_epochs", "2"], cwd=folder, env=env, check=True)
        checkpoint = (folder / "checkpoints" / "last.ckpt").read_bytes()
        subprocess.run([*fit, "--ckpt_path", "checkpoints/last.ckpt"], cwd=folder, env=env, check=True)
        losses = "\n".join(map(repr, val_losses(folder)))
    with zipfile.ZipFile(STORED, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in (("last.ckpt", checkpoint), ("val_loss.txt", losses.encode())):
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":
    main()
