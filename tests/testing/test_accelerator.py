"""check_accelerator: the CPU passes, and a defect fails its check."""

from __future__ import annotations

import re
from contextlib import contextmanager, nullcontext

import pytest
import torch

from lightlib.accelerators import Accelerator, CPUAccelerator
from lightlib.errors import MisconfigurationException
from lightlib.testing import check_accelerator
from lightlib.testing.accelerator import AcceleratorKit

CPU = torch.device("cpu")


class Card(Accelerator):
    """Computes on the CPU, with a generator of its own."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(1)

    @staticmethod
    def parse_devices(devices):
        return CPUAccelerator.parse_devices(devices)

    @staticmethod
    def get_parallel_devices(devices):
        return [CPU] * devices

    @staticmethod
    def auto_device_count():
        return 2

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def name():
        return "card"

    def rng_state(self):
        return {"card": self.generator.get_state()}

    def set_rng_state(self, state):
        if "card" in state:
            self.generator.set_state(state["card"])

    def manual_seed(self, seed):
        self.generator.manual_seed(seed)


class NoStatistics(Card):
    def get_device_stats(self, device):
        raise MisconfigurationException("no psutil")


def broken(kind, /, **members):
    return type(kind, (Card,), members)


def changing():
    numbers = iter(range(100))
    return staticmethod(lambda: f"card{next(numbers)}")


def raises(text):
    def method(*args):
        raise RuntimeError(text)

    return method


def only_without_errors(self, device):
    @contextmanager
    def restored():
        before, mine = torch.get_rng_state(), self.rng_state()
        yield
        torch.set_rng_state(before)
        self.set_rng_state(mine)

    return restored()


def forks_the_cpu(self, device):
    return torch.random.fork_rng(devices=[])


def draws(self, trainer):
    with torch.no_grad():
        next(trainer.lightning_module.parameters()).add_(0.5)


def is_available_with(effect):
    def is_available():
        effect()
        return True

    return staticmethod(is_available)


BROKEN = [
    (object, "name", "make_accelerator returned <object", "class object(Accelerator)"),
    (broken("Unnamed", name=staticmethod(lambda: "")), "name", "Unnamed.name() is '', a str.", "return str"),
    (broken("Changing", name=changing()), "name", "Changing.name() was 'card0' and is now 'card1'",
     "compute `name()` once"),
    (broken("Greedy", is_available=is_available_with(lambda: torch.zeros(3))), "available",
     "Greedy.is_available() ran aten.zeros", "ask the driver"),
    (broken("Vague", is_available=staticmethod(lambda: 1)), "available", "Vague.is_available() is 1, a int.", "bool"),
    (broken("Missing", is_available=staticmethod(lambda: False)), "available", "Missing.is_available() is False.",
     "on a machine that has one"),
    (broken("Silent", why_unavailable=staticmethod(lambda: "no")), "available", "Silent.why_unavailable() is 'no'.",
     "return both"),
    (broken("Half", auto_device_count=staticmethod(lambda: 0.5)), "devices", "Half.auto_device_count() is 0.5", "int"),
    (broken("One", get_parallel_devices=staticmethod(lambda devices: [CPU])), "devices",
     "One.get_parallel_devices(parse_devices(2)) is [device(type='cpu')]", "return a torch.device for each"),
    (broken("Texts", get_parallel_devices=staticmethod(lambda devices: ["cpu"] * devices)), "devices",
     "Texts.get_parallel_devices(parse_devices(1)) is ['cpu']", "return a torch.device for each"),
    (broken("Trusting", parse_devices=staticmethod(int)), "devices",
     "Trusting.parse_devices('many') raised ValueError", "raise lightlib.errors.MisconfigurationException"),
    (broken("Any", parse_devices=staticmethod(lambda devices: devices)), "devices",
     "Any.parse_devices('many') returned 'many'.", "check the user's value"),
    (broken("Urgent", priority="high"), "abilities", "Urgent.priority is 'high', a str.", "let `priority` return int"),
    (broken("Streams", has_streams=None), "abilities", "Streams.has_streams is None", "`has_streams` return bool"),
    (broken("Unseeded", manual_seed=lambda self, seed: None), "generators",
     "Unseeded.manual_seed(7) and manual_seed(8) leave the same", "seed each generator"),
    (broken("Forgetful", set_rng_state=lambda self, state: None), "generators",
     "Forgetful.rng_state() differs from the state", "restore each entry"),
    (broken("Strict", set_rng_state=lambda self, state: [self.generator.set_state(s) for s in state.values()]),
     "generators", "Strict.set_rng_state({", "in set_rng_state"),
    (broken("Objects", rng_state=lambda self: {"card": self}), "generators", "Objects.rng_state() returned {'card': ",
     "return generator.get_state()"),
    (broken("Listed", rng_state=lambda self: [], set_rng_state=lambda self, state: None), "generators",
     "Listed.rng_state() is [], a list.", "return dict"),
    (broken("Nothing", fork_rng=lambda self, device: nullcontext()), "forks",
     "Nothing.fork_rng('cpu') leaves the CPU's generator changed afterwards", "restore it in a `finally`"),
    (broken("OnlyCPU", fork_rng=forks_the_cpu), "forks",
     "OnlyCPU.fork_rng('cpu') leaves the device's generator changed afterwards", "restore it in a `finally`"),
    (broken("Optimist", fork_rng=only_without_errors), "forks",
     "Optimist.fork_rng('cpu') leaves the CPU's generator changed after an exception", "restore it in a `finally`"),
    (broken("Single", device_ids=lambda self, device: 0), "groups", "Single.device_ids('cpu') is 0", "list or None"),
    (broken("Named", device_ids=lambda self, device: ["0"]), "groups", "Named.device_ids('cpu')[0] is '0'", "int"),
    (broken("Text", group_device=lambda self, device: "cpu"), "groups", "Text.group_device('cpu') is 'cpu'", "device"),
    (broken("Speechless", describe=lambda self, device: None), "describes", "Speechless.describe('cpu') is None",
     "return str"),
    (broken("Pairs", get_device_stats=lambda self, device: [("memory", 1)]), "describes",
     "Pairs.get_device_stats('cpu') is [('memory', 1)]", "return dict"),
    (broken("Words", get_device_stats=lambda self, device: {"memory": "full"}), "describes",
     "Words.get_device_stats('cpu')['memory'] is 'full'", "int or float"),
    (broken("Offline", get_device_stats=raises("no driver")), "describes",
     "Offline.get_device_stats('cpu') raised RuntimeError: no driver", "in get_device_stats"),
    (broken("Failing", setup=raises("no firmware")), "fits",
     "Trainer(accelerator=Failing()).fit raised RuntimeError: no firmware", "that the traceback shows"),
    (broken("Noisy", setup=draws), "fits", "the weight 'model.", "look for a method"),
]  # fmt: skip


@pytest.mark.parametrize("make_accelerator", [CPUAccelerator, Card, NoStatistics])
def test_working_accelerators_pass(make_accelerator):
    before = torch.get_rng_state()
    check_accelerator(make_accelerator)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(("make", "check", "what", "fix"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_accelerator_is_named_with_its_defect(make, check, what, fix):
    with pytest.raises(AssertionError) as caught:
        check_accelerator(make)
    text = str(caught.value)
    assert text.startswith(f"The accelerator fails the check {check!r}: {what}")
    assert re.search(r"\n  Expected: .+\n  Fix: .*", text)
    assert fix in text.rpartition("Fix: ")[2]


def test_an_availability_that_initializes_the_device(monkeypatch):
    started = []
    monkeypatch.setattr(torch.cpu, "is_initialized", lambda: bool(started))
    with pytest.raises(AssertionError, match=r"Starter.is_available\(\) initialized cpu."):
        check_accelerator(broken("Starter", is_available=is_available_with(lambda: started.append(1))))


def test_devices_that_change():
    calls = iter(range(100))

    class Moving(Card):
        @staticmethod
        def get_parallel_devices(devices):
            return [torch.device("cpu", next(calls))] * devices

    with pytest.raises(AssertionError, match=r"'fits': Trainer\(accelerator=Moving\(\), devices=1\) used cpu:"):
        check_accelerator(Moving)


def test_every_check_is_described_and_has_a_broken_example():
    assert {check for _, check, _, _ in BROKEN} == set(AcceleratorKit.checks())
    for name in AcceleratorKit.checks():
        assert f'``"{name}"``' in check_accelerator.__doc__
