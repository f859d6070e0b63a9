"""Secrets on the command line: no file holds them, and a saved configuration needs them again."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
import torch
import yaml

from lightlib.cli import LightningCLI, SaveConfigCallback
from lightlib.config.secrets import from_environment, masked, still_masked, variable_of
from tests.cli.parts import QUIET, BareLine, PointsOfLine
from tests.runs.plain import same_weights

pytestmark = [
    pytest.mark.filterwarnings("ignore:No logger received a value"),  # the runs are short
    pytest.mark.filterwarnings("ignore:.*look like secrets, and are not stored in the checkpoint"),
]
SECRET = "hunter2-is-secret"
WORDS = [*(word for word in QUIET if "logger" not in word and "checkpointing" not in word), "--trainer.logger=csv"]
KEYS = [f"--model.api_key={SECRET}", f'--model.options={{"password": "{SECRET}", "rate": 0.1}}']
RUN = Path("lightning_logs/version_0")


class Secretive(BareLine):
    """Its arguments are secrets."""

    def __init__(self, api_key: str = "", options: dict | None = None, address: str = "", pad_token: str = "<pad>"):
        super().__init__()
        self.save_hyperparameters(ignore="address")
        self.api_key, self.options, self.address = api_key, options or {}, address

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.options.get("rate", 0.1))


def fitted(*words, **options):
    """Return the CLI after `fit`."""
    return LightningCLI(Secretive, PointsOfLine, args=["fit", *words], **options)


def files_with(text):
    """Return the files below the working directory that hold a text."""
    return [path for path in Path().rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_no_file_holds_one():
    cli = fitted(*WORDS, *KEYS, f"--model.address=https://me:{SECRET}@host/db")
    assert (cli.model.api_key, cli.model.options["password"]) == (SECRET, SECRET)
    assert cli.model.hparams.api_key == SECRET
    assert {path.suffix for path in RUN.rglob("*") if path.is_file()} >= {".yaml", ".ckpt"}
    assert files_with(SECRET) == []
    saved = yaml.safe_load((RUN / "config.yaml").read_text())["model"]
    assert saved["api_key"] == "***"
    assert saved["options"] == {"password": "***", "rate": 0.1}
    assert saved["address"] == "https://me:***@host/db"
    assert saved["pad_token"] == "<pad>"


def test_neither_several_files_nor_a_callback_of_the_user(monkeypatch):
    class Dumps(SaveConfigCallback):
        def save_config(self, trainer, pl_module, stage):
            Path("dumped.yaml").write_text(self.parser.dump(self.config, skip_none=False))

    Path("model.yaml").write_text(f"api_key: {SECRET}\n")
    Path("run.yaml").write_text("model: model.yaml\n")
    fitted("--config=run.yaml", *WORDS, save_config_kwargs={"multifile": True}, save_config_callback=Dumps)
    assert files_with(SECRET) == [Path("model.yaml")]
    assert yaml.safe_load((RUN / "model.yaml").read_text())["api_key"] == "***"
    assert yaml.safe_load(Path("dumped.yaml").read_text())["model"]["api_key"] == "***"


def test_a_printed_configuration_has_none(capsys):
    with pytest.raises(SystemExit):
        fitted(*WORDS, *KEYS, "--print_config")
    text = capsys.readouterr().out
    assert "api_key: '***'" in text
    assert SECRET not in text


def test_a_saved_configuration_repeats_the_run_with_them(monkeypatch):
    first = fitted(*WORDS, *KEYS)
    config = f"--config={RUN / 'config.yaml'}"
    by_options = fitted(config, f"--model.api_key={SECRET}", KEYS[1])
    monkeypatch.setenv("LIGHTLIB_SECRET_API_KEY", SECRET)
    monkeypatch.setenv("LIGHTLIB_SECRET_PASSWORD", "other")
    by_variables = fitted(config)
    assert same_weights(first.model, by_options.model)
    assert same_weights(first.model, by_variables.model)
    assert (by_variables.model.api_key, by_variables.model.options["password"]) == (SECRET, "other")
    assert len(list(Path("lightning_logs").glob("*/config.yaml"))) == 3
    assert files_with(SECRET) == []


def test_without_them_it_fails_before_training(capsys):
    fitted(*WORDS, *KEYS)
    line = (RUN / "config.yaml").read_text().splitlines().index("  api_key: '***'") + 1
    with pytest.raises(SystemExit) as exited:
        fitted(f"--config={RUN / 'config.yaml'}")
    assert exited.value.code == 2
    text = capsys.readouterr().err
    assert f"'model.api_key' ({RUN / 'config.yaml'}, line {line}) is a secret, which is masked" in text
    assert "in the environment variable LIGHTLIB_SECRET_API_KEY, or as an option" in text
    assert "--model.api_key=" in text


def test_a_run_that_goes_on_leaves_its_record_alone():
    first = fitted(*WORDS, *KEYS, "--ckpt_path=auto")
    fitted(*WORDS, *KEYS, "--ckpt_path=auto")
    folder = Path(first.trainer.log_dir)
    assert (folder / "config.yaml").exists()
    assert not (folder / "config-1.yaml").exists()


class TestMasks:
    GIVEN: ClassVar[dict] = {
        "hf_token": "a",
        "tokens": {"pad": "<p>"},
        "credentials": {"class_path": "a.B", "init_args": {"user": "me", "list": ["x", {"y": "z"}], "n": 1}},
        "secret_dim": 64,
        "password": "",
        "uri": "mysql://me:pw@host",
        "plain": ["https://host:80/a@b", None],
    }

    def test_what_is_masked(self):
        found = masked(self.GIVEN)
        assert found == {
            "hf_token": "***",
            "tokens": {"pad": "<p>"},
            "credentials": {"class_path": "a.B", "init_args": {"user": "***", "list": ["***", {"y": "***"}], "n": 1}},
            "secret_dim": 64,
            "password": "",
            "uri": "mysql://me:***@host",
            "plain": ["https://host:80/a@b", None],
        }
        assert self.GIVEN["hf_token"] == "a"
        keys = ["hf_token", *(f"credentials.init_args.{end}" for end in ("user", "list.0", "list.1.y")), "uri"]
        assert list(still_masked(found)) == keys
        assert list(still_masked(self.GIVEN)) == []
        assert list(still_masked({"note": "***"})) == []

    def test_what_is_read_from_the_environment(self, monkeypatch):
        monkeypatch.setenv("LIGHTLIB_SECRET_HF_TOKEN", "b")
        monkeypatch.setenv("LIGHTLIB_SECRET_URI", "new")
        found = from_environment({"hf_token": "***", "uri": "mysql://me:***@host", "note": "***"})
        assert found == {"hf_token": "b", "uri": "mysql://me:new@host", "note": "***"}
        assert from_environment({"hf_token": "a"}) == {"hf_token": "a"}

    def test_the_name_of_the_variable(self):
        assert variable_of("model.init_args.s3-access.key") == "LIGHTLIB_SECRET_KEY"
        assert variable_of("api-key") == "LIGHTLIB_SECRET_API_KEY"
