"""The sections `reproducibility`, `optimizations`, `profiling` and `retention_policy`."""

from __future__ import annotations

from typing import Any, ClassVar

from lightlib.experiment.file import checks
from lightlib.experiment.file.part import Part, key
from lightlib.experiment.file.place import Place

LARGEST_SEED = 2**31 - 1
_ALWAYS = "profiling measures from the first step to the last; fit.trainer.profiler times parts of a step."
_HOROVOD = "it belongs to Horovod; DDP chooses the size of its buckets."


class Reproducibility(Part):
    """Seeds.

    Attributes:
        experiment_seed: 0 to 2147483647. Default None: drawn when the experiment begins.
    """

    section: ClassVar[str] = "reproducibility"

    experiment_seed: int | None = key(checks.integer(0, LARGEST_SEED), default=None)


class Retention(Part):
    """How long logs are kept.

    Attributes:
        log_retention_days: Days after the end of a trial; 0: until the next cleanup, -1 (default): always. A cleanup is
            the start of a worker, and the end of the experiment.
    """

    section: ClassVar[str] = "retention_policy"

    log_retention_days: int = key(checks.integer(-1, 32767), default=-1)


class Profiling(Part):
    """Measurements of the machine.

    Attributes:
        enabled: Whether CPU, memory and GPU are measured once a second. Default False.
    """

    section: ClassVar[str] = "profiling"
    ignored: ClassVar[dict[str, str]] = dict.fromkeys(("begin_on_batch", "end_after_batch", "sync_timings"), _ALWAYS)

    enabled: bool = key(checks.flag, default=False)


def _precision(value: Any, place: Place) -> str:
    if value in ("O2", "O3"):
        place.refuse(
            f"is {value!r}, a level of Apex with weights in 16 bits.",
            "O0 or O1.",
            f"{place.line('O1')}, or fit.trainer.precision: 16-true",
        )
    return str(checks.choice("O0", "O1")(value, place))


def _averaged(value: Any, place: Place) -> bool:
    if value is False:
        place.wrong(
            value,
            "true: gradients of several batches are averaged.",
            "delete it, and multiply the learning rate by aggregation_frequency.",
        )
    return checks.flag(value, place)


class Optimizations(Part):
    """Settings of the Trainer that Determined has in a section of its own.

    Attributes:
        aggregation_frequency: Batches of an optimizer step (`accumulate_grad_batches`), at least 1. Default 1.
        average_aggregated_gradients: Only True, the default: gradients of these batches are averaged.
        gradient_compression: Whether DDP reduces gradients in 16 bits. Default False.
        mixed_precision: ``"O0"`` (default), or ``"O1"``: ``precision="16-mixed"``.
    """

    section: ClassVar[str] = "optimizations"
    ignored: ClassVar[dict[str, str]] = {
        "average_training_metrics": "training metrics are always averaged over the devices.",
        "tensor_fusion_threshold": _HOROVOD,
        "tensor_fusion_cycle_time": _HOROVOD,
        "auto_tune_tensor_fusion": _HOROVOD,
        "grad_updates_size_file": "Determined removed it.",
    }

    aggregation_frequency: int = key(checks.integer(1), default=1)
    average_aggregated_gradients: bool = key(_averaged, default=True)
    gradient_compression: bool = key(checks.flag, default=False)
    mixed_precision: str = key(_precision, default="O0")
