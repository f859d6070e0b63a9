"""Batch norms with the mean and variance over all data processes, also where torch has none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable

from lightlib.errors import ArgumentTypeError
from lightlib.strategies.group.collectives import Collectives
from lightlib.torch_private import AnyBatchNorm


def synchronize(module: nn.Module, device: torch.device, processes: Collectives) -> None:
    """Replace each batch norm in `module` by one that normalizes by the samples of all `processes` together.

    Names of parameters and buffers stay. On GPUs it is torch's SyncBatchNorm, which does not run on the CPU; there it
    is :class:`SyncedBatchNorm`.
    """
    if processes.size == 1:
        return
    group = getattr(processes, "group", None)
    if device.type != "cpu":
        nn.SyncBatchNorm.convert_sync_batchnorm(module, group)  # type: ignore[no-untyped-call]
        return
    synced: dict[int, SyncedBatchNorm] = {}  # one layer may be in several places
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if name and isinstance(layer, AnyBatchNorm) and not isinstance(layer, SyncedBatchNorm):
            synced[id(layer)] = synced.get(id(layer)) or SyncedBatchNorm.of(layer, group)
            module.set_submodule(name, synced[id(layer)])


class Processes:
    """Holder of a process group, which can be neither copied nor pickled: copies share it, a pickle has none."""

    def __init__(self, group: Any = None, local: bool = True) -> None:
        self.group, self.local = group, local

    @property
    def size(self) -> int:
        """The number of processes."""
        return 1 if self.local or not distributed.is_initialized() else distributed.get_world_size(self.group)

    def __deepcopy__(self, _: Any) -> Processes:
        return self

    def __reduce__(self) -> Any:
        return Processes, ()


class SyncedBatchNorm(AnyBatchNorm):
    """A batch norm over the samples of all processes, on any device; they may have different numbers of samples.

    In training it exchanges two numbers per channel and a count in forward, and two numbers per channel in backward.
    Outputs, gradients and running statistics are those of one process with all samples. Statistics are computed in
    float32, or float64 for inputs of that type. In evaluation it exchanges nothing. Without other processes it is a
    batch norm as every other.

    Args:
        num_features, eps, momentum, affine, track_running_stats: As for `nn.BatchNorm1d`.
        processes: Those that share their samples. Default: this one alone.

    Raises:
        ArgumentTypeError: The input has fewer than two dimensions.
        ValueError: In training, there is one value per channel on all processes together.

    Example:
        >>> layer = SyncedBatchNorm(2)
        >>> layer(torch.tensor([[1.0, 2.0], [3.0, 2.0]])).round().tolist()
        [[-1.0, 0.0], [1.0, 0.0]]
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        processes: Processes | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.processes = processes or Processes()

    @classmethod
    def of(cls, layer: AnyBatchNorm, group: Any) -> SyncedBatchNorm:
        """Return a synchronized layer with the parameters, buffers and hooks of `layer`."""
        processes = Processes(group, local=False)
        synced = cls(layer.num_features, layer.eps, layer.momentum, False, layer.track_running_stats, processes)
        vars(synced).update({name: value for name, value in vars(layer).items() if name != "processes"})
        return synced

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002  torch's name
        if input.dim() < 2:
            raise ArgumentTypeError(
                f"A batch norm got an input of {input.dim()} dimensions.",
                expected="(samples, channels, …).",
                fix="x[None] for one sample, or x[:, None] for one channel",
            )

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's name
        """Normalize by the samples of all processes in training, by the running statistics in evaluation."""
        if not self.training or self.processes.size == 1:
            return super().forward(input)
        self._check_input_dim(input)
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        mean, square, count = _statistics(wide.detach(), self.processes)
        variance = square / count
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            self._update(mean, square / (count - 1))
        output = _Normalize.apply(wide, mean, torch.rsqrt(variance + self.eps), count, self.processes)  # type: ignore[no-untyped-call]
        if self.weight is not None:
            shape = (1, -1) + (1,) * (input.dim() - 2)
            output = output * self.weight.view(shape) + self.bias.view(shape)
        return output.to(input.dtype)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _update(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        factor = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            factor = 1 / float(self.num_batches_tracked) if factor is None else factor
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor or 0.0)
        self.running_var.lerp_(variance.to(self.running_var.dtype), factor or 0.0)


def _statistics(x: Tensor, processes: Processes) -> tuple[Tensor, Tensor, float]:
    """Return the mean of each channel over all processes, the sum of squared distances from it, and the count."""
    channels, rest = x.shape[1], [0, *range(2, x.dim())]
    number = x.numel() // channels
    mean = x.mean(rest) if number else x.new_zeros(channels)
    squares = (x - _along(mean, x)).square().sum(rest)
    mine = torch.cat([mean, squares, mean.new_full((1,), number)])
    rank_values = [torch.empty_like(mine) for _ in range(processes.size)]
    distributed.all_gather(rank_values, mine, group=processes.group)
    every = torch.stack(rank_values)
    means, counts = every[:, :channels], every[:, -1:]
    count = float(counts.sum())
    if count < 2:
        raise ValueError(f"A batch norm in training got one value per channel on all {processes.size} processes.")
    joint = (means * counts).sum(0) / count
    squares = every[:, channels:-1].sum(0) + ((means - joint).square() * counts).sum(0)
    return joint, squares, count


class _Normalize(torch.autograd.Function):
    """(x - mean) * scale, where mean and scale depend on the samples of all processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, scale: Tensor, count: float, processes: Processes) -> Tensor:
        output = (x - _along(mean, x)) * _along(scale, x)
        ctx.save_for_backward(output, scale)
        ctx.count, ctx.processes = count, processes
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        output, scale = ctx.saved_tensors
        rest = [0, *range(2, output.dim())]
        sums = torch.stack([gradient.sum(rest), (gradient * output).sum(rest)])
        distributed.all_reduce(sums, group=ctx.processes.group)
        mean, along = sums / ctx.count
        return _along(scale, output) * (gradient - _along(mean, output) - output * _along(along, output)), *[None] * 4


def _along(values: Tensor, x: Tensor) -> Tensor:
    """Return one value per channel in the shape of `x`."""
    return values.view((1, -1) + (1,) * (x.dim() - 2))
