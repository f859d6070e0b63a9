"""Values of `devices=`: the valid ones, and the refused ones."""

import pytest

from lightlib.accelerators.devices import device_indices, process_count
from lightlib.errors import ArgumentTypeError, MisconfigurationException


@pytest.mark.parametrize(
    ("devices", "indices"),
    [
        (1, [0]),
        (3, [0, 1, 2]),
        ("3", [0, 1, 2]),
        (" 3 ", [0, 1, 2]),
        (-1, [0, 1, 2, 3]),
        ("-1", [0, 1, 2, 3]),
        ("auto", [0, 1, 2, 3]),
        ([2], [2]),
        ([3, 1], [3, 1]),
        ((0, 2), [0, 2]),
        ("0,2", [0, 2]),
        (" 0 , 2 ", [0, 2]),
        ("1,", [1]),
    ],
)
def test_every_spelling_of_indices(devices, indices):
    assert device_indices(devices, available=4, kind="cuda") == indices


@pytest.mark.parametrize("devices", [0, "0", [], (), ","])
def test_no_device_at_all(devices):
    with pytest.raises(MisconfigurationException, match="asks for no cuda device at all") as caught:
        device_indices(devices, available=4, kind="cuda")
    assert "Fix: Trainer(devices='auto')" in str(caught.value)


@pytest.mark.parametrize("devices", [5, "5", 10**12])
def test_more_than_there_are(devices):
    with pytest.raises(MisconfigurationException) as caught:
        device_indices(devices, available=4, kind="cuda")
    assert str(caught.value) == (
        f"devices={devices!r} asks for {int(devices)} cuda devices, but this machine has 4.\n"
        "  Expected: at most 4.\n"
        "  Fix: Trainer(devices=4), or devices='auto' for all."
    )


@pytest.mark.parametrize(("devices", "missing"), [([0, 4], "4"), ("4,5", "4, 5"), ([-1], "-1")])
def test_an_index_that_is_not_there(devices, missing):
    with pytest.raises(
        MisconfigurationException, match=f"names cuda device {missing}, but this machine has 4"
    ) as caught:
        device_indices(devices, available=4, kind="cuda")
    assert "Expected: indices from 0 to 3." in str(caught.value)


@pytest.mark.parametrize("devices", [[1, 1], "0,1,0"])
def test_a_device_twice(devices):
    with pytest.raises(MisconfigurationException, match="more than once"):
        device_indices(devices, available=4, kind="cuda")


@pytest.mark.parametrize("devices", ["abc", "", "1.5", "0,x", -2, "-3"])
def test_a_value_without_meaning(devices):
    with pytest.raises(MisconfigurationException, match="has no meaning for cuda devices") as caught:
        device_indices(devices, available=4, kind="cuda")
    assert not isinstance(caught.value, TypeError)
    assert "Expected: an int >= 1 (how many)" in str(caught.value)
    assert "Fix: Trainer(devices='auto')" in str(caught.value)


@pytest.mark.parametrize("devices", [True, False, 1.5, None, {0, 1}, {"a": 1}])
def test_a_type_without_meaning(devices):
    with pytest.raises(ArgumentTypeError, match=f"is a {type(devices).__name__}"):
        device_indices(devices, available=4, kind="cuda")


@pytest.mark.parametrize("devices", [[True], [0, 1.5], ["0"], [None]])
def test_a_list_of_something_else(devices):
    with pytest.raises(ArgumentTypeError, match="all of them ints"):
        device_indices(devices, available=4, kind="cuda")


@pytest.mark.parametrize(("devices", "count"), [(1, 1), (4, 4), ("2", 2), (" 2 ", 2)])
def test_process_count(devices, count):
    assert process_count(devices) == count


@pytest.mark.parametrize("devices", [0, -1, "0", "-1", "abc", "0,1", [0, 1], []])
def test_process_count_refuses_values(devices):
    with pytest.raises(MisconfigurationException, match="was given for the CPU") as caught:
        process_count(devices)
    assert not isinstance(caught.value, TypeError)
    assert "Expected: a number of processes" in str(caught.value)
    assert "Fix: Trainer(accelerator='cpu', devices=1)" in str(caught.value)


@pytest.mark.parametrize("devices", [True, 1.5, None])
def test_process_count_refuses_types(devices):
    with pytest.raises(ArgumentTypeError, match="was given for the CPU"):
        process_count(devices)
