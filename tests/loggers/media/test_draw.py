"""Drawings, pixel by pixel, and against PIL and matplotlib."""

from __future__ import annotations

import numpy
import PIL.Image
import PIL.ImageDraw
import pytest
import torch
from torch.nn import functional as F

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.loggers.media import draw_bounding_boxes, draw_feature_map, draw_segmentation_masks, make_grid

RED, GREEN = (255, 0, 0), (0, 200, 0)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_boxes_are_those_of_pil(width):
    """Also boxes that overlap, and one that leaves the image."""
    pixels = torch.randint(0, 256, (3, 20, 30), dtype=torch.uint8)
    boxes = torch.tensor([[2, 3, 14, 12], [10, 8, 25, 18], [-4, -4, 5, 5]])
    colors = [RED, GREEN, (9, 9, 9)]
    canvas = PIL.Image.fromarray(pixels.permute(1, 2, 0).numpy())
    for box, color in zip(boxes.tolist(), colors, strict=True):
        PIL.ImageDraw.Draw(canvas).rectangle(box, outline=color, width=width)
    before = pixels.clone()
    drawn = draw_bounding_boxes(pixels, boxes, colors, width)
    assert (drawn.permute(1, 2, 0).numpy() == numpy.array(canvas)).all()
    assert torch.equal(pixels, before)


def test_boxes_of_floats_on_a_grey_image():
    image = torch.full((1, 4, 4), 0.25)
    drawn = draw_bounding_boxes(image, torch.tensor([[0.6, 1.4, 2.2, 2.6]]), [RED])
    assert drawn.dtype == torch.float32
    expected = torch.full((3, 4, 4), 0.25)
    for y, x in ((1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)):
        expected[:, y, x] = torch.tensor([1.0, 0.0, 0.0])
    assert torch.equal(drawn, expected)
    assert torch.equal(draw_bounding_boxes(image, torch.zeros(0, 4)), image.expand(3, 4, 4))


def test_masks_are_blended():
    image = torch.tensor([100, 50, 200], dtype=torch.uint8)[:, None, None].expand(3, 2, 2)
    masks = torch.tensor([[[True, True], [False, False]], [[False, True], [False, False]]])
    drawn = draw_segmentation_masks(image, masks, alpha=0.6, colors=[RED, GREEN])
    assert drawn[:, 0, 0].tolist() == [round(100 * 0.4 + 255 * 0.6), round(50 * 0.4), round(200 * 0.4)]
    assert drawn[:, 0, 1].tolist() == [40, round(50 * 0.4 + 200 * 0.6), 80], "the last mask counts"
    assert torch.equal(drawn[:, 1], image[:, 1])
    assert torch.equal(draw_segmentation_masks(image, masks, alpha=0.0), image)
    first, second = draw_segmentation_masks(image, masks, alpha=1.0)[:, 0].T.tolist()
    assert (first, second) == ([31, 119, 180], [255, 127, 14])


@pytest.mark.parametrize(
    ("reduction", "function"),
    [("mean", lambda x: x.mean(0)), ("max", lambda x: x.amax(0)), ("norm", lambda x: x.norm(dim=0))],
)
def test_feature_maps_are_coloured_by_their_values(reduction, function):
    features = torch.randn(6, 5, 4)
    drawn = draw_feature_map(features, reduction=reduction)
    heat = function(features)
    heat = (heat - heat.min()) / (heat.max() - heat.min())
    for index, centre in enumerate((0.75, 0.5, 0.25)):
        expected = numpy.clip(1.5 - 4 * numpy.abs(heat.numpy() - centre), 0, 1)
        assert numpy.allclose(drawn[index].numpy(), expected, atol=1e-5)


def test_a_feature_map_over_an_image():
    image = torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8)
    features = torch.randn(2, 4, 4)
    heat = F.interpolate(features.mean(0)[None, None], (8, 8), mode="bilinear", align_corners=False)[0, 0]
    alone = (draw_feature_map(heat[None]) * 255).round()
    expected = (image.float() * 0.75 + alone * 0.25).round().to(torch.uint8)
    assert torch.equal(draw_feature_map(features, image, alpha=0.25), expected)
    assert torch.isfinite(draw_feature_map(torch.ones(2, 3, 3))).all(), "a constant map"


def test_a_grid():
    images = torch.arange(5)[:, None, None, None].expand(5, 3, 2, 4).to(torch.uint8)
    grid = make_grid(images + 1)
    assert grid.shape == (3, 2 * (2 + 2) + 2, 3 * (4 + 2) + 2)
    assert [grid[0, 3, 3 + 6 * column].item() for column in range(3)] == [1, 2, 3]
    assert [grid[0, 7, 3 + 6 * column].item() for column in range(3)] == [4, 5, 0]
    assert grid.sum() == (images + 1).sum()


def test_bad_input():
    image = torch.zeros(3, 4, 4)
    with pytest.raises(MisconfigurationException, match=r"shape \(4, 4, 3\)\.(.|\n)*channels come last"):
        draw_bounding_boxes(torch.zeros(4, 4, 3), torch.zeros(0, 4))
    with pytest.raises(ArgumentTypeError, match=r"The image has the dtype torch\.int64"):
        draw_bounding_boxes(image.long(), torch.zeros(0, 4))
    with pytest.raises(MisconfigurationException, match=r"boxes have the shape \(4,\)"):
        draw_bounding_boxes(image, torch.zeros(4), colors=[RED] * 4)
    with pytest.raises(MisconfigurationException, match=r"1 objects and 2 colours"):
        draw_bounding_boxes(image, torch.zeros(1, 4), colors=[RED, RED])
    with pytest.raises(MisconfigurationException, match=r"width=0"):
        draw_bounding_boxes(image, torch.zeros(1, 4), width=0)
    with pytest.raises(ArgumentTypeError, match=r"masks have the dtype torch\.float32(.|\n)*masks > 0\.5"):
        draw_segmentation_masks(image, torch.zeros(1, 4, 4))
    with pytest.raises(MisconfigurationException, match=r"masks have the shape \(1, 2, 2\), and the image"):
        draw_segmentation_masks(image, torch.zeros(1, 2, 2, dtype=torch.bool))
    with pytest.raises(MisconfigurationException, match=r"alpha=2\."):
        draw_segmentation_masks(image, torch.zeros(1, 4, 4, dtype=torch.bool), alpha=2)
    with pytest.raises(UnknownNameError, match=r"Unknown reduction 'sum'"):
        draw_feature_map(image, reduction="sum")
    with pytest.raises(MisconfigurationException, match=r"features have the shape \(2, 3, 4, 4\)"):
        draw_feature_map(torch.zeros(2, 3, 4, 4))
    with pytest.raises(MisconfigurationException, match=r"images have the shape \(3, 4, 4\)"):
        make_grid(image)
