"""Every key of an experiment file: its default, its value, and the error for a wrong value, with file and line."""

from __future__ import annotations

from typing import Any

import pytest

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
from tests.experiment.file.given import error_of, read_fragment, read_text

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
# Tested in files of their own, or below.
OF_OTHER_TESTS = {"name", "workspace", "project", "entrypoint", "searcher"}


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
    assert keys - set(KEYS) == OF_OTHER_TESTS | of_types
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


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "resources:\n  slots_per_trail: 2\n",
            (
                (
                    "'resources.slots_per_trail' (mnist.yaml, line 2) is not a key of resources."
                    " Did you mean 'slots_per_trial'?"
                ),
                (
                    "one of devices, is_single_node, max_slots, priority, resource_pool, shm_size,"
                    " slots_per_trial, weight."
                ),
                "resources.slots_per_trial: 2",
            ),
        ),
        (
            "profiling: true\n",
            ("'profiling' (mnist.yaml, line 1) is True (bool).", "a mapping: lines of `key: value`.", "profiling: {}"),
        ),
        (
            "resources:\n  slots_per_trial: 4\n  max_slots: 2\n",
            (
                "'resources.max_slots' (mnist.yaml, line 3) is 2 (int).",
                "at least slots_per_trial, which is 4.",
                "resources.max_slots: 4",
            ),
        ),
        (
            "bind_mounts:\n  - host_path: data\n    container_path: /data\n",
            (
                "'bind_mounts.0.host_path' (mnist.yaml, line 2) is 'data' (str).",
                "an absolute path.",
                "bind_mounts.0.host_path: /data",
            ),
        ),
        (
            "bind_mounts:\n  - host_path: /data\n    container_path: ./.\n",
            (
                "'bind_mounts.0.container_path' (mnist.yaml, line 3) is './.' (str).",
                "an absolute path, or a folder below that of the trial, which itself cannot be a mount.",
                "bind_mounts.0.container_path: data",
            ),
        ),
        (
            "bind_mounts:\n  - container_path: /data\n",
            (
                "'bind_mounts.0' (mnist.yaml, line 2) has no 'host_path'.",
                "the key host_path, which has no default.",
                "add bind_mounts.0.host_path: …",
            ),
        ),
        (
            "workspace: vision\n",
            ("'workspace' (mnist.yaml, line 1) stands without project.", "both or neither.", "add project: …"),
        ),
        (
            "project: digits\n",
            ("'project' (mnist.yaml, line 1) stands without workspace.", "both or neither.", "add workspace: …"),
        ),
        (
            "name: vision/mnist\n",
            (
                "'name' (mnist.yaml, line 1) is 'vision/mnist' (str).",
                "a name without slashes and control characters: a folder gets it.",
                "name: vision-mnist",
            ),
        ),
        (
            "log_policies:\n  - name: a\n    pattern: '*x'\n",
            (
                "'log_policies.0.pattern' (mnist.yaml, line 3) is '*x' (str).",
                "a regular expression; nothing to repeat, at character 1.",
                "put a backslash before characters that stand for themselves: log_policies.0.pattern: \\*x",
            ),
        ),
        (
            "log_policies:\n  - pattern: x\n",
            (
                "'log_policies.0' (mnist.yaml, line 2) has no 'name'.",
                "a name; without one, both a pattern and an action.",
                "log_policies.0.name: CUDA OOM",
            ),
        ),
        (
            "log_policies: [{name: a, pattern: x, action: exclude_nod}]\n",
            (
                "'log_policies.0.action' (mnist.yaml, line 1) is 'exclude_nod' (str).",
                "one of cancel_retries, exclude_node.",
                "log_policies.0.action: exclude_node",
            ),
        ),
        (
            "log_policies: [{name: a}, {name: a}]\n",
            (
                "'log_policies.1.name' (mnist.yaml, line 1) is 'a' again.",
                "each name once.",
                "rename one of the two policies.",
            ),
        ),
        (
            "environment:\n  environment_variables:\n    - {A: 1}\n",
            (
                "'environment.environment_variables.0' (mnist.yaml, line 3) is 'A = 1' (str).",
                "NAME=VALUE, without a space before the `=`.",
                "environment.environment_variables.0: OMP_NUM_THREADS=1",
            ),
        ),
        (
            "environment:\n  image: {cudda: a}\n",
            (
                (
                    "'environment.image.cudda' (mnist.yaml, line 2) is not a key of environment.image."
                    " Did you mean 'cuda'?"
                ),
                "one of cpu, cuda, rocm.",
                "environment.image.cuda: a",
            ),
        ),
        (
            "environment:\n  registrt_auth: {auth: abcd}\n",
            (
                (
                    "'environment.registrt_auth' (mnist.yaml, line 2) is not a key of environment."
                    " Did you mean 'registry_auth'?"
                ),
                (
                    "one of add_capabilities, drop_capabilities, environment_variables,"
                    " force_pull_image, image, pod_spec,"
                    " proxy_ports, registry_auth."
                ),
                "environment.registry_auth: {auth: '***'}",
            ),
        ),
        (
            "environment:\n  registry_auth: {username: me, serveraddress: a}\n",
            (
                "'environment.registry_auth' (mnist.yaml, line 2) has no 'password'.",
                "the key password, which has no default.",
                "add environment.registry_auth.password: …",
            ),
        ),
        (
            "environment: {experiment_seed: 1}\nreproducibility: {experiment_seed: 2}\n",
            (
                (
                    "'environment.experiment_seed' (mnist.yaml, line 1) is 1, and 'reproducibility.experiment_seed'"
                    " (mnist.yaml, line 2) is 2."
                ),
                "one seed.",
                "delete environment.experiment_seed.",
            ),
        ),
        (
            "environment:\n  experiment_seed: -1\n",
            (
                "'reproducibility.experiment_seed' (mnist.yaml, line 2) is -1 (int).",
                "an int, from 0 to 2147483647.",
                "reproducibility.experiment_seed: 0",
            ),
        ),
        (
            "hyperparameters:\n  global_batch_size: 0\n",
            (
                "'hyperparameters.global_batch_size' (mnist.yaml, line 2) is 0 (int).",
                "an int, at least 1.",
                "hyperparameters.global_batch_size: 1",
            ),
        ),
        (
            "entrypoint: model:Classifier\nhyperparameters:\n  lr: 0.1\n",
            (
                (
                    "'hyperparameters' (mnist.yaml, line 2) has no 'global_batch_size', which the"
                    " class model:Classifier"
                    " needs."
                ),
                "the batch size over all slots of a trial.",
                "hyperparameters.global_batch_size: 64",
            ),
        ),
        (
            (
                "hyperparameters:\n  global_batch_size: 64\n  layer:\n    act:\n      type:"
                " categorical\n      val: [1, 2]\n"
            ),
            (
                (
                    "'hyperparameters.layer.act.val' (mnist.yaml, line 6) is not a key of"
                    " hyperparameters.layer.act, which"
                    " is categorical. Did you mean 'hyperparameters.layer.act.vals'?"
                ),
                "one of type, vals.",
                "hyperparameters.layer.act.vals: [1, 2]",
            ),
        ),
    ],
)
def test_an_error_has_three_parts_with_file_and_line(text: str, parts: tuple[str, str, str]) -> None:
    assert error_of(text) == parts


@pytest.mark.parametrize(
    ("text", "line", "meant"),
    [
        ("resource:\n  slots_per_trial: 2\n", 1, "resources"),
        ("debug: true\nhyperparameter: {a: 1}\n", 2, "hyperparameters"),
        ("max_trials: 8\n", 1, "searcher.max_trials"),
        ("slots_per_trial: 8\n", 1, "resources.slots_per_trial"),
        ("save_trial_best: 8\n", 1, "checkpoint_storage.save_trial_best"),
        ("entry_point: model:A\n", 1, "entrypoint"),
    ],
)
def test_a_key_at_the_wrong_place_names_the_right_one(text: str, line: int, meant: str) -> None:
    what, expected, fix = error_of(text)
    assert f"(mnist.yaml, line {line}) is not a key of an experiment. Did you mean {meant!r}?" in what
    assert expected.startswith("one of bind_mounts, checkpoint_policy, checkpoint_storage, data, debug,")
    assert fix.startswith(f"{meant}: ")


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
