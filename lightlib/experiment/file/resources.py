"""The sections `resources`, `bind_mounts` and `slurm`: slots, memory, devices and folders of a trial."""

from __future__ import annotations

import posixpath
from typing import Any, ClassVar

from typing_extensions import Self

from lightlib.experiment.file import checks
from lightlib.experiment.file.part import Part, key
from lightlib.experiment.file.place import Place
from lightlib.experiment.file.units import memory

SHM_SIZE = 4294967296  # bytes: 4 GiB

_path = checks.text("/data")


class Device(Part):
    """A device that a container gets.

    Attributes:
        host_path: On the machine.
        container_path: In the container. Default in the short form ``/dev/x``: the same.
        mode: Of ``r``, ``w`` and ``m``. Default ``"mrw"``.
    """

    host_path: str = key(_path)
    container_path: str = key(_path)
    mode: str = key(checks.text("mrw"), default="mrw")

    @classmethod
    def expanded(cls, value: Any, place: Place) -> Any:
        """Return the mapping for the form of Docker: ``HOST[:CONTAINER[:MODE]]``."""
        if not isinstance(value, str):
            return value
        host, container, mode = (*value.split(":"), "", "", "")[:3]
        if not host or value.count(":") > 2:
            place.wrong(value, "a device: HOST_PATH[:CONTAINER_PATH[:MODE]].", place.line("/dev/infiniband"))
        return {"host_path": host, "container_path": container or host, "mode": mode or None}


class BindMount(Part):
    """A folder of the machine that each trial gets.

    Attributes:
        host_path: Absolute.
        container_path: Absolute, or relative to the folder of the trial, which itself cannot be one.
        read_only: Whether trials cannot write to it, which needs a container. Default False.
        propagation: Of Docker. Default ``"rprivate"``.
    """

    host_path: str = key(_path)
    container_path: str = key(_path)
    read_only: bool = key(checks.flag, default=False)
    propagation: str = key(
        checks.choice("rprivate", "private", "rshared", "shared", "rslave", "slave"),
        default="rprivate",
    )

    def checked(self, place: Place) -> Self:
        host, inside = place.below("host_path"), place.below("container_path")
        if not self.host_path.startswith("/"):
            host.wrong(self.host_path, "an absolute path.", host.line(f"/{self.host_path.removeprefix('./')}"))
        path = posixpath.normpath(self.container_path)
        if path in {".", ".."} or path.startswith("../"):
            inside.wrong(
                self.container_path,
                "an absolute path, or a folder below that of the trial, which itself cannot be a mount.",
                inside.line("data"),
            )
        return self


class Resources(Part):
    """The slots and the memory that an experiment may use.

    Attributes:
        slots_per_trial: Slots of a trial; 0 is a trial on the CPU. Default 1.
        max_slots: Slots of all its trials together. Default: no limit.
        priority: 1 to 99; lower ones are first. Default: none, which is as 42.
        weight: Its share of the slots among experiments of the same priority; greater than 0. Default 1.
        resource_pool: The pool whose workers run it. Default: any.
        is_single_node: Whether all slots of a trial must be on one machine. They always are; True also refuses several
            machines in `slurm.sbatch_args`. Default: not required.
        shm_size: Bytes of ``/dev/shm``. Default 4294967296.
        devices: Devices that containers get.
    """

    section: ClassVar[str] = "resources"
    ignored: ClassVar[dict[str, str]] = {
        "slots": "it has no effect on experiments; write slots_per_trial.",
        "agent_label": "Determined removed it; write resource_pool.",
        "native_parallel": "Determined removed it.",
    }

    slots_per_trial: int = key(checks.integer(0), default=1)
    max_slots: int | None = key(checks.integer(0), default=None)
    priority: int | None = key(checks.integer(1, 99), default=None)
    weight: float = key(checks.number(above=0, example=1), default=1)
    resource_pool: str | None = key(checks.text("default"), default=None)
    is_single_node: bool = key(checks.flag, default=False)
    shm_size: int = key(memory(), default=SHM_SIZE)
    devices: tuple[Device, ...] = key(checks.several(Device.read, "/dev/infiniband"), default=())

    @classmethod
    def expanded(cls, value: Any, place: Place) -> Any:  # noqa: ARG003  one signature for all
        """Leave out the empty pool that Determined prints."""
        if isinstance(value, dict) and value.get("resource_pool") == "":
            return {name: entry for name, entry in value.items() if name != "resource_pool"}
        return value

    def checked(self, place: Place) -> Self:
        if self.max_slots is not None and self.slots_per_trial > self.max_slots:
            here = place.below("max_slots")
            here.wrong(
                self.max_slots,
                f"at least slots_per_trial, which is {self.slots_per_trial}.",
                here.line(self.slots_per_trial),
            )
        return self


class Slurm(Part):
    """Options of SLURM.

    Attributes:
        gpu_type: The type of the GPUs that are requested. Default: any.
        sbatch_args: Arguments added to ``sbatch``.
        slots_per_node: The fewest slots that a machine must have, at least 1. Default: none.
    """

    section: ClassVar[str] = "slurm"

    gpu_type: str | None = key(checks.text("tesla"), default=None)
    sbatch_args: tuple[str, ...] = key(checks.several(checks.text("--exclusive"), "--exclusive"), default=())
    slots_per_node: int | None = key(checks.integer(1), default=None)
