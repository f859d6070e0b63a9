"""Fused convolutions and batch norms: the numbers of both, from fewer kept bytes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.transforms import fuse_conv_bn


def statistics(net):
    """Give batch norms running statistics, scales and shifts that are not the initial ones."""
    generator = torch.Generator().manual_seed(3)
    for part in net.modules():
        if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)) and part.running_mean is not None:
            part.running_mean.normal_(generator=generator)
            part.running_var.uniform_(0.5, 2.0, generator=generator)
            if part.affine:
                with torch.no_grad():
                    part.weight.uniform_(0.5, 2.0, generator=generator)
                    part.bias.normal_(generator=generator)
            part.eval()
    return net


def run(net, x):
    """Return output, gradients (of the input too), and the bytes kept for backward."""
    kept: dict[int, int] = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    x = x.clone().requires_grad_()
    net.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = net(x)
        loss = output.square().mean()
    loss.backward()
    return output.detach(), [x.grad, *(p.grad.clone() for p in net.parameters())], sum(kept.values())


def same(plain, fused, x, **tolerance):
    output, gradients, kept = run(plain, x)
    other, others, fewer = run(fused, x)
    torch.testing.assert_close(other, output, **tolerance)
    for one, two in zip(gradients, others, strict=True):
        torch.testing.assert_close(two, one, **tolerance)
    return fewer / kept


class Residual(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


def backbone():
    torch.manual_seed(1)
    return statistics(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), Residual(), Residual()))


def test_the_same_numbers_from_at_least_a_fifth_fewer_bytes():
    plain = backbone()
    fused = copy.deepcopy(plain)
    result = fuse_conv_bn(fused)
    assert result.fused == [
        ("0", "1"),
        ("3.conv1", "3.bn1"),
        ("3.conv2", "3.bn2"),
        ("4.conv1", "4.bn1"),
        ("4.conv2", "4.bn2"),
    ]
    assert result.skipped == {}
    assert same(plain, fused, torch.randn(4, 3, 16, 16)) < 0.8
    assert list(fused.state_dict()) == list(plain.state_dict())
    assert all(a.equal(b) for a, b in zip(fused.state_dict().values(), plain.state_dict().values(), strict=True))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("convolution", "norm", "shape"),
    [
        (lambda b: nn.Conv1d(4, 6, 3, stride=2, groups=2, bias=b), nn.BatchNorm1d, (3, 4, 9)),
        (lambda b: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect", bias=b), nn.BatchNorm2d, (3, 4, 7, 6)),
        (lambda b: nn.Conv3d(2, 6, 2, dilation=2, bias=b), nn.BatchNorm3d, (2, 2, 5, 5, 5)),
        (lambda b: nn.ConvTranspose1d(4, 6, 3, stride=2, bias=b), nn.BatchNorm1d, (3, 4, 5)),
        (
            lambda b: nn.ConvTranspose2d(4, 6, 3, groups=2, output_padding=1, stride=2, bias=b),
            nn.BatchNorm2d,
            (3, 4, 5, 5),
        ),
        (lambda b: nn.ConvTranspose3d(2, 6, 2, bias=b), nn.BatchNorm3d, (2, 2, 3, 3, 3)),
    ],
)
def test_kinds_of_convolutions(convolution, norm, shape, affine, bias):
    torch.manual_seed(1)
    plain = statistics(nn.Sequential(convolution(bias), norm(6, affine=affine)).double())
    fused = copy.deepcopy(plain)
    assert fuse_conv_bn(fused).fused == [("0", "1")]
    assert same(plain, fused, torch.randn(shape, dtype=torch.float64), rtol=1e-9, atol=1e-11) < 1


def test_bfloat16_and_autocast():
    plain = backbone()
    fused = copy.deepcopy(plain)
    fuse_conv_bn(fused)
    x = torch.randn(2, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(fused(x).float(), plain(x).float(), rtol=0.05, atol=0.2)
    half = copy.deepcopy(plain).bfloat16()
    fuse_conv_bn(half)
    assert half(x.bfloat16()).dtype is torch.bfloat16
    torch.testing.assert_close(half(x.bfloat16()).float(), plain(x), rtol=0.05, atol=0.2)
    transposed = statistics(nn.Sequential(nn.ConvTranspose3d(2, 4, 2), nn.BatchNorm3d(4))).bfloat16()
    volume = torch.randn(2, 2, 3, 3, 3).bfloat16()
    separate = transposed(volume)
    fuse_conv_bn(transposed)
    torch.testing.assert_close(transposed(volume), separate, rtol=0.05, atol=0.2)


def test_in_training_mode_and_without_gradients_nothing_changes():
    plain = backbone()
    fused = copy.deepcopy(plain)
    fuse_conv_bn(fused)
    x = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        assert fused(x).equal(plain(x))
    plain.train(), fused.train()
    assert fused(x).equal(plain(x))
    assert fused[1].running_mean.equal(plain[1].running_mean)
    assert fused[1].num_batches_tracked == 1


def test_undone_it_is_as_before():
    plain = backbone()
    fused = copy.deepcopy(plain)
    result = fuse_conv_bn(fused)
    result.undo()
    assert not any("forward" in vars(part) for part in fused.modules())
    x = torch.randn(2, 3, 8, 8)
    assert fused(x).equal(plain(x))


class Branches(nn.Module):
    """A forward that fx can trace, with pairs that must not be fused, and one that is called otherwise later."""

    def __init__(self):
        super().__init__()
        self.twice, self.norm_twice = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.shared, self.norm_shared = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.norm_first = nn.BatchNorm2d(3)
        self.hooked, self.norm_hooked = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.free, self.norm_free = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, track_running_stats=False)
        self.fine, self.norm_fine = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.unused = nn.BatchNorm2d(3)
        self.hooked.register_forward_hook(lambda *_: None)

    def forward(self, x):
        x = self.norm_twice(self.twice(self.norm_twice(self.twice(x))))
        h = self.shared(x)
        x = self.norm_shared(h) + h
        x = self.norm_first(torch.relu(x))
        x = self.norm_hooked(self.hooked(x))
        x = self.norm_free(self.free(x))
        return self.norm_fine(self.fine(x))


def test_pairs_that_are_left_alone_have_a_reason():
    torch.manual_seed(1)
    plain = statistics(Branches()).double()
    fused = copy.deepcopy(plain)
    result = fuse_conv_bn(fused)
    assert result.fused == [("fine", "norm_fine")]
    assert result.skipped == {
        "norm_twice": "it or its convolution is called several times",
        "norm_shared": "something else uses the output of its convolution, too",
        "norm_first": "no convolution of torch comes before it",
        "norm_hooked": "it or its convolution has hooks, which would see another output",
        "norm_free": "it has no running statistics",
        "unused": "no forward that torch.fx can trace calls it",
    }
    assert "fused fine + norm_fine; not fused: norm_twice (it or" in result.describe()
    plain.unused, fused.unused = nn.Identity(), nn.Identity()
    same(plain, fused, torch.randn(2, 3, 4, 4, dtype=torch.float64), rtol=1e-9, atol=1e-11)


def test_a_convolution_that_is_called_in_another_way_than_was_traced_is_computed():
    torch.manual_seed(1)
    net = statistics(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)))
    plain = copy.deepcopy(net)
    fuse_conv_bn(net)
    x = torch.randn(2, 3, 4, 4)
    for use in (torch.relu, lambda y: y * 2, lambda y: y[:, 1], lambda y: torch.cat([y, y]), lambda y: y.mean(1)):
        one, two = use(net[0](x)), use(plain[0](x))
        assert type(one) is torch.Tensor
        assert one.equal(two)
        assert one.requires_grad
    assert net[0](x).shape == (2, 3, 4, 4)
    h = net[0](x)
    torch.testing.assert_close(net[1](h) + h, plain[1](plain[0](x)) + plain[0](x))


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Residual(3) for _ in range(2))
        self.direct, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x):
        if x.sum() > 1e9:
            return x
        for block in self.blocks:
            x = block(x)
        return self.norm(self.direct(x))


def test_children_of_a_module_that_cannot_be_traced():
    torch.manual_seed(1)
    plain = statistics(Untraceable())
    fused = copy.deepcopy(plain)
    result = fuse_conv_bn(fused)
    assert [norm for _, norm in result.fused] == [f"blocks.{i}.bn{n}" for i in range(2) for n in (1, 2)]
    assert result.skipped == {"norm": "no forward that torch.fx can trace calls it"}
    assert same(plain, fused, torch.randn(2, 3, 8, 8)) < 0.8


def test_named_parts():
    net = Untraceable()
    assert fuse_conv_bn(net, ["blocks.1"]).fused == [
        ("blocks.1.conv1", "blocks.1.bn1"),
        ("blocks.1.conv2", "blocks.1.bn2"),
    ]
    again = fuse_conv_bn(net, ["blocks*"])
    assert [one for one, _ in again.fused] == ["blocks.0.conv1", "blocks.0.conv2"]
    assert again.skipped["blocks.1.bn1"] == "the forward of one of the two has been replaced"
    with pytest.raises(
        MisconfigurationException, match=r"(?s)'block', which matches no module of Untraceable.*'blocks"
    ):
        fuse_conv_bn(net, ["block"])
    for wrong in ("blocks", [3], []):
        with pytest.raises(ArgumentTypeError, match="a list of names of modules"):
            fuse_conv_bn(net, wrong)
