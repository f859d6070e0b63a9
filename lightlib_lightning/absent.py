"""Stand-ins for names of Lightning that lightlib does not provide: clear errors when used."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

from lightlib.errors import MisconfigurationException
from lightlib_lightning.tools.lacking import OF_A_PACKAGE

__all__ = ["INSTEAD", "Absent", "stand_in"]

_HARDWARE = "use a CPU, CUDA or MPS device, or an accelerator of another package (CONTRIBUTING.md, Plugins)."
_OF_HARDWARE = """
    FabricXLAAccelerator HPUAccelerator HPUCheckpointIO HPUParallelStrategy HPUPrecisionPlugin SingleDeviceXLAStrategy
    SingleHPUStrategy SingleTPUStrategy TPUAccelerator TPUBf16Precision TPUBf16PrecisionPlugin TPUPrecision
    TPUPrecisionPlugin XLAAccelerator XLABf16Precision XLABf16PrecisionPlugin XLACheckpointIO XLAEnvironment
    XLAFSDPStrategy XLAPrecision XLAPrecisionPlugin XLAProfiler XLAStrategy
"""

_REGISTRY = "download the file with the package litmodels, and pass its path as ckpt_path."

# What to do without a name.
INSTEAD: dict[str, str] = {
    **dict.fromkeys(_OF_HARDWARE.split(), _HARDWARE),
    **dict.fromkeys(("download_model_from_registry", "find_model_local_ckpt_path"), _REGISTRY),
    **dict.fromkeys(("LightningLSTM", "SequenceSampler", "SimpleLSTM"), "use Transformer and WikiText2, or copy it."),
    **dict.fromkeys(("BoringDataModuleNoLen", "IterableBoringDataModule"), "use RandomIterableDataset in a loader."),
    "ACCELERATOR_REGISTRY": "declare an entry point of the group lightlib.accelerators.",
    "LitLogger": "use TensorBoardLogger or CSVLogger for files, or WandbLogger or AimLogger for a service.",
    "RegisterRecordFunction": "use lightlib.profilers.PyTorchProfiler, which names the layers.",
    "STRATEGY_REGISTRY": "declare an entry point of the group lightlib.strategies.",
    "ScheduleWrapper": "use lightlib.profilers.PyTorchProfiler(schedule=…).",
    "ServableModuleValidator": "send a request to the server of your choice in a test.",
    "fabric_plugin_to_compute_dtype": "use trainer.precision.",
    "prepare_for_backward": 'use strategy="ddp", which does it.',
}


class Absent:
    """Base of all stand-ins: nothing is an instance of them, and making one raises."""

    instead = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse(type(self).__name__, self.instead)


class AbsentAccelerator(Absent):
    """Stand-in for an accelerator: programs ask whether there is one."""

    @staticmethod
    def is_available() -> bool:
        """Whether this machine has such devices that lightlib can use: no."""
        return False

    @staticmethod
    def auto_device_count() -> int:
        """Return the number of devices: none."""
        return 0


def refuse(name: str, instead: str) -> NoReturn:
    """Raise the error for the use of a name that is not provided."""
    raise MisconfigurationException(
        f"{name} is a name of Lightning that lightlib does not provide.",
        expected="a program that does without it, or one of lightlib's own classes.",
        fix=f"{instead or 'remove it.'} Otherwise, {OF_A_PACKAGE}",
    )


@functools.cache
def stand_in(name: str) -> type[Absent]:
    """Return the class that stands for a name: one, wherever Lightning has the name.

    Example:
        >>> XLAStrategy = stand_in("XLAStrategy")
        >>> isinstance("ddp", XLAStrategy)
        False
        >>> XLAStrategy()
        Traceback (most recent call last):
            ...
        lightlib.errors.MisconfigurationException: XLAStrategy is a name of Lightning that lightlib does not provide...
    """
    base = AbsentAccelerator if name.endswith("Accelerator") else Absent
    return type(name, (base,), {"__module__": __name__, "instead": INSTEAD.get(name, "")})
