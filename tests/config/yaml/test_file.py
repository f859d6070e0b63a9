"""Reading configuration files: jsonargparse's values, and the place of a refused value."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

import jsonargparse
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lightlib.config.yaml import document
from lightlib.config.yaml.file import ConfigError, Document, Sources, dump, load, loader, text_of
from lightlib.errors import MisconfigurationException

SCALARS = """
1 -1 +1 0 010 0o10 0x1F 0b11 1_000 1e-3 1E5 1e+3 -1e3 1.0 1. .5 .5e+3 .5e3 1.5e3 -.5 .inf -.Inf +.INF .nan
.NaN 1:30 1:30.5 00:12:00:00 2026-01-01 2026-01-01T10:00:00Z true True yes no on off y n null Null ~ ~x '1'
"1" text 1.2.3 1e 1e1e 0.1.2 --x -x a:b http://x/y 12abc
""".split()  # noqa: SIM905


@pytest.mark.parametrize("scalar", SCALARS)
def test_a_scalar_is_read_as_jsonargparse_reads_it(scalar: str) -> None:
    ours, theirs = load(f"key: {scalar}"), jsonargparse.get_loader("yaml")(f"key: {scalar}")
    assert repr(ours) == repr(theirs)


@settings(deadline=None, max_examples=150)
@given(st.from_regex(r"[-+]?[0-9._:eEx]{1,8}", fullmatch=True))
def test_any_number_like_text_is_read_as_jsonargparse_reads_it(scalar: str) -> None:
    try:
        theirs = jsonargparse.get_loader("yaml")(f"key: {scalar}")
    except (ValueError, yaml.YAMLError):  # `._` and the like: jsonargparse ends with a traceback
        with pytest.raises(ConfigError):
            load(f"key: {scalar}")
    else:
        assert repr(load(f"key: {scalar}")) == repr(theirs)


def test_timestamps_stay_text_and_exponents_are_floats() -> None:
    assert load("{at: 2026-01-01, lr: 1e-3, on: {x: [1, 2.5, null, true]}}") == {
        "at": "2026-01-01",
        "lr": 0.001,
        True: {"x": [1, 2.5, None, True]},
    }


def test_anchors_aliases_and_merge_keys_work() -> None:
    text = """\
    base: &base {a: 1, b: 2}
    other: &other {b: 3, c: 4}
    own: {<<: *base, b: 5}
    list: {<<: [*base, *other], d: 6}
    again: *base
    """
    config = load(textwrap.dedent(text))
    assert config["own"] == {"a": 1, "b": 5}
    assert config["list"] == {"a": 1, "b": 2, "c": 4, "d": 6}
    assert config["again"] == config["base"]
    assert config == yaml.safe_load(textwrap.dedent(text))
    config["again"]["a"] = 7
    assert config["base"]["a"] == 1  # values repeated by an alias are not shared


def test_standard_tags_and_a_byte_order_mark_are_accepted() -> None:
    assert load('\ufeffa: !!str 3\nb: !!int "4"\nc: !!float 5') == {"a": "3", "b": 4, "c": 5.0}


REFUSED = {
    "python tag": (
        "trainer:\n  logger: !!python/object/apply:os.system ['echo']\n",
        (
            "run.yaml, line 2, column 11: the tag !!python/object/apply:os.system would run Python code when the file "
            "is read, and is refused.\n  2 |   logger: !!python/object/apply:os.system ['echo']\n    |           ^\n"
            "  Expected: plain values: text, numbers, true, false, null, lists and mappings.\n"
            "  Fix: build objects with `class_path:` and `init_args:`, or delete the tag."
        ),
    ),
    "python name": ("a: !!python/name:os.system", "the tag !!python/name:os.system would run Python code"),
    "python tag by its full name": ("a: !<tag:yaml.org,2002:python/none> x", "!!python/none would run Python code"),
    "unknown tag": ("a: !Net {width: 3}", "line 1, column 4: the tag !Net is unknown: it would build an object"),
    "key twice": (
        "trainer:\n  max_epochs: 1\n  # …\n  max_epochs: 2\n",
        "run.yaml, line 4, column 3: the key 'max_epochs' stands here again; the first is in line 2.",
    ),
    "key twice in a line": ("{a: 1, a: 2}", "run.yaml, line 1, column 8: the key 'a' stands here again"),
    "second document": ("a: 1\n---\nb: 2\n", "run.yaml, line 2, column 1: a second document begins."),
    "tab": ("a:\n\tb: 1\n", "run.yaml, line 2, column 1: a tab stands in the indentation.\n  2 |  b: 1\n    | ^\n"),
    "deeper": ("a:\n  b: 1\n    c: 2\n", "run.yaml, line 3, column 6: mapping values are not allowed in this context."),
    "colon": (
        "a: b: c\n",
        (
            "run.yaml, line 1, column 5: mapping values are not allowed in this context.\n  1 | a: b: c\n    |     ^\n"
            "  Expected: YAML.\n  Fix: one `key: value` in a line, not deeper than a line above it that has a value; "
            "a value that holds `: ` needs quotes."
        ),
    ),
    "indentation": ("a:\n    b: 1\n  c: 2\n", "run.yaml, line 3, column 3: "),
    "open bracket": ("a: [1, 2\n", "run.yaml, line 1, column 9: did not find expected ',' or ']'"),
    "open quote": ('a: "b\nc: 1\n', "found unexpected end of stream"),
    "unknown alias": ("a: *b\n", "run.yaml, line 1, column 4: found undefined alias"),
    "at sign": ("a: @x\n", "run.yaml, line 1, column 4: found character that cannot start any token"),
    "control character": ("a: 1\nb: \x07\n", "run.yaml, line 2, column 4: the character '\\x07' is not allowed."),
    "contains itself": ("a: &a [1, *a]\n", "run.yaml, line 1, column 4: this value contains itself."),
    "merge of no mapping": ("a: {<<: 3}", "run.yaml, line 1, column 9: `<<` is followed by something that is not a"),
    "list as a key": ("? [1, 2]\n: 3\n", "run.yaml, line 1, column 3: a list or mapping is used as a key."),
    "no int": ("a: !!int x", "run.yaml, line 1, column 4: this cannot be read as int."),
    "deep": ("[" * 150 + "]" * 150, "run.yaml, line 1, column 101: this is nested more than 100 levels deep."),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("base", [yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)])
def test_what_is_refused_is_named_with_its_place(text: str, said: str, base: type, monkeypatch) -> None:
    kind = type("Loader", (base,), {"yaml_implicit_resolvers": document._Loader.yaml_implicit_resolvers})
    monkeypatch.setattr(document, "_Loader", kind)
    with pytest.raises(ConfigError) as caught:
        load(text, "run.yaml")
    pure = {
        "in this context": "here",
        "did not find expected ',' or ']'": "expected ',' or ']'",
        "found character that": "found character '@' that",
    }
    told = str(caught.value)
    assert said in told or any(said.replace(one, other) in told for one, other in pure.items()), told
    assert "\n  Expected: " in told
    assert "\n  Fix: " in told
    assert isinstance(caught.value, MisconfigurationException)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{one}: &{one} [{', '.join([f'*{before}'] * 10)}]\n" for before, one in zip("abcdefgh", "bcdefghi", strict=True)
)


def test_aliases_that_multiply_are_refused_before_they_do() -> None:
    with pytest.raises(ConfigError, match="line 5, column 4: the values are more than 100000, when each alias"):
        load(BOMB)
    merged = "a: &a {k: 1}\n" + "".join(
        f"{one}: &{one} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
        for before, one in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(ConfigError, match=r"more than 100000"):
        load(merged)
    nested = "a0: &a0 [1]\n" + "".join(f"a{one}: &a{one} [*a{one - 1}]\n" for one in range(1, 200))
    with pytest.raises(ConfigError, match="nested more than 100 levels"):
        load(nested)
    with pytest.raises(ConfigError, match=r"more than 100000"):
        load("[" + "1, " * 100_001 + "1]")


def test_a_mapping_can_be_asked_for() -> None:
    for text, said in (("- 1", "a list"), ("", "nothing"), ("# only\n", "nothing"), ("word", "a single value")):
        with pytest.raises(ConfigError, match=rf"run\.yaml holds {said} at the top"):
            load(text, "run.yaml", mapping=True)
    assert load("") is None
    assert load("- 1") == [1]


def test_the_place_of_every_key_is_known() -> None:
    text = """\
    trainer:
      max_epochs: 3
      callbacks:
      - class_path: EarlyStopping
        init_args:
          patience: 5
      - {class_path: Timer}
    data: &d {x: 1}
    more: {<<: *d, y: [2]}
    """
    entries = Document(textwrap.dedent(text), "run.yaml").entries
    found = {key: entry.place for key, entry in entries.items()}
    assert found["trainer.max_epochs"] == "run.yaml, line 2"
    assert found["trainer.callbacks.0"] == "run.yaml, line 4"
    assert found["trainer.callbacks.0.init_args.patience"] == "run.yaml, line 6"
    assert found["trainer.callbacks.1.class_path"] == "run.yaml, line 7"
    assert found["more.x"] == "run.yaml, line 8"
    assert found["more.y.0"] == "run.yaml, line 9"
    assert found["trainer"] == "run.yaml, line 1"
    assert list(found)[:3] == ["trainer", "trainer.max_epochs", "trainer.callbacks"]


@pytest.mark.parametrize("word", ["3", "1e-3", "[1, 2]", "Adam", "{a: 1}", "{a, b}", "a:", "{a}", "x: 1", "null", ""])
def test_a_value_of_the_command_line_is_read_as_jsonargparse_reads_it(word: str) -> None:
    assert loader(word) == jsonargparse.get_loader("yaml")(word)


def test_a_value_that_is_no_yaml_stays_text_in_a_parser() -> None:
    before = jsonargparse.get_loader("yaml")
    jsonargparse.set_loader("yaml", loader, (ConfigError,))
    try:
        parser = jsonargparse.ArgumentParser(exit_on_error=False)
        parser.add_argument("--name", type=str)
        parser.add_argument("--either", type=int | str)
        for word in ("a: b: c", "!!python/name:os.system", "*x", "@x", "{a, b}", "x:", "[1, 2"):
            assert parser.parse_args([f"--name={word}", f"--either={word}"]).name == word
        parser.add_argument("--config", action="config")
        with pytest.raises(argparse.ArgumentError, match=r"the tag !!python/name:os\.system would run Python code"):
            parser.parse_args(["--config", "{name: !!python/name:os.system x}"])
    finally:
        jsonargparse.set_loader("yaml", before, (yaml.YAMLError,))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.from_regex(r"[-+0-9.e:x_]+"),
    lambda one: st.lists(one) | st.dictionaries(st.text(), one),
    max_leaves=5,
)


@settings(deadline=None, max_examples=150)
@given(VALUES, st.booleans())
def test_what_is_dumped_is_loaded_as_the_same(value: object, flow: bool) -> None:
    assert load(dump(value, flow=flow)) == value


def test_numbers_that_are_text_stay_text() -> None:
    assert dump({"lr": "1e-3", "on": "on"}) == "lr: '1e-3'\n'on': 'on'\n"
    shared = [1]
    assert dump({"a": shared, "b": shared}, flow=True) == "{a: [1], b: [1]}"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("a: 1\n")
    (tmp_path / "latin.yaml").write_bytes("a: 1\nb: é\n".encode("latin1"))
    (tmp_path / "marked.yaml").write_bytes("a: é\n".encode("utf-8-sig"))
    near = str(tmp_path / "train.yaml")
    with pytest.raises(ConfigError) as caught:
        text_of(tmp_path / "trian.yaml")
    assert str(caught.value).splitlines()[0].endswith(f"trian.yaml' does not exist. Did you mean {near!r}?")
    assert str(caught.value).endswith(f"Fix: --config {near}")
    with pytest.raises(ConfigError, match="is a folder"):
        text_of(tmp_path)
    with pytest.raises(ConfigError, match=r"latin.yaml, line 2: the byte b'\\xe9' is not UTF-8"):
        text_of(tmp_path / "latin.yaml")
    with pytest.raises(ConfigError, match="correct the path"):
        text_of(tmp_path / "nowhere" / "x.yaml")
    assert text_of(tmp_path / "marked.yaml") == "a: é\n"


def read(sources, text, name=None, default=False):
    return sources.add(sources.document(text, name), default=default)


def test_the_last_file_that_sets_a_key_is_told_whatever_the_sub_command() -> None:
    sources = Sources()
    assert sources.where("trainer") is None
    read(sources, "trainer:\n  max_epochs: 1\n  callbacks:\n  - Timer\n", "first.yaml")
    read(sources, "fit:\n  trainer:\n    max_epochs: 2\n", "second.yaml")
    assert sources.where("fit.trainer.max_epochs") == "second.yaml, line 3"
    assert sources.where("trainer.max_epochs") == "second.yaml, line 3"
    assert sources.where("fit.trainer.callbacks.0") == "first.yaml, line 4"
    assert sources.where("trainer.unknown") is None


def test_what_two_files_set_differently_is_listed() -> None:
    sources = Sources()
    read(sources, "optimizer: Adam\ntrainer: {max_epochs: 1, devices: 1, callbacks: [A, B]}\nseed: 1\n", "first.yaml")
    read(sources, "optimizer: {class_path: SGD}\nfit:\n  trainer: {max_epochs: 2, devices: 1}\n", "second.yaml")
    read(sources, "trainer: {max_epochs: 2, callbacks: [A], precision: 16}\nvalidate: {seed: 2}\n", "third.yaml")
    assert sources.overridden() == [
        "optimizer: {'class_path': 'SGD'} (second.yaml, line 1) instead of 'Adam' (first.yaml, line 1)",
        "fit.trainer.max_epochs: 2 (second.yaml, line 3) instead of 1 (first.yaml, line 2)",
        "trainer.callbacks: ['A'] (third.yaml, line 1) instead of ['A', 'B'] (first.yaml, line 2)",
        "validate.seed: 2 (third.yaml, line 2) instead of 1 (first.yaml, line 3)",
    ]


def test_a_single_value_for_a_group_is_refused() -> None:
    sources = Sources()
    read(sources, "fit:\n  trainer: 3\n", "run.yaml")
    with pytest.raises(ConfigError, match=r"'trainer' is 3 \(run.yaml, line 2\), but it is a group of arguments"):
        sources.check_groups(["model", "trainer"])
    read(sources, "trainer: trainer.yaml\nmodel:\n", "run.yaml")
    sources.check_groups(["model", "trainer"])


def test_text_that_is_no_file_is_called_config() -> None:
    with pytest.raises(ConfigError, match=r"^--config, line 1, column 4: "):
        read(Sources(), "{'a", None)
