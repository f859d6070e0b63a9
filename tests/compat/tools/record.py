"""Small calls of Lightning's functions by their paths; records the answers of Lightning 2.6.6.

Run it with an interpreter whose environment has Lightning: `python tests/compat/tools/record.py`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import random
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

STORED = Path(__file__).with_name("recorded.json")


def answers(root, fabric):
    """Return the answers of the package `root`, such as ``lightning.pytorch``, and of its Fabric, by subject."""

    def at(path):
        return importlib.import_module(f"{root}.{path}")

    def of_fabric(path):
        return importlib.import_module(f"{fabric}.{path}")

    subjects = (texts, models, samplers, seeds, arguments, results, conversions)
    return {subject.__name__: subject(at, of_fabric) for subject in subjects}


def texts(at, of_fabric):
    """Return texts and converted texts."""
    summary, bar = at("utilities.model_summary"), at("callbacks.progress.tqdm_progress")
    numbers = [0, 1, 12, 123, 999, 1000, 1234, 12345, 10**6, 999999, 3 * 10**9, 4 * 10**14, 5 * 10**15]
    return {
        "counts": [summary.get_human_readable_count(one) for one in numbers],
        "sizes": [summary.get_formatted_model_size(one) for one in (0.0, 1.5, 12345.6789)],
        "shapes": [summary.parse_batch_shape(one) for one in (torch.ones(2, 3), [torch.ones(1), 3], "x")],
        "numbers": [bar.Tqdm.format_num(one) for one in (0.5, 1.0, 1e-9, 12345678.0, 3, "ab", "1", "0.25", 0.123456)],
        "finite": [bar.convert_inf(one) for one in (None, 1, float("inf"), float("nan"), -float("inf"))],
        "values": [at("core.saving").convert(one) for one in ("1", "0.5", "True", "None", "adam", "[1, 2]")],
    }


def models(at, of_fabric):
    """Return losses and outputs of the demonstration models, and the measures of a layer."""
    torch.manual_seed(3)
    words = torch.randint(0, 20, (2, 6))
    transformer = at("demos.transformer").Transformer(20, 8, 2, 8, 1, 0.0)
    net = at("demos.boring_classes").Net().eval()
    layer = nn.Linear(3, 2)
    summary = at("utilities.model_summary").LayerSummary(layer)
    before = [summary.in_size, summary.out_size]
    layer(torch.ones(5, 3))
    flops = of_fabric("utilities.throughput").measure_flops
    return {
        "transformer": transformer(words, words).sum().item(),
        "transformer's parameters": sorted(transformer.state_dict()),
        "mask": transformer.generate_square_subsequent_mask(3).tolist(),
        "net": [net(torch.ones(1, 1, 28, 28)).tolist(), sorted(net.state_dict())],
        "layer": [before, summary.in_size, summary.out_size, summary.layer_type, summary.num_parameters],
        "flops": [
            flops(layer, lambda: layer(torch.ones(4, 3))),
            flops(layer, lambda: layer(torch.ones(4, 3)), torch.sum),
        ],
    }


def samplers(at, of_fabric):
    """Return the indices of samplers."""
    wrapper = of_fabric("utilities.distributed").DistributedSamplerWrapper
    alone = at("overrides.distributed").UnrepeatedDistributedSampler
    wrapped = at("overrides.distributed").UnrepeatedDistributedSamplerWrapper
    torch.manual_seed(5)
    drawn = torch.utils.data.RandomSampler(range(7))
    places = [{"num_replicas": 3, "rank": rank} for rank in range(3)]
    shuffled = [alone(range(7), **place) for place in places]
    for one in shuffled:
        one.set_epoch(2)
    return {
        "wrapper": [list(wrapper([5, 3, 1, 0, 2], shuffle=False, **place)) for place in places],
        "wrapper of a random one": list(wrapper(drawn, shuffle=False, **places[0])),
        "unrepeated": [[list(one), len(one)] for one in shuffled],
        "unrepeated wrapper": [list(wrapped([5, 3, 1, 0, 2], shuffle=False, **place)) for place in places],
    }


def seeds(at, of_fabric):
    """Return the numbers that are drawn after seeding."""
    found = []
    for seed, worker, rank in ((1, 0, 0), (2**31 - 1, 3, 5), (42, 7, None)):
        torch.manual_seed(seed + worker)
        of_fabric("utilities.seed").pl_worker_init_function(worker, rank)
        found.append([torch.rand(2).tolist(), random.random(), float(np.random.rand())])
    return found


class Base:
    def __init__(self, width, *rest, depth=2, **options):
        self.found = COLLECT[-1](inspect.currentframe(), [])


class Derived(Base):
    def __init__(self, lr, *, name="x"):
        super().__init__(3, 4, depth=5, extra=lr)


COLLECT = []  # the function of the package in question


def arguments(at, of_fabric):
    """Return arguments that are read from signatures and frames."""
    parsing = at("utilities.parsing")
    COLLECT.append(parsing.collect_init_args)
    hparams = {"a": {"b": 1, "c": 2}, "d": 3}
    at("core.saving").update_hparams(hparams, {"a": {"b": 4}, "e": {"f": 5}})
    merged = at("loggers.logger").merge_dicts([{"a": 1, "b": {"c": 2}}, {"a": 4.0, "b": {"c": 6, "d": 1}}], {"a": max})
    return {
        "keys": [parsing.parse_class_init_keys(one) for one in (Base, Derived)],
        "collected": Derived(0.1).found,
        "updated": hparams,
        "merged": [merged["a"], sorted((name, float(value)) for name, value in merged["b"].items())],
    }


def results(at, of_fabric):
    """Return the results of closures."""
    automatic = at("loops.optimization.automatic")
    weight = torch.tensor([2.0], requires_grad=True)
    calls = []
    closure = automatic.Closure(
        lambda: automatic.ClosureResult.from_training_step_output({"loss": weight.pow(2).sum(), "x": 1}, 2),
        backward_fn=lambda loss: (calls.append("backward"), loss.backward())[0],
        zero_grad_fn=lambda: calls.append("zero_grad"),
    )
    returned = closure()
    result = closure.consume_result()
    manual = at("loops.optimization.manual").ManualResult.from_training_step_output(weight * 3)
    return {
        "closure": [returned.item(), result.loss.item(), result.asdict()["x"], weight.grad.item(), calls],
        "manual": [manual.asdict()["loss"].item(), manual.asdict()["loss"].requires_grad],
        "nothing": automatic.ClosureResult.from_training_step_output(None).asdict(),
    }


def conversions(at, of_fabric):
    """Return converted values, and whether objects have an interface."""
    convert = of_fabric("utilities.apply_func")
    types = of_fabric("utilities.types")
    tensors = convert.convert_to_tensors({"a": True, "b": 2, "c": [0.5, np.ones(2)]}, "cpu")
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
    memory = at("utilities.memory")
    error = RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed it")
    return {
        "tensors": [[str(one.dtype), one.tolist()] for one in (tensors["a"], tensors["b"], *tensors["c"])],
        "numbers": convert.convert_tensors_to_scalars({"a": torch.tensor(1.5), "b": [torch.tensor([2])], "c": "x"}),
        "optimizable": [isinstance(one, types.Optimizable) for one in (optimizer, nn.Linear(1, 1))],
        "steppable": [isinstance(one, types.Steppable) for one in (optimizer, nn.Linear(1, 1))],
        "cudnn": [memory.is_cudnn_snafu(one) for one in (error, RuntimeError("other"))],
        "clip": at("utilities").GradClipAlgorithmType.supported_types(),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    stored = json.dumps(answers("lightning.pytorch", "lightning.fabric"), indent=1)
    STORED.write_text(f"{stored}\n", encoding="utf-8")
