"""Secrets of an experiment file do not appear in errors, reprs and stored copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightlib.config.yaml.document import ConfigError
from lightlib.experiment.file import read, save
from lightlib.experiment.file.masks import masked_at
from tests.experiment.given import complete, read_fragment, read_text

SECRETS = """\
data:
  url: https://me:s3cret-a@data.example.org
  secrets:
    auth_token: s3cret-b
    pins: [1234567, {x: s3cret-c}]
checkpoint_storage:
  type: s3
  bucket: public
  access_key: s3cret-d
  secret_key: s3cret-e
environment:
  registry_auth: {username: public, password: s3cret-f, serveraddress: r.example.org, auth: s3cret-g}
  environment_variables: [HF_TOKEN=s3cret-h, PLAIN=public]
fit:
  trainer: {logger: {api_key: s3cret-i}}
hyperparameters:
  global_batch_size: 64
  max_tokens: 512
"""
KEYS = (
    "data.url",
    "data.secrets.auth_token",
    "data.secrets.pins.0",
    "data.secrets.pins.1.x",
    "fit.trainer.logger.api_key",
    "checkpoint_storage.access_key",
    "checkpoint_storage.secret_key",
    "environment.environment_variables.cpu.HF_TOKEN",
    "environment.environment_variables.cuda.HF_TOKEN",
    "environment.environment_variables.rocm.HF_TOKEN",
    "environment.registry_auth.password",
    "environment.registry_auth.auth",
)


def assert_hidden(text: str) -> None:
    assert "s3cret" not in text
    assert "1234567" not in text


def test_values_are_read() -> None:
    config = read_fragment(SECRETS)
    assert config.data["secrets"] == {"auth_token": "s3cret-b", "pins": [1234567, {"x": "s3cret-c"}]}
    assert config.checkpoint_storage.secret_key == "s3cret-e"
    assert config.environment.variables("cpu") == {"HF_TOKEN": "s3cret-h", "PLAIN": "public"}
    assert config.masked_secrets == ()


def test_no_secret_is_in_a_repr() -> None:
    config = read_fragment(SECRETS)
    for part in (config, config.checkpoint_storage, config.environment, config.environment.registry_auth):
        assert_hidden(repr(part))
        assert "public" in repr(part)
        assert "***" in repr(part)
    assert "PLAIN=public" in repr(config.environment)


def test_no_secret_is_in_the_stored_copy() -> None:
    save(read_fragment(SECRETS), "experiment.yaml")
    text = Path("experiment.yaml").read_text(encoding="utf-8")
    assert_hidden(text)
    assert "https://me:***@data.example.org" in text
    assert "PLAIN=public" in text
    assert "max_tokens: 512" in text
    assert read("experiment.yaml").masked_secrets == KEYS


def test_secrets_of_a_stored_copy_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_fragment(SECRETS)
    save(config, "experiment.yaml")
    monkeypatch.setenv("LIGHTLIB_SECRET_SECRET_KEY", "s3cret-e")
    monkeypatch.setenv("LIGHTLIB_SECRET_HF_TOKEN", "s3cret-h")
    monkeypatch.setenv("LIGHTLIB_SECRET_URL", "s3cret-a")
    again = read("experiment.yaml")
    assert again.checkpoint_storage.secret_key == "s3cret-e"
    assert (
        again.environment
        == read_fragment(SECRETS.replace("s3cret-f", "'***'").replace("s3cret-g", "'***'")).environment
    )
    assert again.data["url"] == config.data["url"]
    left = ("data.url", "checkpoint_storage.secret_key", *(key for key in KEYS if "variables" in key))
    assert again.masked_secrets == tuple(key for key in KEYS if key not in left)


@pytest.mark.parametrize(
    ("fragment", "override"),
    [
        ("environment: {registry_auth: [password, s3cret]}", ""),
        ("environment: {registry_auth: {username: a, password: [s3cret], serveraddress: b}}", ""),
        ("environment: {registrt_auth: {password: s3cret, auth: s3cret}}", ""),
        ("environment: {registry_auth: {'password:s3cret': null}}", ""),
        ("environment: {registry_auth: {auth s3cret: null}}", ""),
        ("enviroment: {registry_auth: {passwor: s3cret}}", ""),
        ("environment: {environment_variables: {cpu: {HF_TOKEN: s3cret}}}", ""),
        ("environment: {environment_variables: ['MY PASSWORD=s3cret']}", ""),
        ("checkpoint_storage: {type: s3, bucket: a, secret_key: [s3cret]}", ""),
        ("checkpoint_storage: {type: s3, bucket: a, secret_kye: s3cret}", ""),
        ("checkpoint_storage: {type: azure, container: a, connection_string: s3cret, credential: s3cret}", ""),
        ("data: [{password: s3cret}]", ""),
        ("labels: [a]", "labels.0.password=s3cret"),
        ("labels: [a]", "checkpoint_storage.secret_key=s3cret"),
        ("labels: [a]", "environment.registry_auth..password=s3cret"),
    ],
)
def test_no_secret_is_in_an_error(fragment: str, override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_fragment(f"{fragment}\n", [override] if override else [])
    assert_hidden(str(caught.value))


@pytest.mark.parametrize(
    ("fragment", "kept"),
    [
        ("data:\n  secrets:\n    first: 's3cret\n", "first: ***"),
        ("environment:\n  registry_auth:\n    password: s3cret: 1\n", "password: ***"),
        ("checkpoint_storage:\n  connection_string: s3cret: 1\n", "connection_string: ***"),
        ("data:\n  secrets:\n    - s3cret\n    - 's3cret\n", ""),
        ("environment: {registry_auth: {username: a, password: [s3cret}}\n", "environment: ***"),
        ("environment:\n  environment_variables: [HF_TOKEN=s3cret}\n", "environment_variables: ***"),
        ("fit: {logger: {api_key: s3cret}}}\n", "fit: ***"),
        ("fit:\n  api_key: !s3cret x\n", "the tag !*** is unknown"),
        ("data: !https://me:s3cret@host\n", ""),
        (f"fit: {{api_key: {'a' * 100} s3cret]\n", "***"),
        ("labels: [a\ndata: &x https://me:s3cret@host/: b\n", ""),
    ],
)
def test_no_secret_is_in_an_error_of_yaml(fragment: str, kept: str) -> None:
    with pytest.raises(ConfigError, match=r"mnist\.yaml, line") as caught:
        read_text(fragment)
    assert_hidden(str(caught.value))
    assert kept in str(caught.value)


def test_a_line_without_secrets_is_shown_in_an_error_of_yaml() -> None:
    with pytest.raises(ConfigError, match=r"  2 \| name: public: x"):
        read_text(f"labels: []\nname: public: x\n{complete('')}")
    with pytest.raises(ConfigError, match=r"  4 \|     username: public: x"):
        read_text("environment:\n  registry_auth:\n    password: s3cret\n    username: public: x\n")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("environment.registry_auth.registrytoken", ["x"], ["***"]),
        ("environment.registry_auth.identitytoken", {"a": 1}, {"a": "***"}),
        ("data.secrets", {"a": 1, "b": None}, {"a": "***", "b": None}),
        ("data.secrets.a", 1, "***"),
        ("checkpoint_storage.credential", "x", "***"),
        ("checkpoint_storage.bucket", "x", "x"),
        ("environment.registry_auth", {"username": "a", "auth": "b"}, {"username": "a", "auth": "***"}),
        ("hyperparameters.token", "x", "***"),
        ("hyperparameters.secret_size", 3, 3),
        ("environment.environment_variables.cpu", ("API_KEY=x", "A=y"), ["API_KEY=***", "A=y"]),
    ],
)
def test_masks(key: str, value: object, expected: object) -> None:
    assert masked_at(key, value) == expected
