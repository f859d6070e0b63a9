"""User state: changes of the user's objects survive a stop and a resume."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, Sampler, Subset, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

import lightlib as L
from tests.runs.plain import QUIET, samples, subclass, with_methods


class Stop(Exception):
    """Ends a fit at once, as a kill would."""


class StopsAfter(L.Callback):
    """Saves and stops after so many batches."""

    not_in_checkpoint = ("done",)

    def __init__(self, batches, path):
        self.batches, self.path, self.done = batches, path, 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.done += 1
        if self.done == self.batches:
            trainer.save_checkpoint(self.path)
        elif self.batches and self.done > self.batches:
            raise Stop


class Net(L.Module):
    """Two layers with dropout; each case below adds its own state."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3))
        self.head = nn.Linear(8, 3)
        self.losses = []

    def weight(self, loss):
        return loss

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.weight(cross_entropy(self.head(self.backbone(x)), y))
        self.trainer.callbacks[0].losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Losses(L.Callback):
    """The values to compare: every loss; `run` adds the weights at the end."""

    not_in_checkpoint = ("losses",)

    def __init__(self):
        self.losses = []


def run(make, path=None, stop=None, **fit):
    """Run one program, with all objects created again, as in another process."""
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)
    module, data, callbacks, arguments = make()
    losses = Losses()
    stops = StopsAfter(stop, path)
    trainer = L.Trainer(**{**QUIET, "max_epochs": 3, **arguments}, callbacks=[losses, *callbacks, stops])
    try:
        trainer.fit(module, *data, **fit)
    except Stop:
        return losses.losses[:stop], None, trainer
    return losses.losses, [p.detach().clone() for p in module.state_dict().values()], trainer


def check(make, tmp_path, stops=(2, 5, 8)):
    """Every stop and resume gives the losses and weights of a run that is not stopped."""
    losses, weights, _ = run(make)
    for stop in stops:
        path = str(tmp_path / f"{stop}.ckpt")
        first, _, _ = run(make, path, stop)
        assert first == losses[:stop]
        rest, after, _ = run(make, ckpt_path=path)
        assert first + rest == losses, f"stopped after {stop} batches"
        assert all(map(torch.equal, after, weights)), f"stopped after {stop} batches"


def data(n=20, size=4, **arguments):
    return DataLoader(TensorDataset(*samples(n)), batch_size=size, **arguments)


def case(module, *callbacks, loader=None, **arguments):
    make = loader or (lambda: data(shuffle=True))
    return lambda: (module(), (make(),), [one() for one in callbacks], arguments)


# D1, D2, D14
class Unfreezes(Net):
    def on_train_epoch_start(self):
        for name, parameter in self.backbone.named_parameters():
            parameter.requires_grad = self.current_epoch > int(name[0])


class EvalBackbone(Net):
    def on_train_epoch_start(self):
        self.backbone.train(self.current_epoch % 2 == 1)


class Curriculum(Net):
    def on_train_epoch_start(self):
        self.level = 1 + self.current_epoch
        self.backbone[3].p = 0.1 * self.level

    def weight(self, loss):
        return loss * self.level


@pytest.mark.parametrize("module", [Unfreezes, EvalBackbone, Curriculum])
def test_what_on_train_epoch_start_sets_is_restored_within_the_epoch(module, tmp_path):
    check(case(module), tmp_path)


# D3, D4
class OwnGenerators(Net):
    def __init__(self):
        super().__init__()
        self.torch_one = torch.Generator().manual_seed(1)
        self.numpy_one = numpy.random.default_rng(2)
        self.python_ones = [random.Random(3)]

    def weight(self, loss):
        noise = torch.rand((), generator=self.torch_one) + self.numpy_one.random() + self.python_ones[0].random()
        return loss * noise


class Shakes(L.Callback):
    def __init__(self):
        self.generator = torch.Generator().manual_seed(5)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        pl_module.head.bias.data.add_(0.1 * torch.randn(3, generator=self.generator))


def test_generators_of_a_module_and_of_a_callback_go_on(tmp_path):
    check(case(OwnGenerators, Shakes), tmp_path)


# D5, D6: samplers
class DrawsEach(Sampler):
    """Draws sample by sample from the global generator, of which the steps draw too."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __iter__(self):
        for _ in range(self.n):
            yield int(torch.randint(20, ()))


class CountsEpochs(Sampler):
    def __init__(self, n):
        self.n, self.epoch = n, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        self.epoch += 1
        yield from torch.randperm(self.n, generator=torch.Generator().manual_seed(self.epoch)).tolist()


class Hard(Sampler):
    """Draws by weights that training changes, at the start of each epoch."""

    def __init__(self, n):
        self.weights = torch.ones(n)

    def __len__(self):
        return len(self.weights)

    def __iter__(self):
        yield from torch.multinomial(self.weights, len(self.weights), replacement=True).tolist()


class Reweights(L.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.train_dataloader.sampler.weights[batch_idx] += outputs["loss"]


class KeepsPlace(Sampler):
    """A sampler with a state of its own: draws chunks from the global generator."""

    def __init__(self, n):
        self.n, self.chunk, self.loaded = n, [], False

    def __len__(self):
        return self.n

    def state_dict(self):
        return {"chunk": list(self.chunk)}

    def load_state_dict(self, state):
        self.chunk = list(state["chunk"])

    def __iter__(self):
        self.chunk = []
        for _ in range(self.n):
            self.chunk = self.chunk or torch.randint(20, (7,)).tolist()
            yield self.chunk.pop()


@pytest.mark.parametrize("sampler", [DrawsEach, CountsEpochs, Hard, KeepsPlace])
def test_samplers_that_draw_late_count_or_change(sampler, tmp_path):
    callbacks = [Reweights] if sampler is Hard else []
    check(case(Net, *callbacks, loader=lambda: data(sampler=sampler(20))), tmp_path)


@pytest.mark.processes
def test_what_a_sampler_drew_in_advance_for_workers_is_used(tmp_path):
    with_workers = case(Net, loader=lambda: data(sampler=DrawsEach(20), num_workers=2, prefetch_factor=1))
    check(with_workers, tmp_path, stops=(2, 6))


# D7
class OtherHalf(Net):
    def __init__(self):
        super().__init__()
        self.asked = 0

    def train_dataloader(self):
        self.asked += 1
        kept = torch.randperm(20)[:12] if self.current_epoch else torch.arange(12)
        return data_of(kept.tolist(), shift=self.current_epoch + self.asked)


def data_of(kept, shift):
    x, y = samples(20)
    return DataLoader(Subset(TensorDataset(x + shift, y), kept), batch_size=4, shuffle=True)


@pytest.mark.parametrize("every", [1, 2])
def test_a_random_subset_of_a_loader_that_is_loaded_again(every, tmp_path):
    make = lambda: (OtherHalf(), (), [], {"reload_dataloaders_every_n_epochs": every})  # noqa: E731
    check(make, tmp_path, stops=(2, 3, 7, 8))


# D8
class ByHand(Net):
    """A metric that is updated by hand, and decides about the loss."""

    def __init__(self):
        super().__init__()
        self.accuracy = MulticlassAccuracy(3)

    def weight(self, loss):
        self.accuracy.update(torch.randint(3, (4,)), torch.randint(3, (4,)))
        return loss * (1 + self.accuracy.compute())

    def on_train_epoch_end(self):
        self.accuracy.reset()


def test_metrics_that_are_updated_by_hand(tmp_path):
    check(case(ByHand), tmp_path)


# D9
class AddsGroup(Net):
    def configure_optimizers(self):
        return torch.optim.SGD(self.head.parameters(), lr=0.1, momentum=0.9)

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.optimizers().add_param_group({"params": list(self.backbone.parameters()), "lr": 0.05})


def test_a_parameter_group_that_was_added_later(tmp_path):
    check(case(AddsGroup), tmp_path)


# D15
class DrawsWhenWritten(Net):
    def on_checkpoint_written(self, path):
        torch.rand(3)
        random.random()


def test_random_numbers_that_are_drawn_when_a_checkpoint_was_written(tmp_path):
    check(case(DrawsWhenWritten), tmp_path)


# settings of other kinds
class Averages(L.Callback):
    """Stochastic weight averaging by hand: a copy of the module gets its weights back at an epoch's end."""

    def __init__(self):
        self.taken = 0

    def setup(self, trainer, pl_module, stage):
        self.average = deepcopy(pl_module.head)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.taken += 1
        for mean, own in zip(self.average.parameters(), pl_module.head.parameters(), strict=True):
            mean.data += (own.data - mean.data) / self.taken

    def on_train_epoch_end(self, trainer, pl_module):
        pl_module.head.load_state_dict(self.average.state_dict())


class Transition(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor
    loss: float


class Memory:
    """A replay buffer with its own generator."""

    def __init__(self):
        self.items, self.draws = deque(maxlen=6), random.Random(4)

    def __len__(self):
        return len(self.items)


class Replays(Net):
    def __init__(self):
        super().__init__()
        self.memory = Memory()

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.memory.items.append(Transition(batch[0], batch[1], loss.item()))
        old = self.memory.draws.choice(self.memory.items)
        return loss + old.loss * cross_entropy(self.head(self.backbone(old.x)), old.y)


@dataclass
class Pace:
    speed: float = 1.0
    past: list = field(default_factory=list)


class PlainValues(Net):
    """Containers of many kinds, which the loss depends on."""

    def __init__(self):
        super().__init__()
        self.pace = Pace()
        self.seen, self.sums, self.table = Counter(), defaultdict(float), numpy.zeros(4)
        self.nested = {"a": [1, (2, {3})], "b": {"c": torch.zeros(2)}}
        self.best = None
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def weight(self, loss):
        step = self.global_step
        self.seen[step % 3] += 1
        self.sums[f"s{step % 2}"] += float(loss.detach())
        self.table[step % 4] += 0.1
        self.nested["b"]["c"][step % 2] += 0.1
        self.nested["a"].append((step, frozenset({step})))
        self.scale *= 0.99
        self.pace.past.append(step)
        self.pace.speed *= 0.98
        self.best = min(self.best or 9.0, float(loss.detach()))
        total = sum(self.seen.values()) + sum(self.sums.values()) + self.table.sum() + len(self.nested["a"])
        return loss * self.scale * self.pace.speed * (1 + 0.01 * (total + self.nested["b"]["c"].sum() + self.best))


class Harder(Dataset):
    """A data set with a level that a callback raises, and per-sample noise that it keeps."""

    def __init__(self):
        (self.x, self.y), self.level, self.noise = samples(20), 0.0, {}

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.noise[index] = self.noise.get(index, 0.0) + float(torch.rand(()))
        return self.x[index] * (1 + self.level) + self.noise[index], self.y[index]


class RaisesLevel(L.Callback):
    def on_train_epoch_start(self, trainer, pl_module):
        trainer.train_dataloader.dataset.level += 0.1


class Augments:
    """A collate function with a strength that grows."""

    def __init__(self):
        self.strength = 0.0

    def __call__(self, batch):
        self.strength += 0.01
        x, y = zip(*batch, strict=True)
        return torch.stack(x) * (1 + self.strength), torch.stack(y)


class Slows(Net):
    """Changes a hyperparameter, and slows down as validation finds more."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.save_hyperparameters()
        self.found = []

    def weight(self, loss):
        self.hparams.factor *= 0.97
        return loss * self.hparams.factor / (1 + len(self.found))

    def validation_step(self, batch, batch_idx):
        self.found.append(float(cross_entropy(self.head(self.backbone(batch[0])), batch[1])))

    def on_validation_epoch_end(self):
        self.found = [min(self.found)]


class Masks(Net):
    """Freezes the weights that are small, more of them each epoch; the masks are plain tensors."""

    def on_train_epoch_start(self):
        weight = self.head.weight.detach()
        self.mask = (weight.abs() > weight.abs().quantile(0.1 * (1 + self.current_epoch))).float()

    def on_train_batch_start(self, batch, batch_idx):
        self.head.weight.data *= self.mask


@pytest.mark.parametrize(
    ("module", "callbacks", "loader"),
    [
        (Net, [Averages], None),
        (Replays, [], None),
        (PlainValues, [], None),
        (Net, [RaisesLevel], lambda: DataLoader(Harder(), 4, shuffle=True)),
        (Net, [], lambda: data(shuffle=True, collate_fn=Augments())),
        (Masks, [], None),
    ],
    ids=["averages", "replays", "plain values", "a data set's level", "collate", "masks"],
)
def test_a_program_that_keeps_its_own_state_resumes_exactly(module, callbacks, loader, tmp_path):
    check(case(module, *callbacks, loader=loader), tmp_path)


def test_what_a_validation_found_and_hyperparameters_that_change(tmp_path):
    make = lambda: (Slows(), (data(shuffle=True), data(8)), [], {"val_check_interval": 2})  # noqa: E731
    check(make, tmp_path, stops=(1, 2, 3, 7))


def test_what_on_train_start_sets_is_not_saved_unless_training_changes_it(tmp_path):
    def on_train_start(self):
        self.places, self.steps = self.trainer.world_size, 0

    def weight(self, loss):
        self.steps += 1
        return loss * self.places / self.steps

    starts = subclass(Net, on_train_start, weight)
    check(case(starts), tmp_path)
    run(case(starts), str(tmp_path / "one.ckpt"), 2)
    saved = torch.load(tmp_path / "one.ckpt")["lightlib"]["user"]
    assert saved["values"]["module"] == {"steps": {"value": 2, "same": False}}


# state left to the user, and reports
class OwnState(L.Callback):
    """Counts, and saves its count by a method of its own, without the cache."""

    not_in_checkpoint = ("cache",)

    def __init__(self):
        self.count, self.other, self.cache = 0, 0, []

    def state_dict(self):
        return {"count": self.count * 100}

    def load_state_dict(self, state):
        self.count = state["count"]

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.count, self.other = self.count + 1, self.other + 1
        self.cache.append(batch_idx)


def test_a_state_protocol_of_the_users_wins_and_the_rest_is_saved_for_it(tmp_path):
    path = str(tmp_path / "one.ckpt")
    run(case(Net, OwnState), path, 3)
    assert torch.load(path)["lightlib"]["user"]["values"]["OwnState"] == {"other": {"value": 3, "same": False}}
    _, _, trainer = run(case(Net, OwnState, max_steps=3), ckpt_path=path)
    assert [vars(one) for one in trainer.callbacks if type(one) is OwnState] == [
        {"count": 300, "other": 3, "cache": [], "_pl_module": None}
    ]


class Unsaved(Net):
    """Things that cannot be saved, of each kind."""

    def __init__(self):
        super().__init__()
        self.numbers, self.unused = iter([3, 4]), iter([5, 6])
        self.curve, self.helper, self.big, self.unchanged = abs, None, None, object()

    def on_train_epoch_start(self):
        next(self.numbers)
        self.curve, self.helper = round, Memory()
        self.big = torch.zeros(2**26 + 1)


def test_what_cannot_be_saved_is_reported_once_with_its_place_and_the_fix(tmp_path):
    class Saves(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            trainer.save_checkpoint(tmp_path / "one.ckpt")

    with pytest.warns(L.report.PossibleUserWarning, match="will differ") as warned:
        run(case(Unsaved, Saves, max_epochs=1))
    (text,) = [str(one.message) for one in warned]
    assert "module.numbers: an iterator (list_iterator), whose position cannot be saved" in text
    assert "module.curve: it became round" in text
    assert "module.helper: a new Memory was made since training began" in text
    assert "module.big: it takes a checkpoint's automatic part to more than 256 MiB" in text
    assert "Write it in on_save_checkpoint(checkpoint)" in text
    assert "unchanged" not in text
    assert "unused" not in text
    assert "not_in_checkpoint" in text


def test_the_switch_turns_it_off(tmp_path):
    path = str(tmp_path / "one.ckpt")
    run(case(Unsaved, save_user_state=False), path, 2)
    assert "user" not in torch.load(path)["lightlib"]


def test_a_part_of_resume(tmp_path):
    path = str(tmp_path / "one.ckpt")
    run(case(Curriculum), path, 7)
    module = Curriculum()
    L.Trainer(**QUIET, max_steps=7).fit(module, data(shuffle=True), ckpt_path=path)
    assert module.level == 2
    module = Curriculum()
    L.Trainer(**QUIET, max_steps=7).fit(module, data(shuffle=True), ckpt_path=path, resume={"user_state": False})
    assert not hasattr(module, "level")


def test_a_program_that_has_changed_is_told_what_it_cannot_take(tmp_path):
    path = str(tmp_path / "one.ckpt")
    run(case(PlainValues, RaisesLevel, loader=lambda: DataLoader(Harder(), 4)), path, 2)
    module = Net()
    trainer = L.Trainer(**QUIET, max_steps=2, callbacks=[Losses()])
    with pytest.warns(L.report.LightlibWarning) as warned:
        trainer.fit(module, data(), ckpt_path=path, resume={"changes": "ignore"})
    texts = "\n".join(str(one.message) for one in warned)
    assert "that this run cannot restore" in texts
    assert "module.pace: there is no such object" in texts


def test_on_checkpoint_written_is_told_what_it_changes_too_late(tmp_path):
    def on_checkpoint_written(self, path):
        self.written += 1

    with pytest.warns(L.report.PossibleUserWarning, match=r"module.written: on_checkpoint_written changes it, after"):
        run(case(subclass(Net, on_checkpoint_written, written=0)), str(tmp_path / "one.ckpt"), 2)


class Caches(Dataset):
    """Keeps everything it has computed: 20 MiB."""

    def __init__(self):
        self.samples, self.cache = TensorDataset(*samples(8)), {}

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.cache[index] = torch.zeros(640, 1024)
        return self.samples[index]


def test_a_large_state_is_told_once_and_restored_but_not_copied_at_each_epoch(tmp_path, caplog):
    caplog.set_level("INFO", "lightlib")
    path = str(tmp_path / "one.ckpt")
    run(case(Net, loader=lambda: DataLoader(Caches(), 4)), path, 3)
    assert len([text for text in caplog.messages if "Each checkpoint holds 20 MiB" in text]) == 1
    saved = torch.load(path)["lightlib"]["user"]
    assert saved["epoch"] == {"data set of the training loader": {"cache": {"value": {"large": True}, "same": False}}}
    _, _, trainer = run(case(Net, loader=lambda: DataLoader(Caches(), 4), max_steps=4), ckpt_path=path)
    assert len(trainer.train_dataloader.dataset.cache) == 8


class Slots:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


class CountsInSlots(Net):
    def __init__(self):
        super().__init__()
        self.slots = Slots()

    def weight(self, loss):
        self.slots.count += 1
        return loss / self.slots.count


def test_objects_with_slots(tmp_path):
    check(case(CountsInSlots), tmp_path, stops=(2, 7))


@pytest.mark.parametrize(
    "forged",
    [
        [],
        {"values": []},
        {"gone": [1]},
        {"values": {"module": {"best": 3}}},
        {"epoch": 5},
    ],
)
def test_a_damaged_user_state_is_refused_before_anything_is_trained(forged, tmp_path):
    path = tmp_path / "one.ckpt"
    run(case(PlainValues), str(path), 2)
    content = torch.load(path)
    user = content["lightlib"]["user"]
    content["lightlib"]["user"] = {**user, **forged} if isinstance(forged, dict) else forged
    torch.save(content, path)
    with pytest.raises(L.errors.CheckpointError, match="position cannot be restored"):
        run(case(PlainValues), ckpt_path=str(path))


@pytest.mark.parametrize("name", ["training_step", "__class__", "trainer"])
def test_a_forged_user_state_replaces_no_method_and_no_property(name, tmp_path):
    path = tmp_path / "one.ckpt"
    run(case(PlainValues), str(path), 2)
    content = torch.load(path)
    values = content["lightlib"]["user"]["values"]["module"]
    values[name] = {"value": 3, "same": True}
    values["nested"] = {"value": {"nonsense": 3}, "same": True}
    torch.save(content, path)
    with pytest.warns(L.report.LightlibWarning, match="that this run cannot restore") as warned:
        run(case(PlainValues, max_steps=3), ckpt_path=str(path))
    text = str(warned[0].message)
    assert f"module.{name}: PlainValues has a method or property of this name" in text
    assert "module.nested: KeyError: 'nonsense'" in text


class Hides(Net):
    """Replaces a container that refuses to be looked into, and leaves one attribute out by its name alone."""

    not_in_checkpoint = "scratch"

    def on_train_epoch_start(self):
        self.odd, self.scratch = Refuses([1]), object()


class Refuses(list):
    def __len__(self):
        raise NotImplementedError("no length")


def test_a_value_that_cannot_be_looked_at_is_reported_and_the_save_succeeds(tmp_path):
    path = str(tmp_path / "one.ckpt")
    with pytest.warns(L.report.PossibleUserWarning, match=r"module\.odd: reading it failed: NotImpl") as warned:
        run(case(Hides), path, 2)
    assert "scratch" not in str(warned[0].message)
    assert "user" in torch.load(path)["lightlib"]


class KeepsWhatItGets(Sampler):
    """Continues from its earlier draws; it extends the list that it loads, without a copy."""

    def __init__(self, n):
        self.n, self.past = n, []

    def __len__(self):
        return self.n

    def state_dict(self):
        return {"past": list(self.past)}

    def load_state_dict(self, state):
        self.past = state["past"]

    def __iter__(self):
        begun = len(self.past)
        for number in range(self.n):
            self.past.append((7 * begun // self.n + 3 * number) % self.n)
            yield self.past[-1]


def test_a_run_that_is_stopped_twice_in_one_epoch_and_whose_sampler_keeps_the_loaded_list(tmp_path):
    twice = case(Net, loader=lambda: data(sampler=KeepsWhatItGets(20)))
    losses, weights, _ = run(twice)
    first, _, _ = run(twice, str(tmp_path / "one.ckpt"), 6)
    second, _, _ = run(twice, str(tmp_path / "two.ckpt"), 2, ckpt_path=str(tmp_path / "one.ckpt"))
    third, after, _ = run(twice, ckpt_path=str(tmp_path / "two.ckpt"))
    assert first + second + third == losses
    assert all(map(torch.equal, after, weights))


def test_a_forged_object_within_a_list_gets_no_method(tmp_path):
    def weight(self, loss):
        self.memories[0].items.append(1)
        return loss

    def holds():
        module = with_methods(Net, weight)
        module.memories = [Memory()]
        return module

    path = tmp_path / "one.ckpt"
    run(case(holds), str(path), 2)
    content = torch.load(path)
    (held,) = content["lightlib"]["user"]["values"]["module"]["memories"]["value"]
    held["object"]["__len__"] = 3
    torch.save(content, path)
    with pytest.warns(L.report.LightlibWarning, match="module.memories: Memory has a method or property of this name"):
        run(case(holds, max_steps=3), ckpt_path=str(path))
