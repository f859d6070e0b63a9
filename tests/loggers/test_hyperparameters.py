"""Conversion of hyperparameters to plain values."""

from __future__ import annotations

import argparse
import enum
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lightlib.loggers import flatten, plain


@dataclass
class Optimizer:
    name: str = "adam"
    betas: tuple[float, float] = (0.9, 0.99)
    api_key: str = "abc"


@dataclass
class Model:
    width: int = 8
    optimizer: Optimizer = field(default_factory=Optimizer)


class Point(NamedTuple):
    x: int
    y: int


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


def test_nested_values_are_flattened():
    params = {"model": Model(), "data": argparse.Namespace(path=Path("a/b"), n=types.SimpleNamespace(x=1)), 3: None}
    assert flatten(params) == {
        "model/width": 8,
        "model/optimizer/name": "adam",
        "model/optimizer/betas": "[0.9, 0.99]",
        "model/optimizer/api_key": "***",
        "data/path": "a/b",
        "data/n/x": 1,
        "3": "None",
    }
    assert flatten(params, separator=".")["model.width"] == 8
    assert flatten(None) == {}
    assert flatten({"empty": {}}) == {"empty": "{}"}
    assert flatten(Model())["width"] == 8


def test_values_are_plain():
    params = {
        "enum": Color.RED,
        "level": Level.LOW,
        "array": np.float64(0.5),
        "integer": np.int64(3),
        "tensor": torch.tensor(2.0),
        "vector": torch.zeros(2),
        "dtype": torch.float32,
        "class": torch.nn.ReLU,
        "function": flatten,
        "set": {2, 1},
        "point": Point(1, 2),
        "flag": True,
    }
    values = plain(params)
    assert values == {
        "enum": "red",
        "level": 1,
        "array": 0.5,
        "integer": 3,
        "tensor": 2.0,
        "vector": "tensor([0., 0.])",
        "dtype": "torch.float32",
        "class": "torch.nn.modules.activation.ReLU",
        "function": "lightlib.loggers.hyperparameters.flatten",
        "set": [1, 2],
        "point": [1, 2],
        "flag": True,
    }
    assert yaml.safe_load(yaml.safe_dump(values)) == values
    assert all(type(value) in (int, float, str, bool) for value in flatten(params).values())


@pytest.mark.parametrize(
    "name",
    [
        *("password", "db_password", "DB-PASSWD", "token", "hf_token", "accessToken", "github_tokens", "secret"),
        *("client.secret", "api_key", "apiKey", "OPENAI_API_KEY", "credentials", "aws_secret_access_key"),
        *("ssh-private-key", "authkey"),
    ],
)
def test_secrets_are_masked(name):
    assert plain({name: "abc"}) == {name: "***"}
    assert plain({"a": [{name: "abc"}]}) == {"a": [{name: "***"}]}
    assert "abc" not in str(flatten({"a": [{name: "abc"}], "b": {name: ["abc"]}, "c": Path("x")}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 512),
        ("pad_token", "<pad>"),
        ("eos_token_id", 2),
        ("special_tokens", ["<s>"]),
        ("tokenizer", "bpe"),
        ("key", "C"),
        ("monkey", "yes"),
        ("author", "me"),
        ("password", None),
        ("token", 3),
    ],
)
def test_other_names_are_not(name, value):
    assert plain({name: value}) == {name: value}


def test_what_has_no_names_is_refused():
    with pytest.raises(TypeError, match="must be a mapping, a dataclass or a Namespace, got 3"):
        plain(3)


nested = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1), nested, max_size=4))
def test_what_is_plain_stays_plain(params):
    once = plain(params)
    assert plain(once) == once
    assert all(isinstance(value, (int, float, str, bool)) for value in flatten(params).values())


def test_containers_of_omegaconf_are_plain_with_what_their_references_stand_for():
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create({"width": 8, "layers": [1, "${width}"], "hf_token": "a"})
    assert plain(config) == {"width": 8, "layers": [1, 8], "hf_token": "***"}
    assert plain({"layers": config.layers}) == {"layers": [1, 8]}
    assert flatten({"model": config})["model/layers"] == "[1, 8]"
    config.gone = "${nothing}"
    assert plain(config)["gone"] == "${nothing}"
