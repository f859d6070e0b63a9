"""check_axis: working axes pass, and a defect fails its check."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.utils.data import DataLoader

from lightlib.errors import MisconfigurationException, UnknownNameError
from lightlib.strategies import Axis, LocalParameters
from lightlib.testing import BoringModule, check_axis
from lightlib.testing.axis import AxisKit
from lightlib.testing.module import samples
from tests.processes.ranks import ranks


class Same(Axis):
    """Lets all processes compute the same, and refuses a layer that cannot be split."""

    name, order = "same", 60
    layer = "model.1.up"

    def __init__(self, size):
        self.size = size

    def check(self, module, site):
        if module.get_submodule(self.layer).out_features % self.size:
            raise MisconfigurationException(f"{self.layer} cannot be split.")


class Columns(Same):
    """Splits the outputs of one Linear layer over processes, and gathers them."""

    shards_parameters = True

    def apply(self, module, site):
        style = ColwiseParallel(output_layouts=Replicate())
        parallelize_module(module.get_submodule(self.layer), site.mesh[self.name], style, src_data_rank=None)


class Readers(Axis):
    """Replicas that read different batches."""

    name, order, splits_batch = "readers", 15, True

    def __init__(self, size):
        self.size = size


class Small(BoringModule):
    """One block, and fewer batches."""

    def __init__(self, width=32):
        super().__init__(depth=1)
        self.model[1].up, self.model[1].down = nn.Linear(16, width), nn.Linear(width, 16)

    def train_dataloader(self):
        return DataLoader(samples(48), 8)


def refused():
    return Small(width=31)


def nothing(size):
    return object()


class Unnamed(Readers):
    name = ""


class Unordered(Readers):
    order = None


class Fixed(Readers):
    def __init__(self, size):
        self.size = 1


class Wrapping(Same):
    def apply(self, module, site):
        block = module.model[1]
        block.up = nn.Sequential(block.up)


class Dropping(Same):
    """Leaves a parameter to no process."""

    divides_parameters = True

    def apply(self, module, site):
        module.get_submodule(self.layer).bias = None

    def local_parameters(self):
        return None


class Adding(Same):
    """Adds to the state of the module."""

    def apply(self, module, site):
        module.register_buffer("extra", torch.zeros(1))


class Raising(Same):
    def apply(self, module, site):
        raise KeyError("no such layer")


class Halving(Same):
    """Scales the outputs of the layer, and so the losses."""

    def apply(self, module, site):
        super().apply(module, site)
        module.get_submodule(self.layer).register_forward_hook(lambda module, args, output: 0.5 * output)


class NoNorms(Same):
    """Claims that every parameter is local, so that norms are summed over processes that share them."""

    def apply(self, module, site):
        super().apply(module, site)
        self.group = site.mesh[self.name].get_group()

    def local_parameters(self):
        return LocalParameters(self.group)


class Drifting(Same):
    """Changes a weight after each batch."""

    def apply(self, module, site):
        super().apply(module, site)
        self.module = module

    def around(self, step):
        def stepped(*args):
            output = step(*args)
            with torch.no_grad():
                self.module.model[0].weight.mul_(0.9)
            return output

        return stepped


class Skipping(Same):
    """Returns no output, so no loss is seen."""

    def around(self, step):
        def silent(*args):
            step(*args)

        return silent


class Spoiling(Same):
    """Writes other weights into checkpoints."""

    def apply(self, module, site):
        super().apply(module, site)
        module.register_state_dict_post_hook(spoil)


def spoil(module, state, prefix, metadata):
    state["model.0.bias"] = state["model.0.bias"] + 1


class Losing(Same):
    """Does not continue as an uninterrupted run does."""

    def apply(self, module, site):
        super().apply(module, site)
        self.module = module

    def state_dict(self):
        return {"batches": 1}

    def load_state_dict(self, state):
        with torch.no_grad():
            self.module.model[0].bias.zero_()


class Hasty(Same):
    """Changes the module in `check`."""

    def check(self, module, site):
        super().check(module, site)
        module.get_submodule(self.layer).register_forward_hook(lambda *args: None)


class Late(Same):
    """Refuses a module while it is applied."""

    def check(self, module, site):
        pass

    def apply(self, module, site):
        Same.check(self, module, site)
        super().apply(module, site)


class Strange(Same):
    """Refuses a module with an error that does not explain itself."""

    def check(self, module, site):
        assert module.get_submodule(self.layer).out_features % self.size == 0


class Trusting(Same):
    """Refuses nothing."""

    def check(self, module, site):
        pass

    def apply(self, module, site):
        if module.get_submodule(self.layer).out_features % self.size == 0:
            super().apply(module, site)


class ClosedOnce(Same):
    """Cannot be torn down twice."""

    def apply(self, module, site):
        super().apply(module, site)
        self.open = True

    def teardown(self):
        del self.open


class Forgetting(Same):
    """Loses in `teardown` the state that `apply` made, which is called once for a module."""

    def apply(self, module, site):
        super().apply(module, site)
        self.scale = 1.0

    def around(self, step):
        scale = self.scale

        def scaled(batch, *args):
            return step([one * scale for one in batch], *args)

        return scaled

    def teardown(self):
        self.scale = 0.0


class Colliding(Same):
    """Fails only when there are replicas."""

    def apply(self, module, site):
        super().apply(module, site)
        if site.sizes["replicate"] > 1:
            with torch.no_grad():
                module.model[0].weight.mul_(0.5)


BROKEN = [
    (nothing, "declares", "make_axis returned <object", "class object(Axis)"),
    (Unnamed, "declares", "Unnamed has name='', order=15 and size=2.", "declare name and order"),
    (Unordered, "declares", "Unordered has name='readers', order=None", "declare name and order"),
    (Fixed, "declares", "Fixed has name='readers', order=15 and size=1.", "let make_axis(size) set the size"),
    (Wrapping, "names", "the parameters have other names: missing ['model.1.up.weight'", "instead of wrapping"),
    (Raising, "names", "KeyError: 'no such layer'", "correct the method of the axis that raised"),
    (Dropping, "names", "the parameters have other names: missing ['model.1.up.bias'], new [].", "in place"),
    (Adding, "trains", "the weights after training have other names: missing [], new ['extra'].", "in place"),
    (Halving, "trains", "the loss of batch 0 is ", "declare what the axis splits"),
    (NoNorms, "trains", "the norm of the gradients of step 0 is ", "from `local_parameters`"),
    (Drifting, "trains", "the loss of batch 1 is ", "declare what the axis splits"),
    (Skipping, "trains", "the loss of batch 0 is None, and ", "from `around`"),
    (Spoiling, "saves", "the weight 'model.0.bias' is off by", "compare the gradient"),
    (Losing, "saves", "the weight 'model.0.bias' is off by", "compare the gradient"),
    (Hasty, "refuses", "Hasty.check changed the module.", "move the change to `apply`"),
    (Late, "refuses", "for the module of make_refused, Late applied the axes first.", "not in `apply`"),
    (Strange, "refuses", "for the module of make_refused, Strange raised AssertionError", "not in `apply`"),
    (Trusting, "refuses", "for the module of make_refused, Trusting trained it.", "not in `apply`"),
    (ClosedOnce, "fits_twice", "AttributeError: ", "correct the method of the axis"),
    (Forgetting, "fits_twice", "the weight ", "compare the gradient"),
]  # fmt: skip


def only(*names):
    return [name for name in AxisKit.checks() if name not in names]


def outcomes(rank):
    """Return the error of each broken axis, on the ranks of one world."""
    texts = []
    for make_axis, check, *_ in BROKEN:
        try:
            check_axis(make_axis, Small, make_refused=refused, without=only("declares", check))
        except AssertionError as error:
            texts.append(str(error))
        else:
            texts.append("")
    return texts


def working(rank):
    check_axis(Columns, Small, make_refused=refused)
    check_axis(Readers, Small)


def with_replicas(rank):
    for axis in (Columns, Readers):
        check_axis(axis, Small)
    try:
        check_axis(Colliding, Small)
    except AssertionError as error:
        return str(error)
    return ""


def wrong_world(rank):
    with pytest.raises(MisconfigurationException, match="size=4 was called in a world of 2 processes"):
        check_axis(Columns, BoringModule, size=4)


@pytest.mark.processes
def test_working_axes_pass():
    ranks(2, working)


@pytest.mark.processes
def test_a_broken_axis_fails_the_check_of_its_defect():
    first, second = ranks(2, outcomes)
    assert first == second
    for text, (make_axis, check, what, fix) in zip(first, BROKEN, strict=True):
        assert text.startswith(f"The axis fails the check {check!r}: {what}"), make_axis
        assert re.search(r"\n  Expected: .+\n  Fix: .*", text), make_axis
        assert fix in text.partition("Fix: ")[2].partition("\n")[0], make_axis


@pytest.mark.processes
@pytest.mark.slow
def test_next_to_replicas():
    for text in ranks(4, with_replicas):
        assert text.startswith("The axis fails the check 'replicates': the loss of batch 0 is ")


@pytest.mark.processes
def test_it_starts_the_processes_itself_and_raises_their_error():
    check_axis(Columns, Small, without=only("names"), method="fork")
    with pytest.raises(AssertionError, match=r"^The axis fails the check 'names': the parameters have other names"):
        check_axis(Wrapping, Small, without=only("names"), method="fork")


@pytest.mark.processes
def test_a_world_of_another_size():
    ranks(2, wrong_world)


class Uneven(Small):
    def train_dataloader(self):
        return DataLoader(samples(48), 7)


class NoLoader(Small):
    def train_dataloader(self):
        return [1]


def test_data_that_cannot_be_divided():
    with pytest.raises(MisconfigurationException, match=r"has 48 samples in batches of 7, which(?s:.)*multiple of 4"):
        check_axis(Columns, Uneven)
    with pytest.raises(MisconfigurationException, match=r"NoLoader.train_dataloader returned \[1\]"):
        check_axis(Columns, NoLoader)


def test_checks_have_names():
    with pytest.raises(UnknownNameError, match=r"'train'.*\n.*trains"):
        check_axis(Columns, Small, without=["train"])


def test_every_check_is_described_and_has_a_broken_example():
    assert {check for _, check, _, _ in BROKEN} | {"replicates"} == set(AxisKit.checks())
    for name in AxisKit.checks():
        assert f'``"{name}"``' in check_axis.__doc__
