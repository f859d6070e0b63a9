"""Durations in samples and tokens, compared with a loop that counts by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lightlib.callbacks import Callback, DataCounter, ModelCheckpoint
from lightlib.callbacks.data_counter import tokens_of
from lightlib.cli import LightningCLI
from lightlib.errors import MisconfigurationException
from tests.processes.ranks import ranks
from tests.runs import plain
from tests.runs.modules import Validated
from tests.runs.plain import Net, Rows, quiet_trainer, same_weights

LENGTHS = [64, 3, 17, 5, 1, 9, 30, 2, 2, 8, 51, 4]


def words(every="step"):
    """A classifier of sentences; the learning rate halves at each interval of `every`."""

    def configure(parameters):
        optimizer = torch.optim.SGD(parameters, 0.5, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": every}}

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Validated(configure, net=nn.EmbeddingBag(11, 3))


class Validations(Callback):
    """The optimizer steps after which a validation ran."""

    not_in_checkpoint = ("steps",)

    def __init__(self):
        self.steps = []

    def on_validation_end(self, trainer, pl_module):
        self.steps.append(trainer.global_step)


def batches():
    """Batches of two sentences, of very different lengths."""
    generator = torch.Generator().manual_seed(0)
    return [(torch.randint(11, (2, length), generator=generator), torch.tensor([0, 2])) for length in LENGTHS]


def loader():
    return DataLoader(batches(), batch_size=None)


def counted_by_hand(limit, save, validate, halve, accumulate=1, epochs=50):
    """Train until `limit` tokens are seen. Return the weights, and the steps of saves and validations."""
    module = words()
    optimizer = torch.optim.SGD(module.parameters(), 0.5, momentum=0.9)
    tokens = before = step = 0
    saves, validations = [], []
    for _ in range(epochs):
        for start in range(0, len(LENGTHS), accumulate):
            window = batches()[start : start + accumulate]
            optimizer.zero_grad()
            for batch in window:
                (module.training_step(batch, 0) / len(window)).backward()
                tokens += batch[0].numel()
            optimizer.step()
            step += 1
            saves += [step] * (tokens // save > before // save)
            validations += [step] * (tokens // validate > before // validate)
            optimizer.param_groups[0]["lr"] *= 0.5 ** (tokens // halve - before // halve)
            before = tokens
            if tokens >= limit:
                return module, saves, validations, tokens
    raise AssertionError("the limit was not reached")


def trained(tmp_path, limit="900tok", **arguments):
    module, seen, counter = words("150tok"), Validations(), DataCounter()
    files = ModelCheckpoint(tmp_path, "{step}", every="100tok", save_top_k=-1)
    trainer = quiet_trainer(
        max_epochs=None, max_duration=limit, val_check_interval="70tok", enable_checkpointing=True,
        callbacks=[seen, files, counter], **arguments,
    )  # fmt: skip
    trainer.fit(module, loader(), DataLoader(batches()[:1], batch_size=None))
    return module, trainer, seen, counter


def saved(tmp_path):
    return sorted(int(path.stem.removeprefix("step=")) for path in tmp_path.glob("step=*.ckpt"))


@pytest.mark.parametrize("accumulate", [1, 4, 5])
def test_equals_a_loop_that_counts_by_hand(tmp_path, accumulate):
    expected, saves, validations, tokens = counted_by_hand(900, 100, 70, 150, accumulate)
    module, trainer, seen, counter = trained(tmp_path, accumulate_grad_batches=accumulate)
    assert same_weights(module, expected)
    assert (saved(tmp_path), seen.steps, counter.tokens_seen) == (saves, validations, tokens)
    assert counter.samples_seen == 2 * trainer.progress.batch


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_resumed_run_continues_to_count(tmp_path, accumulate):
    module, trainer, seen, _ = trained(tmp_path / "whole", accumulate_grad_batches=accumulate)
    trained(tmp_path / "parts", "300tok", accumulate_grad_batches=accumulate)
    last = max(saved(tmp_path / "parts"))
    resumed, rest, counter = words("150tok"), Validations(), DataCounter()
    files = ModelCheckpoint(tmp_path / "rest", every="100tok", save_top_k=-1)
    again = quiet_trainer(
        max_epochs=None, max_duration="900tok", val_check_interval="70tok", accumulate_grad_batches=accumulate,
        callbacks=[rest, counter, files], enable_checkpointing=True,
    )  # fmt: skip
    validation = DataLoader(batches()[:1], batch_size=None)
    again.fit(resumed, loader(), validation, ckpt_path=tmp_path / "parts" / f"step={last}.ckpt")
    assert same_weights(module, resumed)
    assert again.global_step == trainer.global_step
    assert rest.steps == [step for step in seen.steps if step > last]


def test_samples_and_steps():
    counter = DataCounter(samples=lambda batch: len(batch[0]) * 5)
    seen, logger = Validations(), Rows()
    trainer = quiet_trainer(
        max_epochs=None, max_duration="100sp", val_check_interval="3st", callbacks=[counter, seen], logger=logger,
        log_every_n_steps=5,
    )  # fmt: skip
    trainer.fit(words(), loader(), DataLoader(batches()[:1], batch_size=None))
    assert trainer.global_step == 10
    assert seen.steps == [3, 6, 9]
    counts = [(step, row["samples"], row["tokens"]) for step, row in logger.rows if "samples" in row]
    assert counts == [(5, 50, 2 * sum(LENGTHS[:5])), (10, 100, 2 * sum(LENGTHS[:10]))]


@pytest.mark.parametrize(("text", "steps"), [("7ba", 3), ("13ba", 5), ("12ba", 4), ("25ba", 9)])
@pytest.mark.parametrize("sized", [True, False])
def test_batches_end_with_a_step(text, steps, sized):
    # 12 batches per epoch, 3 per step; without a length the last step of an epoch is known only when it comes
    data = loader() if sized else DataLoader(Stream(), batch_size=None)
    trainer = quiet_trainer(max_epochs=None, max_duration=text, accumulate_grad_batches=3, limit_val_batches=0)
    trainer.fit(words(), data)
    assert trainer.global_step == steps


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(batches())


@pytest.mark.parametrize(
    ("batch", "tokens"),
    [
        ({"input_ids": torch.zeros(2, 8)}, 16),
        ({"input_ids": torch.zeros(2, 8), "attention_mask": torch.tensor([[1, 1, 0]])}, 2),
        ((torch.ones(3, 4).long(), torch.ones(3)), 12),
        (torch.ones(3, 4).int(), 12),
        (torch.ones(3, 4), None),
        (torch.ones(3).long(), None),
        ({"x": torch.ones(3, 4).long()}, None),
        ("text", None),
    ],
)
def test_tokens_of_a_batch(batch, tokens):
    assert tokens_of(batch) == tokens


def test_a_batch_without_tokens_is_refused_before_its_step():
    module = Net()
    trainer = quiet_trainer(max_epochs=None, max_duration="100tok")
    with pytest.raises(MisconfigurationException, match=r"the batch, a list, has none(.|\n)*DataCounter\(tokens="):
        trainer.fit(module, plain.loader(2))
    assert same_weights(module, Net())


def test_a_schedule_needs_a_counter():
    with pytest.raises(
        MisconfigurationException, match=r"A schedule has an interval(.|\n)*callbacks=\[DataCounter\(\)\]"
    ):
        quiet_trainer(limit_val_batches=0).fit(words("100tok"), loader())


@pytest.mark.parametrize("interval", ["2h", "0.5ep"])
def test_schedules_that_no_duration_fits(interval):
    with pytest.raises(MisconfigurationException, match="interval"):
        quiet_trainer(limit_val_batches=0).fit(words(interval), loader())


def test_yaml(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "trainer:\n  max_duration: 300tok\n  logger: false\n  accelerator: cpu\n  enable_progress_bar: false\n"
        "  callbacks:\n    - class_path: ModelCheckpoint\n      init_args: {dirpath: files, every: 100tok}\n"
        "    - class_path: DataCounter\n"
    )
    cli = LightningCLI(Validated, run=False, args=["--config", str(config)], save_config_callback=None)
    files = next(one for one in cli.trainer.callbacks if isinstance(one, ModelCheckpoint))
    assert str(files.every) == "100tok"
    assert str(cli.trainer.settings.max_duration) == "300tok"


# two processes
def _epoch(rank):
    counter = DataCounter()
    trainer = quiet_trainer(devices=2, strategy="ddp", callbacks=[counter], use_distributed_sampler=False,
                            limit_val_batches=0)  # fmt: skip
    trainer.fit(words(), DataLoader(batches()[rank::2], batch_size=None))
    return counter.samples_seen, counter.tokens_seen


@pytest.mark.processes
def test_after_a_fit_the_numbers_are_complete():
    assert ranks(2, _epoch) == [(24, 2 * sum(LENGTHS))] * 2


def _ranks(_, strategy, root, limit, resume):
    counter, seen = DataCounter(), Validations()
    module = words("150tok")
    files = ModelCheckpoint(root, "{step}", every="100tok", save_top_k=-1)
    trainer = quiet_trainer(
        devices=2, strategy=strategy, max_epochs=None, max_duration=limit, val_check_interval="70tok",
        enable_checkpointing=True, callbacks=[files, counter, seen], use_distributed_sampler=False,
    )  # fmt: skip
    rank = trainer.strategy.environment.rank
    trainer.fit(
        module, DataLoader(batches()[rank::2], batch_size=None), DataLoader(batches()[:1], batch_size=None),
        ckpt_path=resume,
    )  # fmt: skip
    return counter.tokens_seen, trainer.global_step, seen.steps, saved(Path(root))


@pytest.mark.processes
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_count_together(tmp_path, strategy):
    total, step, saves, validations = 0, 0, [], []
    while total < 900:
        pair = LENGTHS[2 * (step % 6)] + LENGTHS[2 * (step % 6) + 1]
        step, before, total = step + 1, total, total + 2 * pair
        saves += [step] * (total // 100 > before // 100)
        validations += [step] * (total // 70 > before // 70)
    found = ranks(2, _ranks, strategy, str(tmp_path / "whole"), "900tok", None)
    assert found == [(total, step, validations, saves)] * 2
    ranks(2, _ranks, strategy, str(tmp_path / "parts"), "300tok", None)
    last = max(saved(tmp_path / "parts"))
    resumed = ranks(
        2, _ranks, strategy, str(tmp_path / "rest"), "900tok", str(tmp_path / "parts" / f"step={last}.ckpt")
    )
    rest = [[one for one in steps if one > last] for steps in (validations, saves)]
    assert resumed == [(total, step, *rest)] * 2
