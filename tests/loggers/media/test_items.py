"""Media, read back by PIL, wave, csv and NumPy."""

from __future__ import annotations

import csv
import io
import json
import wave

import numpy
import PIL.Image
import pytest
import torch
from matplotlib.figure import Figure as Plot

from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.loggers.media import Audio, Figure, Histogram, Image, Table, Text


def opened(media):
    return numpy.array(PIL.Image.open(io.BytesIO(media.encoded())))


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (4, "RGBA")])
def test_a_png_holds_the_pixels(channels, mode):
    pixels = torch.randint(0, 256, (channels, 5, 7), dtype=torch.uint8)
    image = Image(pixels, caption="noise")
    read = PIL.Image.open(io.BytesIO(image.encoded()))
    assert (read.mode, read.size, image.caption) == (mode, (7, 5), "noise")
    expected = pixels.permute(1, 2, 0).numpy()
    assert (opened(image) == (expected[..., 0] if channels == 1 else expected)).all()


def test_what_counts_as_an_image():
    floats = torch.tensor([[0.0, 0.5, 1.0, 1.5, -1.0, float("nan")]], requires_grad=True)
    assert opened(Image(floats)).tolist() == [[0, 128, 255, 255, 0, 0]]
    assert opened(Image(torch.tensor([[True, False]]))).tolist() == [[255, 0]]
    assert opened(Image(numpy.array([[0.2]]))).tolist() == [[51]]
    assert opened(Image(torch.ones(3, 2, 2, dtype=torch.bfloat16))).shape == (2, 2, 3)


@pytest.mark.parametrize("shape", [(2, 4, 4), (5, 4, 3), (1, 3, 4, 4), (4,), (3, 0, 4)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(MisconfigurationException, match=r"Image got a tensor of shape .*\n.*channels, height, width"):
        Image(torch.zeros(shape))


def test_a_histogram_equals_numpys():
    values = torch.randn(1000)
    histogram = Histogram(values, bins=20)
    counts, edges = numpy.histogram(values.double().numpy(), 20)
    assert histogram.counts == counts.tolist()
    assert histogram.edges == pytest.approx(edges.tolist(), rel=1e-12)
    assert histogram.sum == pytest.approx(values.double().sum().item())
    assert json.loads(histogram.encoded())["counts"] == counts.tolist()


def test_a_histogram_of_strange_values():
    histogram = Histogram([1.0, float("nan"), float("inf"), 1.0], bins=4)
    assert (sum(histogram.counts), histogram.num_not_finite) == (2, 2)
    assert (histogram.smallest, histogram.largest) == (1.0, 1.0)
    with pytest.raises(MisconfigurationException, match=r"1 values, none of them finite"):
        Histogram([float("nan")])


def test_audio_is_a_wave_file():
    samples = torch.tensor([[0.0, 1.0, -1.0, 2.0], [0.5, 0.0, 0.0, 0.0]])
    with wave.open(io.BytesIO(Audio(samples, 8000).encoded())) as file:
        assert (file.getnchannels(), file.getframerate(), file.getnframes(), file.getsampwidth()) == (2, 8000, 4, 2)
        read = numpy.frombuffer(file.readframes(4), "<i2").reshape(4, 2)
    assert read.tolist() == [[0, 16384], [32767, 0], [-32767, 0], [32767, 0]]


def test_a_table_and_a_text():
    table = Table(["a", "b"], [[1, "x|y"], [2.5, '"z",\nok']])
    assert list(csv.reader(io.StringIO(table.encoded().decode(), newline=""))) == [
        ["a", "b"],
        ["1", "x|y"],
        ["2.5", '"z",\nok'],
    ]
    assert table.markdown() == '| a | b |\n|---|---|\n| 1 | x\\|y |\n| 2.5 | "z", ok |'
    assert Text("größer").encoded().decode() == "größer"


def test_a_figure():
    plot = Plot(figsize=(2, 1), dpi=100)
    plot.subplots().plot([1, 2])
    assert opened(Figure(plot)).shape == (100, 200, 4)


def test_bad_input():
    with pytest.raises(ArgumentTypeError, match=r"dtype torch\.int64\.\n  Expected: uint8"):
        Image(torch.zeros(2, 2, dtype=torch.int64))
    with pytest.raises(ArgumentTypeError, match=r"Image got 'cat\.png'"):
        Image("cat.png")
    with pytest.raises(ArgumentTypeError, match=r"Figure\(figure=.*\n  Expected: a figure of matplotlib"):
        Figure([1, 2])
    with pytest.raises(ArgumentTypeError, match=r"Histogram\(bins=2\.5\)"):
        Histogram([1.0], bins=2.5)
    with pytest.raises(MisconfigurationException, match=r"Histogram\(bins=0\)"):
        Histogram([1.0], bins=0)
    with pytest.raises(ArgumentTypeError, match=r"Text\(text=3 \(int\)\)"):
        Text(3)
    with pytest.raises(MisconfigurationException, match=r"2 columns, but row 1 has 1 values"):
        Table(["a", "b"], [[1, 2], [3]])
    with pytest.raises(ArgumentTypeError, match=r"samples of dtype torch\.int16"):
        Audio(torch.zeros(4, dtype=torch.int16), 8000)
    with pytest.raises(ArgumentTypeError, match=r"sample_rate=8000\.0"):
        Audio(torch.zeros(4), 8000.0)
    with pytest.raises(MisconfigurationException, match=r"shape \(4000, 2\) at 8000"):
        Audio(torch.zeros(4000, 2), 8000)
