"""Replicate: replicas of one module with averaged gradients (DistributedDataParallel)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Literal

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from lightlib.errors import MisconfigurationException, UnknownNameError, few, owner
from lightlib.strategies.axes.axis import Axis, AxisContext, Step
from lightlib.strategies.axes.buckets import BucketOrder
from lightlib.strategies.axes.communication_hooks import communication_hook
from lightlib.strategies.axes.optimizer_checks import refuse_all_at_once
from lightlib.torch_private import set_gradient_sync

Wrapper = Callable[..., DistributedDataParallel]
_is_trained = attrgetter("requires_grad")
_DDP_OPTIONS = inspect.signature(DistributedDataParallel).parameters
# Before torch 2.13 it has the second name only, which with False also leaves out the copy of buffers at the start.
_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _DDP_OPTIONS else "broadcast_buffers"


def _check_options(options: dict[str, Any]) -> None:
    options_of_ddp = {*_DDP_OPTIONS} - {"module", "device_ids", "output_device"}
    for name in options:
        if name not in options_of_ddp:
            raise UnknownNameError(
                "option of DistributedDataParallel", name, options_of_ddp, fix="correct it, or leave it out."
            )


class Replicate(Axis):
    """Every process has a replica of the module and reads its own shard of the data; gradients are averaged.

    The module itself is not wrapped: DistributedDataParallel goes around its training step.

    Args:
        size: Replicas; -1: as many as there are processes left.
        find_unused_parameters: Look for parameters without a gradient in every step. Default False.
        static_graph: Promise that every step uses the same parameters. Default False.
        bucket_cap_mb: Megabytes of gradients that are sent at once. Default: torch's, 25.
        gradient_as_bucket_view: Let gradients live in the buckets, which saves their memory once. Default True.
        broadcast_buffers: Send the buffers of rank 0 to all at the start of each step. Default True.
        comm_hook: How gradients are sent: ``"bf16"``, ``"fp16"``, ``"powersgd"``, or a hook of torch's form
            ``hook(state, bucket)``.
        comm_state: The state of the hook.
        comm_wrapper: Called with the hook; returns the hook to use.
        wrapper: Called in place of DistributedDataParallel with the same arguments.
        zero: Shard the optimizer's state over the replicas (ZeroRedundancyOptimizer). Default False.
        options: Further arguments of DistributedDataParallel.

    Raises:
        MisconfigurationException: One of `options` is no argument of DistributedDataParallel.
    """

    name = "replicate"
    order = 20
    splits_batch = True
    equal_gradients = True
    replaced_by_hand = True

    def __init__(
        self,
        size: int = 1,
        *,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        bucket_cap_mb: float | None = None,
        gradient_as_bucket_view: bool = True,
        broadcast_buffers: bool = True,
        comm_hook: Literal["bf16", "fp16", "powersgd"] | Callable[..., Any] | None = None,
        comm_state: Any = None,
        comm_wrapper: Callable[..., Any] | None = None,
        wrapper: Wrapper | None = None,
        zero: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.size, self.zero = size, zero
        self.shares_buffers = broadcast_buffers
        self.options, self.summary = (frozenset({"zero"}), "zero 1") if zero else (frozenset(), "")
        if wrapper is None:
            _check_options(options)
        self._options = {
            "find_unused_parameters": find_unused_parameters,
            "static_graph": static_graph,
            "bucket_cap_mb": bucket_cap_mb,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            _BUFFERS: broadcast_buffers,
            **options,
        }
        self._hook, self._hook_state, self._hook_wrapper = comm_hook, comm_state, comm_wrapper
        self._wrapper = wrapper or DistributedDataParallel
        self._site: AxisContext | None = None
        self._ddp: DistributedDataParallel | None = None
        self._order: BucketOrder | None = None
        self._saved_order: list[str] = []
        self._parameters: list[nn.Parameter] = []
        self._trained: list[bool] = []  # which of them DistributedDataParallel averages

    def wrap_by(self, wrapper: Wrapper) -> None:
        """Call `wrapper` in place of DistributedDataParallel, with the same arguments; before `apply`."""
        self._wrapper = wrapper

    def check(self, module: nn.Module, site: AxisContext) -> None:
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise MisconfigurationException(
                f"{type(module).__name__} has no parameter that requires a gradient.",
                expected="something to train, when the strategy averages gradients.",
                fix=f"{owner()}(devices=1), or unfreeze a parameter.",
            )

    def apply(self, module: nn.Module, site: AxisContext) -> None:
        self._site = site
        module.to(site.device)
        step = _Step(module)
        if not site.automatic:  # any number of backward passes: gradients are averaged before each optimizer step
            self._ddp = self._order = None
            return
        self._parameters, self._saved_order = list(module.parameters()), []
        self._wrap(step, site)

    def _wrap(self, step: _Step, site: AxisContext) -> None:
        self._ddp = self._order = None  # the hooks of an earlier one end with it
        self._trained = list(map(_is_trained, self._parameters))
        ddp = self._wrapper(
            step,
            device_ids=site.accelerator.device_ids(site.device),
            process_group=_copies(site),
            **self._options,
        )
        if self._hook is not None:
            state, hook = communication_hook(self._hook, self._hook_state, _copies(site))
            ddp.register_comm_hook(state, hook if self._hook_wrapper is None else self._hook_wrapper(hook))
        self._ddp = ddp
        self._order = BucketOrder(ddp, step.module) if self._is_order_kept(step.module, site) else None
        self._rehearse()

    def _rehearse(self) -> None:
        """Bring back the saved order of the buckets, once it is that of the parameters that are trained."""
        if self._order is not None and self._saved_order:
            self._order.rehearse(self._saved_order)
            if self._order.names == self._saved_order:
                self._saved_order = []

    def _wrap_again(self) -> None:
        """Average the gradients of the parameters that are trained by now: some were frozen or unfrozen.

        All processes come here in the same batch. DistributedDataParallel learns at its construction what is trained:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html.
        """
        assert self._ddp is not None
        assert self._site is not None
        self._wrap(self._ddp.module, self._site)

    def _is_order_kept(self, module: nn.Module, site: AxisContext) -> bool:
        """Whether sums depend on the order of the buckets, and a backward of zeros can bring it back."""
        options = self._options
        rearranged = not (options["find_unused_parameters"] or options["static_graph"])
        plain = self._wrapper is DistributedDataParallel and self._hook is None
        sparse = any(getattr(part, "sparse", False) for part in module.modules())  # gradients of embeddings
        return rearranged and plain and not sparse and distributed.get_world_size(_copies(site)) > 2

    def enter(self, name: str, method: Step) -> Step:
        if name != "training_step" or self._ddp is None:
            return method
        self._ddp.module.__dict__["step"] = method

        def averaged(*args: Any) -> Any:
            try:
                return self._ddp(*args)  # type: ignore[misc]
            except RuntimeError as error:
                if (named := _naming_unused(error, self._ddp)) is None:
                    raise
                raise named from error

        return averaged

    def around(self, step: Step) -> Step:
        if self._ddp is None:
            return step
        # torch learns a static graph in the first backward, which must be complete
        static = bool(self._options["static_graph"])
        first = static

        def synced_at_the_end(batch: Any, batch_idx: int, backward: Any, sync: bool) -> Any:
            nonlocal first
            if list(map(_is_trained, self._parameters)) != self._trained:
                self._wrap_again()
                first = static
            ddp, order = self._ddp, self._order
            assert ddp is not None
            set_gradient_sync(ddp, sync or first)
            first = first and not sync
            if sync and order is not None and order.names is None:
                with order.noted():
                    return step(batch, batch_idx, backward, sync)
            return step(batch, batch_idx, backward, sync)

        return synced_at_the_end

    def optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Return the optimizer to step: with `zero` one that keeps the state of a shard of the parameters."""
        if not self.zero:
            return optimizer
        refuse_all_at_once(optimizer, "with zero1")
        from lightlib.strategies.axes.zero import shard_state  # optional: torch.distributed.optim, slow to import

        assert self._site is not None
        return shard_state(optimizer, _copies(self._site))

    @property
    def sends_buffers(self) -> bool:  # type: ignore[override]
        """Whether every step begins with the buffers of the first process."""
        return self.shares_buffers and self._ddp is not None

    def state_dict(self) -> dict[str, Any]:
        return {} if self._order is None or self._order.names is None else {"order": self._order.names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._saved_order = list(state.get("order", ()))
        self._rehearse()

    def sync_gradients(self, optimizer: Optimizer) -> None:
        """Average the gradients of `optimizer`; one that some process does not have counts as 0 there."""
        if self._ddp is not None or self._site is None:
            return
        group, device = _copies(self._site), self._site.device
        parameters = [p for entry in optimizer.param_groups for p in entry["params"] if p.requires_grad]
        every = used_anywhere(parameters, group, device)
        for parameter, used in zip(parameters, every, strict=True):
            if used and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)  # where torch keeps it
        for bucket in _buckets([p.grad for p, used in zip(parameters, every, strict=True) if used]):
            _average(bucket, group)


def used_anywhere(parameters: list[Tensor], group: Any, device: torch.device) -> list[bool]:
    """Return for each parameter whether it has a gradient on some process of `group`; all of them call this."""
    present = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8, device=device)
    distributed.all_reduce(present, distributed.ReduceOp.MAX, group=group)
    return list(map(bool, present.tolist()))


def _naming_unused(error: RuntimeError, ddp: Any) -> MisconfigurationException | None:
    """Return an error with the names of parameters without a gradient, which torch reports by their numbers."""
    match = re.search(r"did not receive grad for rank \d+:([\d ]+)", str(error))
    if match is None:
        return None
    trained = [name for name, parameter in ddp.module.module.named_parameters() if parameter.requires_grad]
    numbers = [number for number in map(int, match[1].split()) if number < len(trained)]
    names = [trained[number] for number in numbers]
    return MisconfigurationException(
        f"The last training step gave these parameters of {type(ddp.module.module).__name__} no gradient: "
        f"{few(names, 10)}.",
        expected="a loss that depends on every parameter that requires a gradient, which 'ddp' averages.",
        fix=f"{owner()}(strategy='ddp_find_unused_parameters_true') if that is intended; if it always is, freeze them: "
        "parameter.requires_grad_(False).",
    )


def _copies(site: AxisContext) -> Any:
    """Return the group of all replicas of the parameters; the shards of one sample have one each."""
    split = [name for name in site.sizes if name in (*site.splits_batch, *site.splits_samples)]
    return site.along(*split).get_group()


class _Step(nn.Module):
    """The module that DistributedDataParallel wraps: its forward is the user's training step."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        step: Step = self.__dict__["step"]  # set by `enter`; not a submodule
        return step(*args)


def _buckets(gradients: list[Any], limit: int = 25 * 2**20) -> list[list[Tensor]]:
    """Return the gradients in lists of one dtype and of at most `limit` bytes."""
    buckets: list[list[Tensor]] = []
    size = 0
    for gradient in gradients:
        bytes_of = gradient.numel() * gradient.element_size()
        if not buckets or size + bytes_of > limit or buckets[-1][0].dtype != gradient.dtype:
            buckets.append([])
            size = 0
        buckets[-1].append(gradient)
        size += bytes_of
    return buckets


def _average(bucket: list[Tensor], group: Any) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
    distributed.all_reduce(flat, group=group)
    flat /= distributed.get_world_size(group)
    for gradient, mean in zip(bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True):
        gradient.copy_(mean.view_as(gradient))
