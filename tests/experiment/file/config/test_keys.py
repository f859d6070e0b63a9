"""Every key of an experiment file: its default, a value, and the error for a wrong value."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lightlib.config.yaml.document import ConfigError
from lightlib.experiment.file import (
    BindMount,
    CheckpointStorage,
    Device,
    Environment,
    ExperimentConfig,
    Length,
    LogPolicy,
    Optimizations,
    Profiling,
    ProxyPort,
    RegistryAuth,
    Reproducibility,
    Resources,
    Retention,
    Searcher,
    Slurm,
)
from tests.experiment.given import error_of, read_fragment, read_text

LABELS = (
    LogPolicy(name="CUDA OOM", pattern=".*CUDA out of memory.*"),
    LogPolicy(name="ECC Error", pattern=".*uncorrectable ECC error encountered.*"),
)
PORT = ProxyPort(proxy_port=8080, proxy_tcp=True, unauthenticated=False, default_service_id=False)

# Key: its default; a value as it is written and as it is read; a wrong one, and the start of the expectation.
KEYS: dict[str, tuple[Any, str, Any, str, str]] = {
    "description": (None, "a first try", "a first try", "3", "text; a number needs quotes."),
    "labels": ((), "[vision, small]", ("vision", "small"), "vision", "a list."),
    "data": ({}, "{url: a, n: 1}", {"url": "a", "n": 1}, "[1]", "a mapping"),
    "fit": ({}, "{trainer: {max_epochs: 3}}", {"trainer": {"max_epochs": 3}}, "fit.yaml", "a mapping"),
    "scheduling_unit": (100, "50", 50, "0", "an int, at least 1."),
    "records_per_epoch": (None, "60000", 60000, "many", "an int, at least 0."),
    "max_restarts": (5, "0", 0, "-1", "an int, at least 0."),
    "log_policies": (
        LABELS, "[{pattern: nan, action: {type: cancel_retries}}]",
        (LogPolicy(pattern="nan", action="cancel_retries"), *LABELS), "always", "a mapping",
    ),
    "retention_policy.log_retention_days": (-1, "32767", 32767, "32768", "an int, from -1 to 32767."),
    "min_validation_period": (None, "{batches: 50}", Length("batches", 50), "50", "a mapping of one unit"),
    "min_checkpoint_period": (None, "{records: 9}", Length("records", 9), "{epochs: 1.5}", "an int, at least 0."),
    "perform_initial_validation": (False, "true", True, "1", "true or false."),
    "checkpoint_policy": ("best", "none", "none", "bst", "one of best, all, none."),
    "checkpoint_storage.save_experiment_best": (0, "2", 2, "-1", "an int, at least 0."),
    "checkpoint_storage.save_trial_best": (1, "0", 0, "all", "an int, at least 0."),
    "checkpoint_storage.save_trial_latest": (1, "3", 3, "true", "an int, at least 0."),
    "checkpoint_storage.type": (None, "s3, bucket: b", "s3", "s4", "one of shared_fs, directory, s3, gcs, azure, url."),
    "hyperparameters": (
        {"global_batch_size": 64}, "{global_batch_size: 32, lr: 0.1}", {"global_batch_size": 32, "lr": 0.1}, "[1]",
        "a mapping",
    ),
    "resources.slots_per_trial": (1, "0", 0, "-1", "an int, at least 0."),
    "resources.max_slots": (None, "8", 8, "eight", "an int, at least 0."),
    "resources.priority": (None, "99", 99, "100", "an int, from 1 to 99."),
    "resources.weight": (1, "0.5", 0.5, "0", "a number greater than 0."),
    "resources.resource_pool": (None, "big", "big", "7", "text; a number needs quotes."),
    "resources.is_single_node": (False, "true", True, "yess", "true or false."),
    "resources.shm_size": (4294967296, "128M", 134217728, "1.5Q", "a number of bytes, or one with a unit: 128M, 1.5G."),
    "resources.devices": (
        (), "['/dev/a:/dev/b:r', {host_path: /x, container_path: /y}]",
        (
            Device(host_path="/dev/a", container_path="/dev/b", mode="r"),
            Device(host_path="/x", container_path="/y", mode="mrw"),
        ),
        "/dev/a", "a list.",
    ),
    "bind_mounts": (
        (), "[{host_path: /a, container_path: b, read_only: true, propagation: rshared}]",
        (BindMount(host_path="/a", container_path="b", read_only=True, propagation="rshared"),), "/a", "a list.",
    ),
    "environment.image": (
        {}, "{gpu: a, cpu: b}", {"cuda": "a", "cpu": "b"}, "3", "a mapping: lines of `key: value`.",
    ),
    "environment.environment_variables": (
        {}, "{cpu: [A=1, B=x=y]}", {"cpu": ("A=1", "B=x=y")}, "[A]", "NAME=VALUE, without a space before the `=`.",
    ),
    "environment.force_pull_image": (False, "true", True, "always", "true or false."),
    "environment.registry_auth": (
        None, "{username: me, password: abc, serveraddress: r.example.org, email: me@example.org}",
        RegistryAuth(username="me", password="abc", serveraddress="r.example.org", email="me@example.org"), "me",
        "a mapping",
    ),
    "environment.preload": (True, "false", False, "never", "true or false."),
    "environment.add_capabilities": ((), "[IPC_LOCK]", ("IPC_LOCK",), "IPC_LOCK", "a list."),
    "environment.drop_capabilities": ((), "[MKNOD]", ("MKNOD",), "{MKNOD: 1}", "a list."),
    "environment.proxy_ports": (
        (), "[{proxy_port: 8080, proxy_tcp: true}, 9090]", (PORT, ProxyPort(proxy_port=9090)), "[70000]",
        "an int, from 1 to 65535.",
    ),
    "environment.pod_spec": ({}, "{spec: {a: 1}}", {"spec": {"a": 1}}, "a", "a mapping"),
    "reproducibility.experiment_seed": (None, "2147483647", 2147483647, "2147483648", "an int, from 0 to 2147483647."),
    "optimizations.aggregation_frequency": (1, "4", 4, "0", "an int, at least 1."),
    "optimizations.average_aggregated_gradients": (True, "true", True, "false", "true: gradients of several batches"),
    "optimizations.gradient_compression": (False, "true", True, "fp16", "true or false."),
    "optimizations.mixed_precision": ("O0", "O1", "O1", "O2", "O0 or O1."),
    "profiling.enabled": (False, "true", True, "often", "true or false."),
    "slurm.gpu_type": (None, "tesla", "tesla", "{}", "text; a number needs quotes."),
    "slurm.sbatch_args": ((), "[--exclusive]", ("--exclusive",), "--exclusive", "a list."),
    "slurm.slots_per_node": (None, "8", 8, "0", "an int, at least 1."),
    "debug": (False, "true", True, "info", "true or false."),
    "preemption_timeout": (3600, "60", 60, "1h", "an int, at least 0."),
}  # fmt: skip
ODD = ("", "true", "-1", "1.5", ".nan", "x", "' '", "[]", "[[]]", "[null, x]", "{}", "{a: 1}", "{1: {}}", "{type: []}")
# Tested in files of their own, or below.
OF_OTHER_TESTS = ("name", "workspace", "project", "entrypoint", "searcher")


def fragment(key: str, written: str) -> tuple[str, int]:
    """Return the lines that set a dotted key, and the number of the line of the key itself."""
    section, _, name = key.rpartition(".")
    if not section:
        return f"# a comment\n{name}: {written}\n", 2
    if ", " in written and name == "type":
        return f"# a comment\n{section}: {{{name}: {written}}}\n", 2
    return f"# a comment\n{section}:\n  {name}: {written}\n", 3


def value_of(config: ExperimentConfig, key: str) -> Any:
    found: Any = config
    for name in key.split("."):
        found = getattr(found, name)
    return found


def test_the_table_has_every_key() -> None:
    sections = (CheckpointStorage, Environment, Optimizations, Profiling, Reproducibility, Resources, Retention, Slurm)
    keys = {name for name in ExperimentConfig.known() if name not in {one.section for one in sections}}
    keys |= {f"{one.section}.{name}" for one in sections for name in one.known()}
    of_types = {f"checkpoint_storage.{name}" for name in CheckpointStorage.known()} - set(KEYS)
    assert keys - set(KEYS) == {*OF_OTHER_TESTS, *of_types}
    assert set(KEYS) <= keys


@pytest.mark.parametrize("key", KEYS)
def test_the_default(key: str) -> None:
    assert value_of(read_fragment(""), key) == KEYS[key][0]


@pytest.mark.parametrize("key", KEYS)
def test_null_is_the_default(key: str) -> None:
    if key != "hyperparameters":
        assert value_of(read_fragment(fragment(key, "null")[0]), key) == KEYS[key][0]


@pytest.mark.parametrize("key", KEYS)
def test_a_value_is_read(key: str) -> None:
    _, written, expected, _, _ = KEYS[key]
    assert value_of(read_fragment(fragment(key, written)[0]), key) == expected


@pytest.mark.parametrize("key", KEYS)
def test_a_wrong_value_is_refused_with_file_and_line(key: str) -> None:
    _, _, _, wrong, start = KEYS[key]
    text, line = fragment(key, wrong)
    what, expected, fix = error_of(text)
    assert what.startswith(f"'{key}")
    assert f"(mnist.yaml, line {line}) is " in what
    assert expected.startswith(start)
    assert key in fix or fix.startswith("delete it")


@pytest.mark.parametrize("key", ["searcher", "entrypoint"])
def test_a_required_key(key: str) -> None:
    texts = {"searcher": "entrypoint: [a]\n", "entrypoint": "searcher: {name: single, metric: a}\n"}
    with pytest.raises(ValueError, match=rf"^The experiment \(mnist.yaml\) has no '{key}'.\n  Expected: .+\n  Fix: "):
        read_text(texts[key])


def test_a_fit_needs_no_entrypoint_and_no_batch_size() -> None:
    config = read_text("fit: {model: {class_path: a.B}}\nsearcher: {name: single, metric: loss}\n")
    assert (config.entrypoint, config.hyperparameters) == (None, {})


def test_workspace_and_project() -> None:
    config = read_fragment("workspace: vision\nproject: digits\n")
    assert (config.workspace, config.project) == ("vision", "digits")


def test_the_name_of_a_file_is_the_default_name() -> None:
    assert read_fragment("").name == "mnist"
    assert read_fragment("name: digits\n").name == "digits"


def test_a_seed_below_environment_is_read() -> None:
    assert read_fragment("environment: {experiment_seed: 7}\n").reproducibility.experiment_seed == 7


@pytest.mark.parametrize(
    ("written", "size"),
    [("4294967296", 4294967296), ("1.5G", 1610612736), ("1 GiB", 1073741824), ("2kb", 2048), ("1t", 1099511627776)],
)
def test_sizes_of_memory(written: str, size: int) -> None:
    assert read_fragment(f"resources: {{shm_size: {written}}}\n").resources.shm_size == size


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("{NaN: loss is nan, CUDA OOM: null}", ["NaN", "CUDA OOM", "ECC Error"]),
        ("{NaN: {pattern: nan, action: cancel_retries}}", ["NaN", "CUDA OOM", "ECC Error"]),
        ("{pattern: nan, action: exclude_node}", [None, "CUDA OOM", "ECC Error"]),
        ("[]", ["CUDA OOM", "ECC Error"]),
    ],
)
def test_shapes_of_log_policies(written: str, names: list[str | None]) -> None:
    assert [one.name for one in read_fragment(f"log_policies: {written}\n").log_policies] == names


@pytest.mark.parametrize("key", ["min_validation_period", "min_checkpoint_period"])
def test_a_period_of_zero_is_none(key: str) -> None:
    assert value_of(read_fragment(f"{key}: {{batches: 0}}\n"), key) is None


def test_values_of_the_searcher_have_defaults() -> None:
    assert read_fragment("").searcher == Searcher(name="single", metric="val_loss")


def test_a_float_without_a_fraction_is_an_int() -> None:
    assert read_fragment("max_restarts: 1e1\n").max_restarts == 10


@pytest.mark.parametrize("name", ["a/b", "a\\\\b", "a\\tb", "..", "."])
def test_a_name_that_is_no_folder_is_refused(name: str) -> None:
    for key in ("name", "workspace", "project"):
        what, expected, fix = error_of(f'{key}: "{name}"\n')
        assert what.startswith(f"{key!r} (mnist.yaml, line 1) is ")
        assert expected == "a name without slashes and control characters: a folder gets it."
        assert fix == f"{key}: {'mnist' if name.startswith('.') else 'a-b'}"


@pytest.mark.parametrize("written", [".inf", ".nan", "0", "true", "'1'"])
def test_a_weight_is_a_finite_number(written: str) -> None:
    what, expected, fix = error_of(f"resources: {{weight: {written}}}\n")
    assert what.startswith("'resources.weight' (mnist.yaml, line 1) is ")
    assert (expected, fix) == ("a number greater than 0.", "resources.weight: 1")


@pytest.mark.parametrize("key", [*KEYS, "searcher.name", "searcher.stopping", "entrypoint", "name", "bogus"])
def test_an_odd_value_is_read_or_refused_with_three_parts(key: str) -> None:
    for written in ODD:
        override = f"{key}={written}"
        try:
            read_fragment("", [override])
        except ConfigError as error:
            what, expected, fix = re.split(r"\n  (?:Expected|Fix): ", str(error))
            assert all((what, expected, fix)), override
