"""Errors that a constructor raises while a configuration is built: they are raised unchanged."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from lightlib.callbacks import Callback
from lightlib.config.build import construct, is_building, let_through
from lightlib.config.compatible import CompatibleParser
from lightlib.errors import MisconfigurationException


class Picky(Callback):
    def __init__(self, how: str = "well", inner: Callback | None = None) -> None:
        if how == "zero":
            _ = 1 / 0
        if how == "ours":
            raise MisconfigurationException("how is 'ours'.", expected="well.", fix="how='well'")
        if how == "from":
            try:
                _ = {}["first"]
            except KeyError as error:
                raise ValueError("second") from error
        self.how, self.inner = how, inner


class Trying(Callback):
    """Builds another callback, and catches its error."""

    def __init__(self, make: Callable[[], Picky]) -> None:
        try:
            self.made = make()
        except ZeroDivisionError:
            self.made = None


@pytest.fixture
def parser():
    parser = CompatibleParser(exit_on_error=False)
    parser.add_argument("--callbacks", type=list[Callback] | Callback | None)
    return parser


def built(parser, *words):
    return parser.instantiate(parser.parse_args(words)).callbacks


def path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@pytest.mark.parametrize(("how", "kind"), [("zero", ZeroDivisionError), ("ours", MisconfigurationException)])
def test_an_error_comes_through_as_it_is(parser, how, kind) -> None:
    for words in (
        [f"--callbacks={path(Picky)}", f"--callbacks.how={how}"],
        [f"--callbacks+={path(Picky)}", f"--callbacks.how={how}"],
        [f"--callbacks={path(Picky)}", f"--callbacks.inner={path(Picky)}", f"--callbacks.inner.how={how}"],
    ):
        with pytest.raises(kind) as caught:
            built(parser, *words)
        assert caught.type is kind
        assert caught.value.__context__ is None
        assert "Union subtypes" not in "".join(traceback.format_exception(caught.value))
        assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "__init__"
        assert not is_building()


def test_the_cause_of_an_error_stays(parser) -> None:
    with pytest.raises(ValueError, match="second") as caught:
        built(parser, f"--callbacks={path(Picky)}", "--callbacks.how=from")
    assert isinstance(caught.value.__cause__, KeyError)


def test_objects_are_built_and_instantiators_that_were_added_come_first(parser) -> None:
    assert built(parser, f"--callbacks={path(Picky)}").how == "well"
    calls = []

    def mine(kind, *args, **kwargs):
        calls.append(kind)
        return construct(kind, *args, **kwargs)

    parser.add_instantiator(mine, Picky)
    built(parser, f"--callbacks={path(Picky)}", f"--callbacks.inner={path(Picky)}")
    assert calls == [Picky, Picky]
    with pytest.raises(ZeroDivisionError):
        built(parser, f"--callbacks={path(Picky)}", "--callbacks.how=zero")


def test_a_constructor_can_take_the_error_of_what_it_builds(parser) -> None:
    def make() -> Trying:
        return construct(Trying, lambda: construct(Picky, how="zero"))

    assert let_through(make).made is None
    with pytest.raises(ZeroDivisionError):
        construct(Picky, how="zero")  # a factory that is called after everything was built
