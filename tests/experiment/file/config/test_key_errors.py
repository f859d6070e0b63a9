"""Errors for keys of an experiment file: three parts, with file, line and the right name."""

from __future__ import annotations

import pytest

from tests.experiment.given import error_of


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
                    " force_pull_image, image, pod_spec, preload,"
                    " proxy_ports, registry_auth."
                ),
                "environment.registry_auth: …",
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
