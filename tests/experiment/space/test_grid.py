"""Grids: the points of each type of hyperparameter, their order, and counts."""

from __future__ import annotations

import pytest

from lightlib.errors import MisconfigurationException
from lightlib.experiment.space import Space, nested


def axis(given):
    return [values["x"] for values in Space({"x": given}).grid()]


@pytest.mark.parametrize("count", [3, 100])
def test_the_last_key_changes_fastest(count):
    tree = {
        "cparam": {"type": "const", "val": "c"},
        "bparam": {"type": "categorical", "vals": [10, 20]},
        "aparam": {"type": "int", "minval": 0, "maxval": 2, "count": count},
    }
    points = [tuple(values.values()) for values in Space(tree).grid()]
    assert points == [(0, 10, "c"), (0, 20, "c"), (1, 10, "c"), (1, 20, "c"), (2, 10, "c"), (2, 20, "c")]


@pytest.mark.parametrize(
    ("given", "points"),
    [
        ({"type": "double", "minval": 0.1, "maxval": 0.5, "count": 3}, [0.1, 0.3, 0.5]),
        ({"type": "log", "minval": -5, "maxval": -3, "count": 3}, [1e-5, 1e-4, 1e-3]),
        ({"type": "double", "minval": 0.0, "maxval": 2.0, "count": 5}, [0.0, 0.5, 1.0, 1.5, 2.0]),
        ({"type": "double", "minval": 0.1, "maxval": 0.7, "count": 4}, [0.1, 0.3, 0.5, 0.7]),
        ({"type": "log", "minval": 1, "maxval": 3, "count": 2, "base": 2}, [2.0, 8.0]),
        ({"type": "int", "minval": 0, "maxval": 20, "count": 3}, [0, 10, 20]),
        ({"type": "int", "minval": 0, "maxval": 4, "count": 5}, [0, 1, 2, 3, 4]),
        ({"type": "int", "minval": -4, "maxval": -2, "count": 3}, [-4, -3, -2]),
        ({"type": "int", "minval": 0, "maxval": 20, "count": 7}, [0, 3, 7, 10, 13, 17, 20]),
        ({"type": "int", "minval": 0, "maxval": 5, "count": 3}, [0, 3, 5]),  # halves away from zero
        ({"type": "int", "minval": -5, "maxval": 0, "count": 3}, [-5, -3, 0]),
        ({"type": "categorical", "vals": ["b", None, [1], "b"]}, ["b", None, [1], "b"]),
        ({"type": "const", "val": [1, 2]}, [[1, 2]]),
        ({"type": "log_int", "minval": 0, "maxval": 1, "count": 100}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ({"type": "double", "minval": 3, "maxval": 3, "count": 5}, [3.0]),
    ],
)
def test_points(given, points):
    assert axis(given) == points
    assert [type(point) for point in axis(given)] == [type(point) for point in points]


@pytest.mark.parametrize(
    ("given", "midpoint"),
    [
        ({"type": "int", "minval": 0, "maxval": 5}, 3),
        ({"type": "int", "minval": 1, "maxval": 3}, 2),
        ({"type": "double", "minval": 0.1, "maxval": 0.5}, 0.3),
        ({"type": "log", "minval": -5, "maxval": -3}, 1e-4),
        ({"type": "int", "minval": 0, "maxval": 12, "step": 3}, 6),
    ],
)
def test_one_point_is_the_midpoint(given, midpoint):
    assert axis({**given, "count": 1}) == [midpoint]


@pytest.mark.parametrize(
    ("given", "points"),
    [
        ({"type": "int", "minval": 1, "maxval": 9, "step": 4}, [1, 5, 9]),
        ({"type": "double", "minval": 0.1, "maxval": 0.45, "step": 0.1}, [0.1, 0.2, 0.3, 0.4]),
        ({"type": "log_int", "minval": 4, "maxval": 6, "base": 2, "step": 1}, [16, 32, 64]),
        ({"type": "int", "minval": 0, "maxval": 12, "step": 3, "count": 3}, [0, 6, 12]),
        ({"type": "int", "minval": 0, "maxval": 12, "step": 3, "count": 99}, [0, 3, 6, 9, 12]),
    ],
)
def test_steps_need_no_count(given, points):
    assert axis(given) == points


@pytest.mark.parametrize("kind", ["int", "double", "log", "log_int"])
def test_a_range_needs_a_count(kind):
    space = Space({"a": 1, "model": {"x": {"type": kind, "minval": 1, "maxval": 2}}})
    with pytest.raises(MisconfigurationException) as caught:
        space.grid()
    assert str(caught.value) == (
        f"The grid needs a count for hyperparameter 'model.x' of type {kind}, which has none.\n"
        "  Expected: count, the number of points, for int, double, log and log_int (or step).\n"
        f"  Fix: model.x: {{type: {kind}, minval: 1, maxval: 2, count: 3}}"
    )


@pytest.mark.parametrize("counts", [[1], [4], [1, 4], [3, 4], [2, 3, 4], [2, 2, 3, 3, 4, 5]])
def test_the_number_of_points(counts):
    tree = {str(i): {"type": "double", "minval": -1.0, "maxval": 1.0, "count": n} for i, n in enumerate(counts)}
    total = {(1,): 1, (4,): 4, (1, 4): 4, (3, 4): 12, (2, 3, 4): 24, (2, 2, 3, 3, 4, 5): 720}
    grid = Space(tree).grid()
    assert len(grid) == total[tuple(counts)]
    assert len({tuple(values.values()) for values in grid}) == len(grid)


def test_nested_keys_are_sorted_level_by_level():
    two = {"type": "categorical", "vals": [1, 2]}
    tree = {"a-b": two, "a": {"z": two, "empty": {}}, "B": 0}
    space = Space(tree)
    assert list(space.parameters) == ["B", "a.empty", "a.z", "a-b"]
    assert nested(space.grid()[1]) == {"B": 0, "a": {"empty": {}, "z": 1}, "a-b": 2}


def test_no_hyperparameters_are_one_point():
    assert Space({}).grid() == [{}]


def test_absent_keys_give_no_points():
    tree = {
        "a": {"type": "int", "minval": 1, "maxval": 2, "count": 2, "when": {"z": "sgd"}},
        "m": {"type": "categorical", "vals": [7, 8], "when": {"a": 1}},
        "z": {"type": "categorical", "vals": ["sgd", "adam"]},
    }
    assert Space(tree).grid() == [
        {"z": "adam"},
        {"a": 1, "m": 7, "z": "sgd"},
        {"a": 1, "m": 8, "z": "sgd"},
        {"a": 2, "z": "sgd"},
    ]


@pytest.mark.parametrize("over", ["product", "step"])
def test_a_grid_of_millions_is_refused(over):
    axis_of_thousand = {"type": "int", "minval": 1, "maxval": 1000, "count": 1000}
    product = {"a": axis_of_thousand, "b": axis_of_thousand, "c": axis_of_thousand}
    step = {"a": {"type": "double", "minval": 0, "maxval": 1, "step": 1e-9}}
    what = {
        "product": "The grid has more than 1,000,000 points.",
        "step": "The grid of hyperparameter 'a' of type double has 1,000,000,001 points.",
    }
    with pytest.raises(MisconfigurationException) as caught:
        Space(product if over == "product" else step).grid()
    first, expected, fix = str(caught.value).split("\n")
    assert first == what[over]
    assert "1,000,000 points." in expected
    assert "searcher random" in fix
