"""Makes lightning_old.zip: files of `lightning_run` that old versions of pytorch-lightning wrote.

``PYTHONPATH=FOLDER:. python -m tests.compatibility.lightning_old`` adds the files of the pytorch-lightning in FOLDER to
the zip. The stored ones are of 1.2.10, 1.5.10, 1.9.5 and 2.0.9, each installed alone (``pip install --no-deps --target
FOLDER pytorch-lightning==…``) next to torch 2.13. What has changed in Python and torch since is put back here.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from tests.compatibility import lightning_run

STORED = Path(__file__).with_name("lightning_old.zip")
# The stored files of each version, named as in `lightning_run`.
KEPT = {"plain": ["0-epoch", "1-2-batch"], "window": ["1-0-batch"], "manual": ["0-1-batch"]}


def put_back() -> None:
    """Restore names of torch and Python that pytorch-lightning 1.x expects."""
    torch.optim.lr_scheduler._LRScheduler = torch.optim.lr_scheduler.LRScheduler
    from pytorch_lightning.utilities import enums

    for enum in (enums.LightningEnum, *enums.LightningEnum.__subclasses__()):
        enum.__format__ = str.__format__
        enum.__str__ = lambda self: self.value


def framework(version: tuple[int, ...]) -> Any:
    """Return pytorch-lightning; before 1.5 with the names that came later."""
    import pytorch_lightning as pl

    if version >= (1, 5):
        return pl

    class DataModule(pl.LightningDataModule):
        def save_hyperparameters(self) -> None:
            self.hparams = type("Hparams", (), {"size": 2})

    class Old:
        LightningModule, LightningDataModule, Callback = pl.LightningModule, DataModule, pl.Callback

        class callbacks:  # noqa: N801  Lightning's name
            @staticmethod
            def EarlyStopping(monitor: str, patience: int, check_on_train_epoch_end: bool) -> Any:  # noqa: ARG004, N802
                return pl.callbacks.EarlyStopping(monitor, patience=patience)

            @staticmethod
            def ModelCheckpoint(dirpath: str, monitor: str) -> Any:  # noqa: N802
                return pl.callbacks.ModelCheckpoint(dirpath=dirpath, monitor=monitor)

        @staticmethod
        def Trainer(  # noqa: N802
            *, max_epochs: int, logger: bool, num_sanity_val_steps: int, callbacks: Any, **more: Any
        ) -> Any:
            kept = {name: more[name] for name in ("val_check_interval", "accumulate_grad_batches") if name in more}
            trainer = pl.Trainer(
                max_epochs=max_epochs,
                logger=logger,
                num_sanity_val_steps=num_sanity_val_steps,
                callbacks=callbacks,
                checkpoint_callback=more["enable_checkpointing"],
                progress_bar_refresh_rate=0,
                weights_summary=None,
                **kept,
            )
            fit = trainer.fit
            trainer.fit = lambda module, datamodule, ckpt_path: fit(module, datamodule=datamodule)
            return trainer

    return Old


def main() -> None:
    """Write the stored files of the version that is installed."""
    warnings.simplefilter("ignore")
    torch.optim.lr_scheduler._LRScheduler = torch.optim.lr_scheduler.LRScheduler
    import pytorch_lightning as pl

    logging.disable(logging.WARNING)
    put_back()
    name = pl.__version__
    used = framework(tuple(map(int, name.split(".")[:2])))
    known: dict[str, bytes] = {}
    if STORED.exists():
        with zipfile.ZipFile(STORED) as archive:
            known = {one: archive.read(one) for one in archive.namelist() if not one.startswith(f"{name}/")}
    with tempfile.TemporaryDirectory() as folder:
        for run, kept in list(KEPT.items())[: 1 if used is not pl else None]:
            files = Path(folder) / name / run
            files.mkdir(parents=True)
            record = lightning_run.train(used, run, files, best=files / "best" if run == "plain" else None)
            sys.stdout.write(f"{name} {run}: {record.batches} {record.steps} {record.validations}\n")
            known |= {f"{name}/{run}/{one}.ckpt": (files / f"{one}.ckpt").read_bytes() for one in kept}
    with zipfile.ZipFile(STORED, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for one in sorted(known):
            archive.writestr(zipfile.ZipInfo(one, (2026, 1, 1, 0, 0, 0)), known[one], zipfile.ZIP_DEFLATED, 9)
    sys.stdout.write(f"{STORED.name}: {len(known)} files, {STORED.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
