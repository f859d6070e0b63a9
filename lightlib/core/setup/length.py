"""training_length: a length in epochs, batches or records, as arguments of the Trainer."""

from __future__ import annotations

from lightlib.errors import MisconfigurationException, check_int


def training_length(
    *,
    epochs: int | None = None,
    batches: int | None = None,
    records: int | None = None,
    batch_size: int | None = None,
    accumulate_grad_batches: int = 1,
) -> dict[str, int]:
    """Return the Trainer's arguments for a length in epochs, batches or records.

    Incomplete batches and steps do not count, but a training has one of each at least.

    Args:
        epochs: Passes over the data.
        batches: Batches, each of all processes together.
        records: Samples, over all processes; needs `batch_size`.
        batch_size: Samples per batch over all processes.
        accumulate_grad_batches: Batches per optimizer step. Default 1.

    Raises:
        MisconfigurationException: Not exactly one length, a number below 1, or records without `batch_size`.

    Example:
        >>> training_length(records=10, batch_size=3), training_length(records=2, batch_size=3)
        ({'max_steps': 3}, {'max_steps': 1})
        >>> training_length(batches=900, accumulate_grad_batches=4), training_length(epochs=64)
        ({'max_steps': 225}, {'max_epochs': 64})
    """
    lengths = {"epochs": epochs, "batches": batches, "records": records}
    limits = {name: value for name, value in lengths.items() if value is not None}
    if len(limits) != 1:
        raise MisconfigurationException(
            f"training_length got {', '.join(f'{name}={value!r}' for name, value in limits.items()) or 'no length'}.",
            expected="one of epochs, batches and records.",
            fix="training_length(batches=900)",
        )
    numbers = {**limits, "accumulate_grad_batches": accumulate_grad_batches}
    for name, value in {**numbers, **({} if batch_size is None else {"batch_size": batch_size})}.items():
        check_int("training_length", name, value, 1, fix=f"training_length({name}=1, …)")
    if epochs is not None:
        return {"max_epochs": epochs}
    if records is not None:
        if batch_size is None:
            raise MisconfigurationException(
                f"training_length(records={records}) without a batch size.",
                expected="batch_size: the samples of a batch over all processes.",
                fix=f"training_length(records={records}, batch_size=32)",
            )
        batches = max(1, records // batch_size)
    return {"max_steps": max(1, (batches or 1) // accumulate_grad_batches)}
