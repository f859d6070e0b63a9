"""A batch through a pipeline: cut, run by a schedule, and its loss sent to every stage."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

from lightlib.errors import MisconfigurationException
from lightlib.report import info
from lightlib.strategies.axes.axis import AxisContext, Step
from lightlib.strategies.axes.shard import sharded_roots
from lightlib.strategies.pipeline.chain import Chain
from lightlib.strategies.pipeline.cut import Cut
from lightlib.strategies.pipeline.micro_batches import loss_and_weight, merged, parts_of, size_of
from lightlib.strategies.pipeline.schedule import Engine, Kind, in_one_piece, micro_batches, shape_of
from lightlib.strategies.pipeline.stage import Call
from lightlib.torch_private import gather_groups, reduce_gradients
from lightlib.tree import tensors_in

_KEPT = 8  # engines; the oldest is dropped when there are more shapes


class Training:
    """Runs training batches on one process of the pipeline.

    Args:
        asked: The number of micro-batches that the user wants, or None.
        step: The module's training step, entered.
    """

    def __init__(
        self, kind: Kind, asked: int | None, chain: Chain, cut: Cut, module: nn.Module, step: Step, site: AxisContext
    ) -> None:
        self.kind, self.asked, self.chain, self.cut = kind, asked, chain, cut
        self.module, self.step, self.site = module, step, site
        self.processes, self.stages = distributed.get_world_size(chain.group), len(chain.ranks)
        self.last = chain.ranks[-1]
        self._roots = sharded_roots(module)
        for root in self._roots:
            gather_groups(root)
        self.full = 0
        self._engines: OrderedDict[tuple[int, int], Engine] = OrderedDict()
        self._odd_said = False
        self._sent: list[Any] = []  # broadcasts of this process that need not have arrived yet
        self._digests: dict[Any, int] = {}

    def __call__(self, batch: Any, batch_idx: int, backward: Callable[..., None], sync: bool) -> Any:
        """Run one batch forward and backward; return the mean loss, with the step's other outputs where it ran."""
        for sent in self._sent:
            sent.wait()
        self._sent.clear()
        number = self._number(batch)
        parts = parts_of(batch, max(number, 1), self.module)
        calls, seeds, shape = self._calls(parts, batch_idx)
        outputs: list[Any] = [None] * len(parts)

        def loss_of(index: int, output: Any) -> Tensor:
            result = self.cut.replay(self.step, "training_step", seeds[index], (parts[index], batch_idx), output)
            outputs[index] = result
            taken: list[Tensor] = []  # the loss as the run divides and scales it
            if result is not None:
                backward(result, by=taken.append, parts=len(parts))
            if taken:
                return taken[0]
            return sum(tensor.sum() * 0 for tensor in tensors_in([output]) if tensor.requires_grad)  # type: ignore[return-value]

        for root in self._roots:  # gradients add up until the end of the schedule, and are reduced once
            root.set_requires_gradient_sync(False)
            root.set_is_last_backward(False)
            root.set_reshard_after_backward(False)
        self._engine(number, shape, calls[0]).run(calls, loss_of)
        if sync:
            for root in self._roots:
                reduce_gradients(root)
        return self._exchanged(outputs, backward, sync)

    # before
    def _number(self, batch: Any) -> int:
        """Return the number of micro-batches, 0 for a batch that is run in one piece."""
        split_batch = getattr(self.module, "split_batch", None)
        size = size_of(batch, required=split_batch is None)
        if size is None:
            return self.asked or 2 * self.stages
        if split_batch is not None and self.asked is not None:
            return self.asked
        full = size >= self.full
        self.full = max(size, self.full)
        number = micro_batches(self.kind, size, self.asked, self.stages, self.processes, full)
        if not number and not self._odd_said:
            self._odd_said = True
            info(f"A batch of {size} samples goes through the pipeline in one piece: the schedule cannot cut it.")
        return number

    def _calls(self, parts: Sequence[Any], batch_idx: int) -> tuple[list[Call | None], list[int], int]:
        """Return each micro-batch's call of the part, where it is needed; seeds and shape are the first stage's."""
        first = self.chain.rank == self.chain.ranks[0]
        message = torch.zeros(4, dtype=torch.long)
        calls: list[Call | None] = [None] * len(parts)
        failure: BaseException | None = None
        if first:
            seed = random.getrandbits(31)  # not torch's generator: samplers shuffle as on one device
            try:
                calls = [self._call(part, seed + index, batch_idx) for index, part in enumerate(parts)]
                shape = self._one_shape(calls)
            except Exception as error:  # noqa: BLE001  raised on every process
                failure, shape = error, 0
            message = torch.tensor([seed, len(parts), shape, int(failure is not None)])
        self._broadcast(message, self.chain.ranks[0])
        seed, number, shape, failed = message.tolist()
        if failed:
            self._fail_together(failure)
        if number != len(parts):
            raise MisconfigurationException(
                f"The first stage has cut its batch into {number} micro-batches, this one into {len(parts)}.",
                expected="the same batch on each process of a pipeline.",
                fix="let the Trainer shard the data: all stages of a copy read the same part.",
            )
        seeds = [seed + index for index in range(number)]
        if not first and self.chain.captures:
            calls = [self._call(part, seed, batch_idx) for part, seed in zip(parts, seeds, strict=True)]
        return calls, seeds, shape

    def _broadcast(self, tensor: Tensor, source: int) -> None:
        """Send `tensor` of one process to the rest; the sender does not wait for them."""
        work = distributed.broadcast(tensor, group=self.chain.group, group_src=source, async_op=True)
        if self.chain.rank == source:
            self._sent.append(work)
        else:
            work.wait()

    def _call(self, part: Any, seed: int, batch_idx: int) -> Call:
        call = self.cut.capture(self.step, seed, (part, batch_idx))
        if call is None:
            raise self.cut.never("training_step")
        return call

    def _one_shape(self, calls: Sequence[Call | None]) -> int:
        shapes = {shape_of(call) for call in calls if call is not None}
        if len(shapes) > 1:
            first, second = sorted(map(str, shapes))[:2]
            raise MisconfigurationException(
                f"Micro-batches call the pipelined part with different shapes: {first:.150} and {second:.150}.",
                expected="equal shapes within a batch.",
                fix="pad, or define split_batch(batch, n) so that its parts have equal shapes.",
            )
        shape = shapes.pop()
        if shape not in self._digests:
            digest = hashlib.sha256(str(shape).encode()).digest()
            self._digests[shape] = int.from_bytes(digest[:7], "little")
        return self._digests[shape]

    def _fail_together(self, error: BaseException | None) -> None:
        """Raise the error of the first process on every process."""
        box = [f"{type(error).__name__}: {error}" if not isinstance(error, MisconfigurationException) else str(error)]
        distributed.broadcast_object_list(box, group=self.chain.group, group_src=self.chain.ranks[0])
        raise error if error is not None else MisconfigurationException(f"{box[0]}")

    def _engine(self, number: int, shape: int, call: Call | None) -> Engine:
        key = (number, shape)
        if key not in self._engines:
            kind = self.kind if number else in_one_piece(self.kind)
            self._engines[key] = Engine(kind, max(number, 1), self.chain, call)
            if len(self._engines) > _KEPT:
                self._engines.popitem(last=False)
        self._engines.move_to_end(key)
        return self._engines[key]

    # after
    def _exchanged(self, outputs: list[Any], backward: Callable[..., None], sync: bool) -> Any:
        """Send each micro-batch's loss and weight and the logged values to every stage; return the batch's output."""
        last = self.chain.rank == self.last
        logged = self.site.send() if last and sync else None
        payload = pickle.dumps(logged) if logged else b""
        if last:
            rows = [*zip(*map(loss_and_weight, outputs), strict=True)]  # losses, weights
            described = [any(output is None for output in outputs), _weighted(rows[1]), len(payload)]
            head = torch.tensor(described, dtype=torch.float64)
            values = torch.cat([*map(_numbers, rows)]).to(self.chain.device)
        else:
            head = torch.zeros(3, dtype=torch.float64)
            values = torch.zeros(2 * len(outputs), dtype=torch.float64, device=self.chain.device)
        head, values = self._from_last(head, values)
        skipped, weighted, length = map(int, head.tolist())
        if skipped:
            raise MisconfigurationException(
                "training_step returned None in a pipeline.",
                expected="a loss for each micro-batch: the gradients of all stages depend on it.",
                fix="return a loss of 0 (`loss * 0`) for a batch that should not count.",
            )
        if length:
            packed = torch.empty(length, dtype=torch.uint8)
            packed = torch.frombuffer(bytearray(payload), dtype=torch.uint8) if last else packed
            self._broadcast(packed, self.last)
            if not last:
                self.site.receive(pickle.loads(packed.numpy().tobytes()))  # noqa: S301  from a process of this run
        if last:
            return merged(outputs, bool(weighted))
        losses, weights = values[: len(outputs)].float(), values[len(outputs) :]
        for loss, weight in zip(losses.clone().requires_grad_(), weights, strict=True):
            content: dict[str, Any] = {"loss": loss}
            if weighted:
                content["weight"] = float(weight) if weighted == 1 else weight.float()
            backward(content, by=lambda loss: None, parts=len(outputs))
        return {"loss": losses.sum(), "weight": weights.sum().float()} if weighted else {"loss": losses.mean()}

    def _from_last(self, head: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Broadcast two tensors from the last stage; `values` stays on its device, so that the host need not wait."""
        if not values.is_cpu:
            self._broadcast(head, self.last)
            self._broadcast(values, self.last)
            return head, values
        together = torch.cat([head, values])
        self._broadcast(together, self.last)
        return together[: len(head)], together[len(head) :]


def _weighted(weights: Sequence[Any]) -> int:
    """Return 0 when losses have no weights, 1 when these are plain numbers, 2 when they are tensors."""
    numbers = [weight for weight in weights if weight is not None]
    return 0 if not numbers else 2 if isinstance(numbers[0], Tensor) else 1


def _numbers(values: Sequence[Any]) -> Tensor:
    """Return one number for each value, which is a tensor, a plain number or None."""
    if all(value is None for value in values):
        return torch.zeros(len(values), dtype=torch.float64)
    tensors = [torch.as_tensor(0.0 if value is None else value).detach().reshape(()) for value in values]
    return torch.stack(tensors).to(torch.float64)
