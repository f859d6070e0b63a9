"""Reading a file or a mapping: ignored keys, warnings, broken YAML, and the stored form."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

from lightlib import report
from lightlib.config.yaml.document import ConfigError
from lightlib.experiment.file import ExperimentConfig, read, save
from lightlib.report import LightlibWarning
from tests.experiment.given import complete, error_of, read_fragment, read_text

SMALL: dict[str, Any] = {
    "name": "digits",
    "entrypoint": "model:Classifier",
    "hyperparameters": {"global_batch_size": 64},
    "searcher": {"name": "single", "metric": "val_loss"},
}
FULL = """\
name: digits
description: all keys
labels: [a, b]
workspace: vision
project: digits
data: {url: a, n: [1, {x: null}]}
entrypoint: [python3, train.py]
fit: {trainer: {max_epochs: 3, callbacks: [{class_path: a.B}]}}
hyperparameters: {lr: {type: log, minval: -4, maxval: -1}, a.b: 1e-3, c: null, d: []}
searcher: {name: tpe, metric: a, smaller_is_better: false, max_trials: 8,
  options: {seed: 1}, stopping: {mode: aggressive, bracket_rungs: [2], time_metric: t, max_time: 1.5},
  duplicates: allow, source_trial_id: 3, synchronous: true, max_concurrent_trials: 0}
scheduling_unit: 50
records_per_epoch: 60000
max_restarts: 1
log_policies: [{name: CUDA OOM}, {pattern: x, action: exclude_node}]
retention_policy: {log_retention_days: 3}
min_validation_period: {epochs: 1}
min_checkpoint_period: {batches: 0}
perform_initial_validation: true
checkpoint_policy: none
checkpoint_storage: {type: azure, container: c, account_url: u, credential: '', save_trial_best: 0}
resources: {slots_per_trial: 0, max_slots: 2, priority: 1, weight: 0.5, resource_pool: big, is_single_node: true,
  shm_size: 1.5G, devices: [/dev/a]}
bind_mounts: [{host_path: /a, container_path: b}]
environment: {image: {cpu: a}, environment_variables: {gpu: [A=1]}, force_pull_image: true,
  registry_auth: {username: a, password: b, serveraddress: c}, add_capabilities: [A], drop_capabilities: [B],
  proxy_ports: [80], pod_spec: {spec: {}}}
reproducibility: {experiment_seed: 0}
optimizations: {aggregation_frequency: 2, gradient_compression: true, mixed_precision: O1}
profiling: {enabled: true}
slurm: {gpu_type: a, sbatch_args: [--x], slots_per_node: 8}
debug: true
preemption_timeout: 0
"""


def test_a_mapping_is_read_and_stays_as_it_was() -> None:
    given = copy.deepcopy(SMALL)
    config = read(given, ["searcher.metric=loss", "hyperparameters.global_batch_size=32"])
    assert (config.name, config.searcher.metric, config.hyperparameters) == (
        "digits",
        "loss",
        {"global_batch_size": 32},
    )
    assert given == SMALL
    assert config.where("searcher.name") == ""


def test_an_error_of_a_mapping_names_the_key_alone() -> None:
    with pytest.raises(ConfigError, match=r"^'max_restarts' is -1 \(int\)\.\n  Expected: .*\n  Fix: max_restarts: 0$"):
        read({**SMALL, "max_restarts": -1})


def test_a_mapping_needs_a_name() -> None:
    with pytest.raises(ConfigError, match=r"^The experiment has no 'name'\.\n  Expected: .*\n  Fix: "):
        read({key: value for key, value in SMALL.items() if key != "name"})


def test_the_file_has_every_key() -> None:
    """So that the round trip below covers them all."""
    config = read_text(FULL.replace("credential: ''", "credential: x"))
    defaults = {name for name, field in config.known().items() if getattr(config, name) == field.default}
    assert defaults == {"min_checkpoint_period"}


@pytest.mark.parametrize("text", [complete(""), FULL.replace("credential: ''", "credential: x")])
def test_the_stored_form_is_read_as_the_same(text: str) -> None:
    config = read_text(text)
    assert read(config.plain()) == config
    assert read(config.plain()).plain() == config.plain()
    save(config, "copy.yaml")
    stored = read("copy.yaml")
    assert stored.masked() == config.masked()
    assert dataclasses.replace(
        stored, checkpoint_storage=config.checkpoint_storage, environment=config.environment
    ) == (config)


def test_the_stored_form_of_a_small_experiment() -> None:
    assert read(SMALL).plain() == {
        "name": "digits",
        "entrypoint": "model:Classifier",
        "hyperparameters": {"global_batch_size": 64},
        "searcher": {"name": "single", "metric": "val_loss", "smaller_is_better": True},
        "scheduling_unit": 100,
        "max_restarts": 5,
        "log_policies": [
            {"name": "CUDA OOM", "pattern": ".*CUDA out of memory.*"},
            {"name": "ECC Error", "pattern": ".*uncorrectable ECC error encountered.*"},
        ],
        "retention_policy": {"log_retention_days": -1},
        "perform_initial_validation": False,
        "checkpoint_policy": "best",
        "checkpoint_storage": {"save_experiment_best": 0, "save_trial_best": 1, "save_trial_latest": 1},
        "resources": {"slots_per_trial": 1, "weight": 1, "is_single_node": False, "shm_size": 4294967296},
        "environment": {"force_pull_image": False, "preload": True},
        "optimizations": {
            "aggregation_frequency": 1,
            "average_aggregated_gradients": True,
            "gradient_compression": False,
            "mixed_precision": "O0",
        },
        "profiling": {"enabled": False},
        "debug": False,
        "preemption_timeout": 3600,
    }


def test_an_experiment_can_be_pickled_and_shown() -> None:
    config = read(SMALL)
    again: ExperimentConfig = pickle.loads(pickle.dumps(config))
    assert again == config
    assert repr(config) == (
        "ExperimentConfig(name='digits', entrypoint='model:Classifier', hyperparameters={'global_batch_size': 64}, "
        "searcher={'name': 'single', 'metric': 'val_loss', 'smaller_is_better': True})"
    )


def test_an_experiment_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        read(SMALL).name = "other"


def test_a_copy_replaces_a_link_and_leaves_its_target() -> None:
    Path("target.yaml").write_text("kept", encoding="utf-8")
    Path("experiment.yaml").symlink_to("target.yaml")
    save(read(SMALL), "experiment.yaml")
    assert Path("target.yaml").read_text(encoding="utf-8") == "kept"
    assert read("experiment.yaml") == read(SMALL)


@pytest.mark.parametrize(
    ("fragment", "note"),
    [
        (
            "tensorboard_storage: {type: s3}",
            "'tensorboard_storage' (mnist.yaml, line 1) is ignored: Determined has not",
        ),
        (
            "data_layer: {type: s3}",
            "'data_layer' (mnist.yaml, line 1) is ignored: Determined removed it; a data module",
        ),
        ("internal: {native: {}}", "'internal' (mnist.yaml, line 1) is ignored: it belongs to Determined's own"),
        (
            "resources: {slots: 4}",
            "'resources.slots' (mnist.yaml, line 1) is ignored: it has no effect on experiments;",
        ),
        ("resources: {agent_label: a}", "'resources.agent_label' (mnist.yaml, line 1) is ignored: Determined removed"),
        (
            "resources: {native_parallel: true}",
            "'resources.native_parallel' (mnist.yaml, line 1) is ignored: Determined",
        ),
        ("environment: {ports: {a: 1}}", "'environment.ports' (mnist.yaml, line 1) is ignored: Determined removed it;"),
        ("profiling: {begin_on_batch: 2}", "'profiling.begin_on_batch' (mnist.yaml, line 1) is ignored: profiling"),
        ("profiling: {end_after_batch: 2}", "'profiling.end_after_batch' (mnist.yaml, line 1) is ignored: profiling"),
        ("profiling: {sync_timings: true}", "'profiling.sync_timings' (mnist.yaml, line 1) is ignored: profiling"),
        (
            "optimizations: {average_training_metrics: true}",
            "'optimizations.average_training_metrics' (mnist.yaml, line 1) is ignored: training metrics are always",
        ),
        (
            "optimizations: {tensor_fusion_threshold: 64}",
            "'optimizations.tensor_fusion_threshold' (mnist.yaml, line 1) is ignored: it belongs to Horovod;",
        ),
        (
            "optimizations: {tensor_fusion_cycle_time: 5}",
            "'optimizations.tensor_fusion_cycle_time' (mnist.yaml, line 1) is ignored: it belongs to Horovod;",
        ),
        (
            "optimizations: {auto_tune_tensor_fusion: true}",
            "'optimizations.auto_tune_tensor_fusion' (mnist.yaml, line 1) is ignored: it belongs to Horovod;",
        ),
        (
            "checkpoint_storage: {checkpoint_path: a}",
            "'checkpoint_storage.checkpoint_path' (mnist.yaml, line 1) is ignored: Determined removed it.",
        ),
    ],
)
def test_a_key_without_an_effect_is_noted_once(fragment: str, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(report, "info", messages.append)
    config = read_fragment(f"{fragment}\n")
    assert [text.startswith(note) for text in messages] == [True]
    assert config == read_fragment("")


@pytest.mark.parametrize(
    ("fragment", "warning"),
    [
        (
            "integrations: {pachyderm: {}}",
            r"^'integrations' \(mnist.yaml, line 1\) has no effect: Pachyderm is not .*Fix:",
        ),
        (
            "security: {kerberos: {}}",
            r"^'security' \(mnist.yaml, line 1\) has no effect: Kerberos is not .* Fix: run kin",
        ),
    ],
)
def test_a_section_that_a_run_would_miss_warns(fragment: str, warning: str) -> None:
    with pytest.warns(LightlibWarning, match=warning):
        config = read_fragment(f"{fragment}\n")
    assert config == read_fragment("")


def test_a_small_scheduling_unit_warns() -> None:
    with pytest.warns(
        LightlibWarning, match=r"^'scheduling_unit' \(mnist.yaml, line 1\) is 9: .* Fix: scheduling_unit: 100"
    ):
        assert read_fragment("scheduling_unit: 9\n").scheduling_unit == 9


def test_a_long_description_warns_and_is_kept() -> None:
    with pytest.warns(LightlibWarning, match=r"^'description' \(mnist.yaml, line 1\) has 300 characters"):
        assert read_fragment(f"description: {'x' * 300}\n").description == "x" * 300
    assert read_fragment(f"description: {'x' * 255}\n").description == "x" * 255


def test_a_key_that_is_no_name() -> None:
    assert error_of("name: digits\ndata:\n  on: 1\n") == (
        "'data.True' (mnist.yaml, line 3) is read as True, which is no name.",
        "a name; YAML reads yes, no, on, off, null and numbers as values.",
        "put it in quotes: 'True'.",
    )


def test_broken_yaml_names_file_and_line() -> None:
    with pytest.raises(ConfigError, match=r"^mnist.yaml, line 2, column"):
        read_text("name: a\nlabels: [a\n")


def test_a_missing_file_names_the_nearest() -> None:
    Path("mnist.yaml").write_text(complete(""), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"'mnst.yaml' does not exist. Did you mean 'mnist.yaml'\?"):
        read("mnst.yaml")


def test_places_of_keys() -> None:
    config = read_fragment("# a comment\nhyperparameters:\n  global_batch_size: 64\n  a: {b: {type: int}}\n")
    assert config.where("hyperparameters.a.b") == "mnist.yaml, line 4"
    assert config.where("hyperparameters.a.b.minval") == "mnist.yaml, line 4"
    assert config.where("slurm.gpu_type") == "mnist.yaml"
