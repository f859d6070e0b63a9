"""ModelSummary: a table of the module's layers, parameters, sizes and FLOPs before training."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils.flop_counter import FlopCounterMode

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.rich_console import console
from lightlib.callbacks.summary.rows import OTHERS, Layer, merged
from lightlib.callbacks.summary.training_memory import described, expected_memory, three_digits
from lightlib.conventions import order
from lightlib.errors import UnknownNameError, check_int, check_type
from lightlib.tree import map_tensors

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

__all__ = ["Layer", "ModelSummary", "RichModelSummary", "Summary", "human", "summarize"]

_Size = Any  # list[int], a list of sizes, or "?" where there is no tensor
_Stage = tuple[list[Layer], dict[str, bool], int, int, float]
_NOT_COUNTED = "Not counted"
_NUMBERS = ("Params", "FLOPs")  # columns


class Summary:
    """The layers of a module and their sizes.

    With an `example_input_array` on the module (a tensor, a tuple of arguments or a dict of keyword arguments), the
    example goes through the module once, without gradients and in evaluation mode, for sizes and FLOPs. Random states,
    modes and buffers are afterwards as before.

    Args:
        module: The module to describe.
        max_depth: How deep modules are listed: 1 for children, -1 for all, 0 for totals only. Default: 1.
        run_example: Whether the example goes through the module, which it cannot where a process has only some of the
            layers. Default: True.

    Raises:
        ArgumentTypeError: `module` is not a module, or `max_depth` is not an int.
        MisconfigurationException: `max_depth` is less than -1.

    Example:
        >>> summary = Summary(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()))
        >>> summary.total_parameters, [layer.type for layer in summary.layers]
        (8, ['Linear', 'ReLU'])
    """

    def __init__(self, model: nn.Module, max_depth: int = 1, run_example: bool = True) -> None:
        check_type("ModelSummary", "model", model, nn.Module, "a torch.nn.Module", "module")
        check_int("ModelSummary", "max_depth", max_depth, -1, meaning=": 1 for children, -1 for all")
        self.module = model
        self.max_depth = max_depth
        parameters = list(model.parameters())
        sized = [parameter for parameter in parameters if not isinstance(parameter, UninitializedParameter)]
        self.uninitialized: bool = len(sized) < len(parameters)
        self.total_parameters: int = _count(sized)
        self.trainable_parameters: int = _count(p for p in sized if p.requires_grad)
        self.model_size: float = sum(_count([p]) * p.element_size() for p in sized) / 1e6
        self.total_flops: int | None = None
        self.memory: dict[str, str] = {}
        self._modes_elsewhere: dict[str, bool] = {}
        self.layers: list[Layer] = []
        self._rows: dict[nn.Module, Layer] = {}
        self._list_layers()
        example = getattr(model, "example_input_array", None)
        if example is not None and run_example:
            self._run(example)

    @property
    def non_trainable_parameters(self) -> int:
        """Parameters that are frozen."""
        return self.total_parameters - self.trainable_parameters

    @property
    def total_training_modes(self) -> dict[str, int]:
        """How many modules below this one are in training mode and how many in evaluation mode."""
        modes = [*self.modes().values(), *self._modes_elsewhere.values()]
        return {"train": sum(modes), "eval": len(modes) - sum(modes)}

    def modes(self) -> dict[str, bool]:
        """Return by name whether each module below this one is in training mode."""
        return {name: child.training for name, child in self.module.named_modules() if name}

    def columns(self) -> dict[str, list[str]]:
        """Return the table, column by column; columns that nothing is known about are left out."""
        columns = {
            "Name": [layer.name for layer in self.layers],
            "Type": [layer.type for layer in self.layers],
            "Params": [human(layer.parameters) + ("?" if layer.uninitialized else "") for layer in self.layers],
            "Mode": [{True: "train", False: "eval", None: ""}[layer.training] for layer in self.layers],
        }
        if self.total_flops:
            columns["FLOPs"] = ["" if layer.flops is None else human(layer.flops) for layer in self.layers]
        if any(layer.in_size is not None for layer in self.layers):
            columns["In sizes"] = ["" if layer.in_size is None else str(layer.in_size) for layer in self.layers]
            columns["Out sizes"] = ["" if layer.out_size is None else str(layer.out_size) for layer in self.layers]
        return columns

    def totals(self) -> dict[str, str]:
        """Return the lines below the table."""
        modes = self.total_training_modes
        totals = {
            "Trainable params": human(self.trainable_parameters),
            "Non-trainable params": human(self.non_trainable_parameters),
            "Total params": human(self.total_parameters),
            "Total size of params (MB)": f"{self.model_size:,.3f}",
            "Modules in train mode": str(modes["train"]),
            "Modules in eval mode": str(modes["eval"]),
        }
        if self.total_flops:
            totals["FLOPs of a forward"] = human(self.total_flops)
        if self.uninitialized:
            totals[_NOT_COUNTED] = "parameters of lazy modules (?), which get a shape with the first batch"
        return totals | self.memory

    def add_stages(self, stages: Sequence[_Stage], names: Sequence[str]) -> None:
        """Add the remaining stages of a pipeline; each has different layers of the same module.

        Args:
            stages: The layers of each stage, the modes of its modules, its parameters, how many of them are trained,
                and their size.
            names: Of all parameters of the module, in its order, in which the layers are listed afterwards.
        """
        self.layers = merged([self.layers, *(stage[0] for stage in stages)], names)
        local_modes = self.modes()
        for _, modes, parameters, trainable, size in stages:
            self._modes_elsewhere |= {name: mode for name, mode in modes.items() if name not in local_modes}
            self.total_parameters += parameters
            self.trainable_parameters += trainable
            self.model_size += size

    def __str__(self) -> str:
        lines = _aligned(self.columns()) if self.layers else []
        totals = self.totals()
        sentences = {_NOT_COUNTED, *self.memory}
        width = max(len(value) for name, value in totals.items() if name not in sentences)
        lines += [f"{value:<{width}}  {name}" for name, value in totals.items() if name not in sentences]
        lines += [f"{name}: {value}" for name, value in totals.items() if name in sentences]
        return "\n".join(lines)

    def _list_layers(self) -> None:
        if self.max_depth == 0:
            return
        for name, module in self.module.named_modules():
            if name and (self.max_depth < 0 or name.count(".") < self.max_depth):
                lazy = any(isinstance(parameter, UninitializedParameter) for parameter in module.parameters())
                layer = Layer(name, _kind(module), _count(module.parameters()), module.training, lazy)
                self._rows[module] = layer
                self.layers.append(layer)
        listed = {id(parameter) for module in self._rows for parameter in module.parameters()}
        others = [parameter for parameter in self.module.parameters() if id(parameter) not in listed]
        if others:
            lazy = any(isinstance(parameter, UninitializedParameter) for parameter in others)
            self.layers.append(Layer(OTHERS, "", _count(iter(others)), None, lazy))

    def _run(self, example: Any) -> None:
        if self.uninitialized or any(isinstance(buffer, UninitializedBuffer) for buffer in self.module.buffers()):
            return  # running a lazy module would give it its shapes
        example = _like_parameters(example, self.module)
        with ExitStack() as stack:
            stack.enter_context(_untouched(self.module))
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            for module, layer in self._rows.items():
                handle = module.register_forward_hook(_recorder(layer), with_kwargs=True)
                stack.callback(handle.remove)
            counter = stack.enter_context(FlopCounterMode(display=False))
            try:
                if isinstance(example, dict):
                    self.module(**example)
                elif isinstance(example, (tuple, list)):
                    self.module(*example)
                else:
                    self.module(example)
            except Exception as error:  # noqa: BLE001 - whatever the user's forward raises
                report.warn(
                    f"The example_input_array does not go through {type(self.module).__name__}.forward: "
                    f"{type(error).__name__}: {error}\n"
                    "  Expected: a tensor, a tuple of arguments or a dict of keyword arguments that forward accepts.\n"
                    "  Fix: correct example_input_array, or set it to None; the summary goes without sizes and FLOPs.",
                    report.PossibleUserWarning,
                )
                for layer in self._rows.values():
                    layer.note_sizes(None, None)
                return
        self.total_flops = counter.get_total_flops()
        counts = counter.get_flop_counts()
        for layer in self._rows.values():
            of_layer = counts.get(f"{type(self.module).__name__}.{layer.name}")
            layer.note_flops(sum(of_layer.values()) if of_layer else 0)

    # the columns as Lightning names them, with one entry per row
    @property
    def named_modules(self) -> list[tuple[str, nn.Module]]:
        """The modules of the rows with their names."""
        return [(layer.name, self.module.get_submodule(layer.name)) for layer in self._of_modules()]

    @property
    def layer_names(self) -> list[str]:
        """The names within the root module."""
        return [layer.name for layer in self._of_modules()]

    @property
    def layer_types(self) -> list[str]:
        """The names of the classes."""
        return [layer.type for layer in self._of_modules()]

    @property
    def param_nums(self) -> list[int]:
        """How many numbers the parameters of each hold."""
        return [layer.parameters for layer in self._of_modules()]

    @property
    def training_modes(self) -> list[bool]:
        """Whether each is in training mode."""
        return [bool(layer.training) for layer in self._of_modules()]

    @property
    def in_sizes(self) -> list[_Size]:
        """The shapes of the inputs, ``"?"`` where the example did not pass."""
        return ["?" if layer.in_size is None else layer.in_size for layer in self._of_modules()]

    @property
    def out_sizes(self) -> list[_Size]:
        """The shapes of the outputs, ``"?"`` where the example did not pass."""
        return ["?" if layer.out_size is None else layer.out_size for layer in self._of_modules()]

    def _of_modules(self) -> list[Layer]:
        return [layer for layer in self.layers if layer.name != OTHERS]


def _aligned(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    padded = []
    for title, cells in columns.items():
        width, side = max(map(len, [title, *cells])), ">" if title in _NUMBERS else "<"
        padded.append([f"{title:<{width}}", *(f"{cell:{side}{width}}" for cell in cells)])
    titles, *rows = [" | ".join(row) for row in zip(*padded, strict=True)]
    rule = "-" * len(titles)
    return [line.rstrip() for line in (titles, rule, *rows, rule)]


def summarize(lightning_module: nn.Module, max_depth: int = 1) -> Summary:
    """Return the :class:`Summary` of a module.

    Example:
        >>> summarize(torch.nn.Linear(3, 2)).model_size
        3.2e-05
    """
    return Summary(lightning_module, max_depth)


class ModelSummary(Callback):
    """Prints a table of the module's layers when `fit` begins; when it begins again, only a table that has changed.

    With several processes the sizes are those of the full module, whichever shard each process holds, and a line
    below gives the bytes of parameters, gradients and optimizer state that will be on each.

    Args:
        max_depth: How deep modules are listed: 1 for children, -1 for all, 0 for no summary. Default: 1.
        **summarize_kwargs: Handed to :meth:`show` of a class that has a use for them.

    Raises:
        ArgumentTypeError: `max_depth` is not an int.
        MisconfigurationException: `max_depth` is less than -1.
        UnknownNameError: There is another argument, and `show` has no use for it.

    Example:
        >>> ModelSummary(max_depth=-1).max_depth
        -1
    """

    def __init__(self, max_depth: int = 1, **summarize_kwargs: Any) -> None:
        super().__init__()
        check_int("ModelSummary", "max_depth", max_depth, -1, meaning=": 1 for children, -1 for all")
        self._is_given = type(self).summarize is not ModelSummary.summarize
        if summarize_kwargs and type(self).show is ModelSummary.show and not self._is_given:
            name = next(iter(summarize_kwargs))
            raise UnknownNameError("argument of ModelSummary", name, ["max_depth"], fix="leave it out.")
        self.max_depth = max_depth
        self.summarize_kwargs = summarize_kwargs
        self._shown = ""

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        if not self.max_depth:
            return
        summary = _of_all(trainer, pl_module, self.max_depth)
        if trainer.is_global_zero and self._shown != str(summary):
            self._shown = str(summary)
            if self._is_given:
                report.write_output(self._summarize, summary)
            else:
                report.write_output(self.show, summary, **self.summarize_kwargs)

    def show(self, summary: Summary, **summarize_kwargs: Any) -> None:
        """Show the summary; called on rank zero only."""
        report.info(f"\n{summary}")

    def _summarize(self, summary: Summary) -> None:
        columns = [(title, cells) for title, cells in summary.columns().items()]
        rows = [(" ", [str(number) for number in range(len(summary.layers))]), *columns]
        self.summarize(
            rows, summary.total_parameters, summary.trainable_parameters, summary.model_size,
            summary.total_training_modes, total_flops=summary.total_flops or 0, **self.summarize_kwargs,
        )  # fmt: skip

    @staticmethod
    def summarize(
        summary_data: list[tuple[str, list[str]]],
        total_parameters: int,
        trainable_parameters: int,
        model_size: float,
        total_training_modes: dict[str, int],
        total_flops: int = 0,
        **summarize_kwargs: Any,  # noqa: ARG004  for overrides
    ) -> None:
        """Show a summary by its parts. A class that overrides it has it called in place of :meth:`show`.

        Args:
            summary_data: Titles of columns, and their cells.
            total_parameters, trainable_parameters: Their numbers.
            model_size: Of the parameters in MB.
            total_training_modes: How many modules are in the modes ``"train"`` and ``"eval"``.
            total_flops: Of a forward; 0 if they are not known.
            **summarize_kwargs: Those of the callback.
        """
        totals = {
            "Trainable params": human(trainable_parameters),
            "Non-trainable params": human(total_parameters - trainable_parameters),
            "Total params": human(total_parameters),
            "Total size of params (MB)": f"{model_size:,.3f}",
            **{f"Modules in {mode} mode": str(count) for mode, count in total_training_modes.items()},
            **({"FLOPs of a forward": human(total_flops)} if total_flops else {}),
        }
        lines = _aligned(dict(summary_data)) if summary_data and summary_data[0][1] else []
        report.info("\n" + "\n".join([*lines, *(f"{value:<10}  {name}" for name, value in totals.items())]))


class RichModelSummary(ModelSummary):
    """Prints the table with rich; the further arguments are those of `rich.table.Table`.

    Example:
        >>> RichModelSummary(max_depth=2, header_style="bold blue").summarize_kwargs
        {'header_style': 'bold blue'}
    """

    def show(self, summary: Summary, **summarize_kwargs: Any) -> None:
        from rich.table import Table  # optional: rich
        from rich.text import Text  # optional: rich

        shown = console()
        table = Table(**{"header_style": "bold", **summarize_kwargs})
        columns = summary.columns()
        for title in columns:
            table.add_column(title, justify="right" if title in _NUMBERS else "left", overflow="fold")
        for row in zip(*columns.values(), strict=True):
            table.add_row(*map(Text, row))
        if summary.layers:
            shown.print(table)
        for name, value in summary.totals().items():
            shown.print(Text.assemble((name, "bold"), ": ", value))


def _of_all(trainer: Trainer, module: nn.Module, max_depth: int) -> Summary:
    """Return the summary of the full module; every process calls this, also because a forward may need all."""
    if trainer.world_size == 1:
        return summarize(module, max_depth)
    strategy = trainer.strategy
    mesh = strategy.device_mesh
    stages = mesh["pipeline"] if mesh is not None and "pipeline" in (mesh.mesh_dim_names or ()) else None
    piped = stages is not None and stages.size() > 1
    own_stage = stages.get_local_rank() if stages is not None else 0
    memory = expected_memory(module, trainer.optimizers)
    summary = Summary(module, max_depth, run_example=not piped)
    counts = summary.total_parameters, summary.trainable_parameters, summary.model_size
    part: _Stage = (summary.layers, summary.modes(), *counts)
    everybody = strategy.collectives.all_gather_object((own_stage, memory, part if piped else None))
    if piped:
        parts = {
            stage: stage_part for stage, _, stage_part in everybody if stage != own_stage and stage_part is not None
        }
        summary.add_stages([parts[stage] for stage in sorted(parts)], getattr(strategy, "names", ()))
    for stage in sorted({stage for stage, *_ in everybody}):
        title = f"On each process of stage {stage}" if piped else "On each process"
        summary.memory[title] = described(
            [stage_memory for at, stage_memory, _ in everybody if at == stage], summary.model_size * 1e6
        )
    return summary


def human(value: float) -> str:
    """Write a count in about three digits with a unit.

    Example:
        >>> human(0), human(330), human(1234), human(124_439_808)
        ('0', '330', '1.23 K', '124 M')
    """
    return three_digits(value, ("", "K", "M", "B", "T", "P", "E"))


def _kind(module: nn.Module) -> str:
    """Return the name of the module's class, as its author wrote it: FSDP puts one of its own in front."""
    name = type(module).__name__
    return name.removeprefix("FSDP") if hasattr(module, "unshard") and hasattr(module, "reshard") else name


def _count(parameters: Iterable[nn.Parameter]) -> int:
    """Return how many elements there are; DeepSpeed's ZeRO-3 leaves empty parameters that know their size."""
    return sum(getattr(p, "ds_numel", p.numel()) for p in parameters if not isinstance(p, UninitializedParameter))


def _size(value: Any) -> _Size:
    if isinstance(value, torch.Tensor):
        return list(value.shape)
    if isinstance(value, (tuple, list)):
        return [_size(item) for item in value]
    if isinstance(value, dict):
        return {key: _size(item) for key, item in value.items()}
    return "?"


def _recorder(layer: Layer) -> Callable[..., None]:
    def record(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        inputs = [*args, *kwargs.values()]
        layer.note_sizes(_size(inputs[0] if len(inputs) == 1 else inputs), _size(output))

    return record


def _like_parameters(example: Any, module: nn.Module) -> Any:
    """Bring the example to the device and, if it is of another floating-point type, to the dtype of the parameters."""
    first = next((parameter for parameter in module.parameters() if parameter.is_floating_point()), None)
    if first is None:
        return example

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(first.device, first.dtype if tensor.is_floating_point() else None)

    return map_tensors(move, example)


@contextmanager
def _untouched(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards modes and buffers are as before, and by default random states."""
    draws = order().draws_globally
    modules = list(module.modules())
    modes = [child.training for child in modules]
    buffers = [dict(child._buffers) for child in modules]  # noqa: SLF001 - the very objects must come back
    values = [(buffer, buffer.clone()) for owned in buffers for buffer in owned.values() if buffer is not None]
    python_state, numpy = random.getstate(), sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    devices = {parameter.device for parameter in module.parameters() if parameter.device.type not in {"cpu", "meta"}}
    with ExitStack() as stack:
        if not draws:
            stack.enter_context(torch.random.fork_rng(devices=[]))
        for device in devices if not draws else ():
            stack.enter_context(torch.random.fork_rng([device], device_type=device.type))
        try:
            for child in modules:
                child.training = False
            yield
        finally:
            for child, mode, owned in zip(modules, modes, buffers, strict=True):
                child.training = mode
                child._buffers.clear()  # noqa: SLF001
                child._buffers.update(owned)  # noqa: SLF001
            with torch.no_grad():
                for buffer, value in values:
                    buffer.copy_(value)
            if not draws:
                random.setstate(python_state)
            if numpy and not draws:
                numpy.random.set_state(numpy_state)
