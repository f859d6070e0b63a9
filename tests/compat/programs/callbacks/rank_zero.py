"""Utilities of other packages: rank_zero_only and its messages, summaries, overridden methods, seeds."""

import json
import logging
import random
import warnings

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only, rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.model_summary import ModelSummary, summarize
from lightning.pytorch.utilities.rank_zero import rank_zero_debug
from lightning.pytorch.utilities.seed import isolate_rng
from lightning.pytorch.utilities.warnings import PossibleUserWarning
from lightning_utilities.core.rank_zero import rank_zero_only as of_utilities


@rank_zero_only
def download():
    return "downloaded"


class RankedLogger(logging.LoggerAdapter):
    """Logs on one rank, as Hydra templates do."""

    def __init__(self, name):
        super().__init__(logging.getLogger(name), {})

    def log(self, level, msg, rank=None, *args, **kwargs):
        current = getattr(rank_zero_only, "rank", None)
        if current is None:
            raise RuntimeError("the rank is not known")
        super().log(level, f"[{current}] {msg}", *args, **kwargs)


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU())
        self.decoder = torch.nn.Linear(5, 3)
        self.example_input_array = torch.zeros(2, 3)

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch, batch_idx):
        return self(batch).sum()


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)
    seeds = [pl.seed_everything(51, workers=True)]
    first = torch.rand(2).tolist(), random.random()
    with isolate_rng():
        torch.rand(3), random.random()
    after = torch.rand(1).item()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rank_zero_warn("warned once", category=PossibleUserWarning)
    rank_zero_info("info")
    rank_zero_debug("debug")
    RankedLogger("project").log(logging.INFO, "hello")
    on_zero = download()
    rank_zero_only.rank = 1
    on_one = download()
    rank_zero_only.rank = 0
    net = Net()
    summary, short = summarize(net, max_depth=2), ModelSummary(net)
    moved = move_data_to_device({"x": [torch.ones(2)]}, torch.device("cpu"))
    print(
        json.dumps(
            {
                "drawn": [first, after, seeds],
                "downloaded": [on_zero, on_one, of_utilities is rank_zero_only],
                "warned": [[str(one.message), one.category.__name__] for one in caught],
                "overridden": [is_overridden(name, net) for name in ("training_step", "validation_step", "forward")],
                "names": [name for name, _ in short.named_modules],
                "parameters": [summary.total_parameters, summary.trainable_parameters, summary.param_nums],
                "layers": [summary.layer_names, summary.layer_types, summary.in_sizes, summary.out_sizes],
                "moved": moved["x"][0].tolist(),
            }
        )
    )
