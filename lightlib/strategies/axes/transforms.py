"""ActivationCheckpoint, Compile and ActivationOffload: transforms that change how layers are computed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import partial, wraps
from types import CodeType, FunctionType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from lightlib.errors import MisconfigurationException, UnknownNameError, check_flag, check_int, check_word, closest
from lightlib.report import PossibleUserWarning, warn
from lightlib.strategies.axes.axis import Axis, AxisContext, Step
from lightlib.strategies.axes.parallel_plan import ParallelPlan, blocks_of, container_of
from lightlib.torch_private import AnyBatchNorm, base_of, graph_break, operators_named

Blocks = bool | Literal["blocks"] | Sequence[str] | Callable[[str, nn.Module], bool] | None
_NORMS = (AnyBatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_COMPOSED = {  # functions that are made of other operations, by those to keep
    "linear": ("mm", "addmm"),
    "matmul": ("mm", "bmm", "addmm"),
    "scaled_dot_product_attention": (
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_fused_attention_overrideable",
    ),
}


class Transform(Axis):
    """Base of the transforms, which replace the forward of layers in place: a wrapper would change the names.

    Args:
        blocks: The layers: True for all, ``"blocks"`` or None for the repeated blocks, names with wildcards, or a
            function ``(name, module) -> bool``. With None some transforms take other layers if there are no blocks.

    Attributes:
        argument: The Trainer's argument that makes one.
        label: A few words for the line with which a run begins.
    """

    argument: str = ""
    label: str = ""

    def __init__(self, blocks: Blocks) -> None:
        super().__init__()
        self.blocks = blocks
        self._names: list[str] = []
        self._changes: list[tuple[nn.Module, Any, Any]] = []  # layers with their forwards before and since

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_changes": []}  # a copy has changed no layer

    def check(self, module: nn.Module, site: AxisContext) -> None:
        self.select(module, site.plan, site.around)

    def apply(self, module: nn.Module, site: AxisContext) -> None:
        for name, layer in module.named_modules() if site.pipelined is not None else ():
            if name in self._names and site.pipelined in set(layer.modules()):
                raise MisconfigurationException(
                    f"{self.argument}: {name} is, or holds, the module that the pipeline cuts into stages.",
                    expected="layers within it, which are called in one piece.",
                    fix=f'{self.argument}=["{name}.*"]',
                )
        self.change(module)

    def select(self, module: nn.Module, plan: ParallelPlan, around: Collection[str] = ()) -> None:
        """Choose the layers of `module`, and check them; nothing is changed yet.

        Args:
            plan: That of the module.
            around: The dimensions of more than one process, whose code may run between layers.
        """
        self._names = list(self._chosen(module, plan, around))

    def change(self, module: nn.Module) -> None:
        """Change the chosen layers until `teardown`, but for those that are changed."""
        here = dict(module.named_modules())  # a pipeline's stage has only some of them
        done = {layer for layer, *_ in self._changes}
        for layer in [here[name] for name in self._names if name in here and here[name] not in done]:
            before, changed = vars(layer).get("forward"), self._changed(layer)
            vars(layer)["forward"] = changed
            self._changes.append((layer, before, changed))

    def teardown(self) -> None:
        """Give the layers their own forwards back, but for those that another axis has changed since."""
        changes, self._changes = self._changes, []
        for layer, before, changed in changes:
            if vars(layer).get("forward") is not changed:
                self._changes.append((layer, before, changed))
                continue
            del vars(layer)["forward"]
            vars(layer).update({} if before is None else {"forward": before})

    @abstractmethod
    def _chosen(self, module: nn.Module, plan: ParallelPlan, around: Collection[str]) -> dict[str, nn.Module]:
        """Return the layers to change, by name."""

    @abstractmethod
    def _changed(self, layer: nn.Module) -> Callable[..., Any]:
        """Return the new forward of a layer: of parts that a copy of the layer copies with it, so no closure."""

    def _blocks(self, module: nn.Module, plan: ParallelPlan) -> dict[str, nn.Module]:
        """Return the named layers, or the repeated blocks, which may be none unless they were requested by name."""
        requested = None if self.blocks in (True, "blocks") else self.blocks
        blocks = blocks_of(module, plan, requested, f"{self.argument}: blocks")
        idle = [name for name, part in blocks.items() if isinstance(part, (nn.ModuleList, nn.ModuleDict))]
        if idle:
            kind = type(blocks[idle[0]]).__name__
            raise MisconfigurationException(
                f"{self.argument}: {idle[0]} is an nn.{kind}, which is never called itself.",
                expected="names of layers that are called.",
                fix=f'{self.argument}=["{idle[0]}.*"]',
            )
        if self.blocks == "blocks" and all(map(_is_single, blocks.values())) and not plan.blocks:
            raise self._without_blocks(module)
        return blocks

    def _without_blocks(self, module: nn.Module) -> MisconfigurationException:
        names = [name for name, child in module.named_children() if _computes(child)] or ["encoder"]
        return MisconfigurationException(
            f"{self.argument} found no blocks in {type(module).__name__}.",
            expected="an nn.ModuleList or nn.Sequential of blocks that are no single layers, or names of layers.",
            fix=f'{type(self).__name__}(blocks=["{names[0]}"]), or parallel_plan() with blocks=[…].',
        )

    def _pieces(self, module: nn.Module, plan: ParallelPlan, around: Collection[str]) -> dict[str, nn.Module]:
        """Return the named layers or blocks; without blocks their container or the module's children."""
        blocks = self._blocks(module, plan)
        named = plan.blocks or self.blocks not in (None, True)
        container = None if named or "pipeline" in around else container_of(module)
        if container is not None and isinstance(container[1], nn.Sequential) and container[1] is not module:
            blocks = dict([container]) if all(map(_is_single, blocks.values())) else blocks
        blocks = blocks or {name: child for name, child in module.named_children() if _computes(child)}
        if not blocks:
            raise MisconfigurationException(
                f"{self.argument}=True, but {type(module).__name__} has no child module with parameters.",
                expected="a module with layers.",
                fix=f'{type(self).__name__}(blocks=["encoder"]), or {self.argument}=False.',
            )
        return blocks


class ActivationCheckpoint(Transform):
    """Blocks keep only their inputs for backward, which runs their forward again: less memory, about a third more time.

    Losses and gradients are the same, bit for bit, and so are the running statistics of batch and instance norms, which
    count a batch once. Names of parameters do not change.

    Args:
        blocks: Names of modules, with wildcards (``"blocks.*"``), or a function ``(name, module) -> bool``. Default:
            those of `parallel_plan`, else the children of the largest ModuleList or Sequential.
        every: Only each n-th of them, beginning with the first. Default 1: all.
        preserve_rng_state: Draw the same random numbers in the second forward, which dropout needs. Default True.
        save: Operations whose results are kept, so that they are not computed again: names as ``"linear"``,
            ``"scaled_dot_product_attention"`` or ``"aten::bmm"``, operators of `torch.ops`, or a policy of
            `torch.utils.checkpoint.create_selective_checkpoint_contexts`. Default: none.

    Raises:
        MisconfigurationException: There are no blocks, there is no such operation, or `every` is less than 1.

    Example:
        >>> ActivationCheckpoint(every=2).every
        2
    """

    name, argument, label = "checkpointing", "activation_checkpointing", "activation checkpointing"

    def __init__(
        self,
        blocks: Blocks = None,
        every: int = 1,
        preserve_rng_state: bool = True,
        save: Sequence[Any] | Callable[..., Any] = (),
    ) -> None:
        super().__init__(blocks)
        self.every = check_int("ActivationCheckpoint", "every", every, 1, example=2)
        self.preserve_rng_state = check_flag("ActivationCheckpoint", "preserve_rng_state", preserve_rng_state)
        self.save = [save] if isinstance(save, str) else save
        self._operators()

    def _operators(self) -> Any:
        """Return the policy, or the operators to keep.

        Raises:
            UnknownNameError: There is no operation of a name.
            MisconfigurationException: An operation is composed of several.
        """
        if callable(self.save):
            return self.save
        names = [
            part
            for operator in self.save
            for part in (_COMPOSED.get(operator, (operator,)) if isinstance(operator, str) else (operator,))
        ]
        return [operator for name in names for operator in _operators_of(name)]

    def _chosen(self, module: nn.Module, plan: ParallelPlan, around: Collection[str]) -> dict[str, nn.Module]:
        chosen = dict([*self._blocks(module, plan).items()][:: self.every])
        if not chosen:
            raise self._without_blocks(module)
        if all(map(_is_single, chosen.values())):
            warn(
                f"activation_checkpointing: the blocks are single layers ({', '.join([*chosen][:3])}, …), which keep "
                "little but their inputs: it saves no memory. Name larger blocks: ActivationCheckpoint(blocks=[…]).",
                PossibleUserWarning,
            )
        return chosen

    def _changed(self, layer: nn.Module) -> Callable[..., Any]:
        options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": self.preserve_rng_state}
        if operators := self._operators():
            options["context_fn"] = partial(create_selective_checkpoint_contexts, operators)
        return partial(_checkpointed, layer, layer.forward, options)


def _checkpointed(layer: nn.Module, forward: Callable[..., Any], options: Any, *args: Any, **kwargs: Any) -> Any:
    norms = [] if torch.compiler.is_compiling() else [norm for norm in layer.modules() if isinstance(norm, _NORMS)]
    if norms:  # torch.compile keeps their statistics itself
        forward = partial(_counted_once, forward, norms, [])
    return checkpoint(forward, *args, **options, **kwargs)


def _counted_once(
    forward: Callable[..., Any], norms: Sequence[nn.Module], calls: list[None], *args: Any, **kwargs: Any
) -> Any:
    """Call `forward`; but for the first time without a change of running statistics."""
    calls.append(None)
    changes = [
        (values, name, values[name], value)
        for norm in (norms if len(calls) > 1 else ())
        for values, name, value in (
            (vars(norm), "momentum", 0.0),
            (vars(norm)["_buffers"], "num_batches_tracked", None),
        )
    ]
    for values, name, _, value in changes:
        values[name] = value
    try:
        return forward(*args, **kwargs)
    finally:
        for values, name, before, _ in changes:
            values[name] = before


class ActivationOffload(Transform):
    """Activations wait for backward in the memory of the CPU; parameters stay where they are.

    Losses and gradients are the same, bit for bit. Names of parameters do not change. Together with checkpointing the
    inputs of blocks are all that is kept, and they wait there.

    Args:
        blocks: Names of modules, with wildcards, or a function; ``"blocks"``: the repeated blocks. Default True:
            everything in a training step; within a pipeline, the blocks.
        pin_memory: Use page-locked memory, to which GPUs copy while they compute. Default True.

    Example:
        >>> ActivationOffload(blocks=["encoder.*"]).blocks
        ['encoder.*']
    """

    name, argument, label = "offload", "activation_offload", "activation offload"

    def __init__(self, blocks: Blocks = True, pin_memory: bool = True) -> None:
        super().__init__(blocks)
        self.pin_memory, self._takes_steps = check_flag("ActivationOffload", "pin_memory", pin_memory), False

    def _chosen(self, module: nn.Module, plan: ParallelPlan, around: Collection[str]) -> dict[str, nn.Module]:
        self._takes_steps = self.blocks is True and "pipeline" not in around
        return {} if self._takes_steps else self._pieces(module, plan, around)

    def _changed(self, layer: nn.Module) -> Callable[..., Any]:
        return partial(_offloaded, layer.forward, self.pin_memory)

    def enter(self, name: str, method: Step) -> Step:
        """Return the training step, within the context if it is the step from which activations are kept."""
        offloads = self._takes_steps and name == "training_step"
        return partial(_offloaded, method, self.pin_memory) if offloads else method


def _offloaded(forward: Callable[..., Any], pin_memory: bool, *args: Any, **kwargs: Any) -> Any:
    with _SavedOnCpu(pin_memory):
        return forward(*args, **kwargs)


class _SavedOnCpu(save_on_cpu):
    """Torch's context, without parameters, which stay on the device anyway, and with the shards of DTensors."""

    def __init__(self, pin_memory: bool) -> None:
        super().__init__(pin_memory)
        self.pack_hook = partial(_packed, self.pack_hook)
        self.unpack_hook = partial(_unpacked, self.unpack_hook)


def _packed(save: Callable[[Tensor], Any], tensor: Any) -> Any:
    if isinstance(base_of(tensor), nn.Parameter):
        return tensor
    if not hasattr(tensor, "to_local"):
        return save(tensor)
    layout = (tensor.device_mesh, tensor.placements)
    build = partial(type(tensor).from_local, run_check=False, shape=tensor.shape, stride=tensor.stride())
    with torch.no_grad():
        return save(tensor.to_local()), lambda shard: build(shard, *layout)


def _unpacked(load: Callable[[Any], Tensor], saved: Any) -> Tensor:
    if isinstance(saved, Tensor):
        return saved
    if not callable(saved[1]):
        return load(saved)
    with torch.no_grad():
        return saved[1](load(saved[0]))  # type: ignore[no-any-return]


class Compile(Transform):
    """Compiles the forward of each block. Equal blocks are compiled once.

    It comes after activation checkpointing and before `shard` and `replicate`, whose hooks stay outside of what is
    compiled. Names of parameters do not change.

    Args:
        blocks: Names of modules, with wildcards. Default: those of `parallel_plan`; else the children of the largest
            ModuleList or Sequential, or the Sequential itself when they are single layers; else the module's children.
            True: the steps of the module with all that they call, unless code of a strategy runs between the layers:
            on one device and with replicas. ``"blocks"``: the repeated blocks, and an error without any.
        mode: ``"default"``, ``"reduce-overhead"``, ``"max-autotune"``, …, as for `torch.compile`.
        dynamic: Whether sizes may vary without compiling again. Default None: found out when they do.
        fullgraph: Refuse what cannot be compiled as one graph. Default False.
        backend: Default ``"inductor"``.
        options: Further options of the backend, in place of a mode. Default: none.

    Raises:
        ArgumentTypeError: `fullgraph` is no bool.
        UnknownNameError: There is no such mode or backend.
        MisconfigurationException: The module has nothing to compile; `mode` and `options` are given; with `fullgraph`,
            the graph breaks.

    Example:
        >>> Compile(backend="aot_eager").backend
        'aot_eager'
    """

    name = argument = label = "compile"

    def __init__(
        self,
        blocks: Blocks = None,
        mode: str | None = None,
        dynamic: bool | None = None,
        fullgraph: bool = False,
        backend: str | Callable[..., Any] = "inductor",
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(blocks)
        if mode is not None:
            check_word("Compile", "mode", mode, _MODES)
        check_flag("Compile", "fullgraph", fullgraph)
        if mode is not None and options is not None:
            raise MisconfigurationException(
                f"Compile(mode={mode!r}, options={options!r}).",
                expected="one of the two: a mode is a set of options.",
                fix=f"Compile(options={options!r})",
            )
        self.backend = backend
        self._codes: dict[str, CodeType] = {}
        self._arguments: dict[str, Any] = {
            "mode": mode, "dynamic": dynamic, "fullgraph": fullgraph, "backend": backend, "options": options,
        }  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_codes": {}}  # code cannot be pickled

    def takes_steps(self, around: Collection[str]) -> bool:
        """Whether it compiles the steps of the module, and not the layers."""
        return self.blocks is True and set(around) <= {"replicate"}

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, compiled with the options."""
        if isinstance(self.backend, str):
            backends = torch.compiler.list_backends(exclude_tags=())
            if self.backend not in backends:
                fix = f"Compile(backend={closest(self.backend, backends, 'inductor')!r})"
                raise UnknownNameError("backend of torch.compile", self.backend, backends, fix=fix)
        compiled: Callable[..., Any] = torch.compile(function, **self._arguments)
        return _naming_breaks(compiled) if self._arguments["fullgraph"] else compiled

    def _chosen(self, module: nn.Module, plan: ParallelPlan, around: Collection[str]) -> dict[str, nn.Module]:
        return {} if self.takes_steps(around) else self._pieces(module, plan, around)

    def _changed(self, layer: nn.Module) -> Callable[..., Any]:
        # torch keeps compiled graphs with the code, up to a limit: equal blocks share one, different blocks do not.
        code = self._codes.setdefault(str(layer), _call.__code__.replace(co_name=type(layer).__name__))
        return partial(self.compiled(FunctionType(code, globals(), code.co_name)), layer.forward)


def _call(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `forward`: torch does not compile the forward of its own containers, but calls of it."""
    return forward(*args, **kwargs)


def _naming_breaks(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function; where its graph breaks, the error names the user's line."""

    @wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return compiled(*args, **kwargs)
        except Exception as error:
            if (graph_break_place := graph_break(error)) is None:
                raise
            reason, place, line = graph_break_place
            raise MisconfigurationException(
                f"compile with fullgraph=True: the graph breaks at {place}: `{line}` ({reason})",
                expected="code that torch.compile can capture as one graph.",
                fix='move the line out of what is compiled (with "blocks" the steps are not, so self.log is no break), '
                "or leave fullgraph out.",
            ) from error

    return call


def _operators_of(name: Any) -> list[Any]:
    if not isinstance(name, str):
        return [name]
    operators, packages = operators_named(name)
    if operators:
        return operators
    if packages is None:
        raise MisconfigurationException(
            f"ActivationCheckpoint(save=[{name!r}]): this function is made of other operations.",
            expected="operations that run: their results are kept.",
            fix=f"those within it, as a profiler names them, such as 'mm'; or {', '.join(map(repr, _COMPOSED))}.",
        )
    near = closest(name.removeprefix("aten::"), [*packages, *_COMPOSED], "mm")
    raise MisconfigurationException(
        f"ActivationCheckpoint(save=[{name!r}]): there is no operation of this name.",
        expected="a name of torch.ops.aten such as 'mm', of another library such as 'mine::op', or one of "
        f"{', '.join(map(repr, _COMPOSED))}.",
        fix=f"ActivationCheckpoint(save=[{near!r}])",
    )


def _is_single(part: nn.Module) -> bool:
    return not any(True for _ in part.children())


def _computes(part: nn.Module) -> bool:
    return not isinstance(part, (nn.ModuleList, nn.ModuleDict)) and any(True for _ in part.parameters())
