"""Notes on the error of a batch that is None, has other dtypes, or does not fit into memory."""

from __future__ import annotations

import re
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from lightlib import report
from lightlib.accelerators.out_of_memory import is_out_of_memory
from lightlib.callbacks.summary.training_memory import expected_memory, size
from lightlib.core.run import loop
from lightlib.errors import LightlibError
from lightlib.strategies.pipeline.micro_batches import size_of
from lightlib.tree import tensors_in

if TYPE_CHECKING:
    from lightlib.core.run.run import Run

_AROUND_BATCHES: dict[CodeType, str] = {
    loop.train_batch.__code__: "training",
    loop.evaluate.__code__: "",  # the stage is one of its variables
    loop.predict.__code__: "prediction",
}
_OF_DTYPES = re.compile(
    r"same dtype|expected scalar type|should be the same|match weight dtype|but expected (Float|Double|Half|BFloat16)"
    r"|input must have the type"
)
_TRUE = {torch.float16: "16-true", torch.bfloat16: "bf16-true", torch.float64: "64-true"}


class _Failed(NamedTuple):
    """The batch in which a run failed, its number, and the kind of its data."""

    batch: Any
    number: int
    kind: str


def explain_step(error: BaseException, run: Run) -> None:
    """Add notes to an error that ended a batch of a run. lightlib's own errors and exits stay unchanged."""
    if not isinstance(error, Exception) or isinstance(error, LightlibError):
        return
    failed = _failed_batch(error)
    if is_out_of_memory(error):
        report.add_note(error, _memory_note(run, failed))
    elif failed is not None and failed.batch is None:
        report.add_note(
            error,
            f"Batch {failed.number} of the {failed.kind} data is None.\n"
            "  Expected: a batch, which the step gets.\n"
            "  Fix: return one from the loader's `collate_fn`, or from the data set.",
        )
    elif failed is not None:
        explain_dtypes(error, run.module, failed.batch, run.strategy.precision.converts_input)


def explain_dtypes(error: Exception, module: nn.Module, data: Any, converts: bool, owner: str = "Trainer") -> None:
    """Add a note to an error of dtypes if the weights and the data have different floating ones.

    Args:
        error: The error.
        module: The user's module.
        data: Its batch or arguments.
        converts: Whether the precision converts the data.
        owner: The class with the argument `precision`.
    """
    if not isinstance(error, (RuntimeError, ValueError)) or not _OF_DTYPES.search(str(error)):
        return
    weights = {each.dtype for each in module.parameters() if each.is_floating_point()}
    floats = {each.dtype for each in tensors_in(data) if each.is_floating_point()}
    if not weights or not floats or len(weights | floats) == 1:
        return
    true = next((_TRUE[dtype] for dtype in weights if dtype in _TRUE), None)
    if true is None:
        precision = next((_TRUE[dtype] for dtype in floats if dtype in _TRUE), "64-true")
        fix = f"convert the data with tensor.float(), or {owner}(precision={precision!r})."
    elif converts:
        fix = f"give all weights and tensors one dtype; {owner}(precision=…) converts only tensors that it finds."
    else:
        fix = f"{owner}(precision={true!r}), which converts weights and data, in place of converting the module."
    report.add_note(
        error,
        f"The weights of {type(module).__name__} are {_names(weights)}, and its data are {_names(floats)}.\n"
        f"  Expected: one dtype, or mixed precision.\n  Fix: {fix}",
    )


def _failed_batch(error: BaseException) -> _Failed | None:
    """Read the batch from the traceback, so that nothing is noted while the run has no error."""
    failed, traceback = None, error.__traceback__
    while traceback is not None:
        code, variables = traceback.tb_frame.f_code, traceback.tb_frame.f_locals
        if code in _AROUND_BATCHES and "batch" in variables and "i" in variables:
            failed = _Failed(variables["batch"], variables["i"], _AROUND_BATCHES[code] or variables["stage"].name)
        traceback = traceback.tb_next
    return failed


def _memory_note(run: Run, failed: _Failed | None) -> str:
    stage = "" if failed is None else failed.kind
    if stage in ("", "training"):
        fix = "Trainer(activation_checkpointing=True), precision='bf16-mixed', or on several devices strategy='fsdp'"
        if not run.strategy.in_parts:  # else the batch was cut already
            fix = (
                'Trainer(accumulate_grad_batches="auto"), which trains each batch in micro-batches that fit, with the '
                "same samples per step; callbacks=[BatchSizeFinder()] finds the largest batch size.\n"
                f"    Otherwise {fix}"
            )
    else:
        fix = f"a smaller batch_size of the {stage} loader"
        if stage == "prediction":
            fix += ", or trainer.predict(…, return_predictions=False) with a callback that writes the predictions"
    return (
        f"{type(run.module).__name__} ran out of memory{f' in {stage}' if stage else ''}. {_sizes(run, failed)}\n"
        f"  Expected: weights, gradients, activations and batches that fit.\n  Fix: {fix}."
    )


def _sizes(run: Run, failed: _Failed | None) -> str:
    """Return the sizes of this process, without a change of the module: parameters that FSDP gathered count in full."""
    memory = expected_memory(run.module, run.optimization.optimizers, as_it_is=True)
    texts = [f"parameters {size(memory.parameters)}"]
    if run.optimization.optimizers:
        texts += [f"gradients {size(memory.gradients)}"]
        texts += [] if memory.optimizer_state is None else [f"optimizer state {size(memory.optimizer_state)}"]
    if failed is not None and (tensors := list(tensors_in(failed.batch))):
        samples = size_of(failed.batch)
        of = "" if samples is None else f" of {samples} sample" + "s" * (samples > 1)
        texts.append(f"batch{of} {size(sum(tensor.nbytes for tensor in tensors))}")
    total = run.strategy.accelerator.memory(run.strategy.root_device)
    device = "" if total is None else f"; the device has {size(total)}"
    return f"This process holds: {', '.join(texts)}{device}."


def _names(dtypes: set[torch.dtype]) -> str:
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
