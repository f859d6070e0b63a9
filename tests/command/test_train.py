"""With --allow, a malicious configuration does no harm: the calls that it names leave no file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.command.project import CONFIG, status_of, written_project  # noqa: F401  the fixture

pytestmark = pytest.mark.usefixtures("project")

SHELL = {"class_path": "os.system", "init_args": {"command": "touch canary"}}
PROCESS = {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", "canary"]}}
BUILDER = {"class_path": "lightlib.cli.instantiate_class", "init_args": {"args": [], "init": PROCESS}}
PARTIAL = {"class_path": "functools.partial", "init_args": {"func": "os.system", "command": "touch canary"}}
HIDDEN = {**PARTIAL, "class_path": "torch.optim.lr_scheduler.partial"}  # the same one, imported there
OTHER_WAY = {"class_path": "torch.hub.load", "init_args": {"repo_or_dir": ".", "model": "canary", "source": "local"}}
FULL = [SHELL, PROCESS, BUILDER, PARTIAL, HIDDEN, OTHER_WAY, "os.system"]
KEYS = {
    "model": FULL,
    "model.init_args.head": FULL,
    "model.init_args.call": FULL,
    "model.init_args.anything": FULL,
    "model.init_args.width": [PROCESS],
    "data": [SHELL, PROCESS, BUILDER],
    "data.init_args.count": [PROCESS],
    "optimizer": [PROCESS, BUILDER, HIDDEN],
    "lr_scheduler": [PROCESS, BUILDER, HIDDEN],
    "trainer": [PROCESS],
    "trainer.callbacks": [[SHELL], [PROCESS], [BUILDER], [PARTIAL]],
    "trainer.logger": [PROCESS, [BUILDER]],
    "trainer.strategy": [PROCESS],
    "trainer.accelerator": [PROCESS],
    "trainer.precision": [PROCESS],
    "trainer.profiler": [PROCESS],
    "trainer.plugins": [[PROCESS]],
    "trainer.max_time": [PROCESS],
    "seed_everything": [PROCESS],
    "ckpt_path": [PROCESS],
}
THROUGH_OURS = {
    "a callback that calls": {
        "trainer": {"callbacks": [{"class_path": "LambdaCallback", "init_args": {"on_fit_start": PARTIAL}}]}
    },
    "a callback that calls by name": {
        "trainer": {"callbacks": [{"class_path": "LambdaCallback", "init_args": {"on_fit_start": "os.abort"}}]}
    },
    "a schedule that calls": {
        "optimizer": {"class_path": "SGD"},
        "lr_scheduler": {"class_path": "LambdaLR", "init_args": {"lr_lambda": "os.abort"}},
    },
    "a module in a module": {
        "model": {"init_args": {"head": {"class_path": "torch.nn.Sequential", "init_args": {"args": [SHELL]}}}}
    },
    "the settings themselves": {"model": {"class_path": "jsonargparse.set_parsing_settings"}},
}
KEPT_AS_DATA = [("model.init_args.anything", "os.system")]  # if any value is allowed, a string stays a string


@pytest.mark.parametrize("key", KEYS)
def test_a_restricted_configuration_runs_nothing_else(key: str, capsys: pytest.CaptureFixture) -> None:
    for payload in KEYS[key]:
        config = yaml.safe_load(CONFIG)
        *above, last = key.split(".")
        place = config
        for name in above:
            place = place.setdefault(name, {})
        place[last] = payload
        refused_or_harmless(config, capsys, 0 if (key, payload) in KEPT_AS_DATA else 2)


@pytest.mark.parametrize("name", THROUGH_OURS)
def test_a_restricted_configuration_cannot_go_through_a_class_of_ours(name: str, capsys: pytest.CaptureFixture) -> None:
    config = yaml.safe_load(CONFIG)
    for part, values in THROUGH_OURS[name].items():
        config[part] = {**config.get(part, {}), **values}
    refused_or_harmless(config, capsys)


def refused_or_harmless(config: dict[str, Any], capsys: pytest.CaptureFixture, status: int = 2) -> None:
    Path("harm.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    got = status_of("fit --config harm.yaml --config fast.yaml --allow model,data")
    said = capsys.readouterr().err
    assert not Path("canary").exists(), said
    assert got == status, said
    assert "Traceback" not in said


def test_a_function_is_refused_by_its_name(capsys: pytest.CaptureFixture) -> None:
    config = yaml.safe_load(CONFIG)
    config["model"]["init_args"]["call"] = "shutil.which"
    Path("any.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert status_of("fit --config any.yaml --config fast.yaml --allow model,data") == 2
    assert "Importing 'shutil.which' is not allowed" in capsys.readouterr().err
    assert status_of("fit --config any.yaml --config fast.yaml --allow model,data,shutil") == 0


def test_a_checkpoint_cannot_run_code_either(capsys: pytest.CaptureFixture) -> None:
    words = "fit --config config.yaml --config fast.yaml --allow model,data --ckpt_path any.ckpt"
    assert status_of(f"{words} --weights_only false") == 2
    assert "such a checkpoint can name any code" in capsys.readouterr().err
