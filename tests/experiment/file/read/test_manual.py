"""Files in the shape of Determined's manual are read: those of version 0.24 and of version 0.38."""

from __future__ import annotations

from typing import Any

import pytest

from lightlib import report
from lightlib.experiment.file import BindMount, Length, LogPolicy, read
from tests.experiment.given import complete, error_of, read_fragment, read_text

# Three complete files of 0.24.

MNIST = """\
name: digits_asha
description: two layers of filters, two of dropout
data:
  url: https://data.example.org/digits.tar.gz
hyperparameters:
  global_batch_size: 64  # over all slots
  learning_rate:
    type: double
    minval: .0001
    maxval: 1.0
  n_filters1:
    type: int
    minval: 8
    maxval: 64
  n_filters2:
    type: int
    minval: 8
    maxval: 72
  dropout1:
    type: double
    minval: .2
    maxval: .8
  dropout2:
    type: double
    minval: .2
    maxval: .8
searcher:
  name: adaptive_asha
  metric: validation_loss
  smaller_is_better: true
  max_trials: 16
  max_length:
    batches: 937  # one epoch of 60,000 digits
entrypoint: digits:DigitsTrial
"""

IMAGENET = """\
name: photos_resnet
hyperparameters:
  global_batch_size: 1024  # 256 for each of four slots
  data_location: /mnt/data
  arch: resnet18
  workers: 4
  lr: 0.1
  momentum: 0.9
  weight_decay: 1e-4
  pretrained: True
  dataset: photos
records_per_epoch: 1281167
min_validation_period:
  epochs: 1
min_checkpoint_period:
  epochs: 2
checkpoint_policy: best
checkpoint_storage:
  type: shared_fs
  host_path: /shared/checkpoints
  storage_path: photos
  save_experiment_best: 0
  save_trial_best: 1
  save_trial_latest: 1
resources:
  slots_per_trial: 4
  shm_size: 4294967296
  resource_pool: big
searcher:
  name: single
  metric: val_loss
  smaller_is_better: true
  max_length:
    epochs: 60
max_restarts: 0
scheduling_unit: 100
entrypoint: photos:PhotosTrial
bind_mounts:
  - host_path: /mnt/data
    container_path: /mnt/data
environment:
  image: example.org/training:cuda-11.3
  force_pull_image: false
  environment_variables:
    - NCCL_DEBUG=INFO
reproducibility:
  experiment_seed: 17
"""

FASHION_MNIST = """\
name: clothes_dense
hyperparameters:
  global_batch_size: 32
  dense1: 128
records_per_epoch: 50000
searcher:
  name: single
  metric: val_accuracy
  smaller_is_better: false
  max_length:
    epochs: 5
entrypoint: clothes:ClothesTrial
"""


def test_the_file_for_mnist() -> None:
    config = read_text(MNIST)
    assert config.name == "digits_asha"
    assert config.data == {"url": "https://data.example.org/digits.tar.gz"}
    assert config.hyperparameters["global_batch_size"] == 64
    assert config.hyperparameters["learning_rate"] == {"type": "double", "minval": 0.0001, "maxval": 1.0}
    assert config.hyperparameters["n_filters2"] == {"type": "int", "minval": 8, "maxval": 72}
    assert (config.searcher.name, config.searcher.metric) == ("adaptive_asha", "validation_loss")
    assert (config.searcher.max_trials, config.searcher.max_length) == (16, Length("batches", 937))
    assert (config.searcher.mode, config.searcher.divisor, config.searcher.max_rungs) == ("standard", 4, 5)
    assert config.searcher.stop_once is True
    assert config.entrypoint is not None
    assert config.entrypoint.class_path == "digits:DigitsTrial"


def test_the_file_for_imagenet() -> None:
    config = read_text(IMAGENET)
    assert config.hyperparameters["weight_decay"] == 0.0001
    assert config.hyperparameters["pretrained"] is True
    assert config.records_per_epoch == 1281167
    assert (config.min_validation_period, config.min_checkpoint_period) == (Length("epochs", 1), Length("epochs", 2))
    assert config.checkpoint_storage.location == "/shared/checkpoints/photos"
    assert (config.resources.slots_per_trial, config.resources.resource_pool) == (4, "big")
    assert config.searcher.max_length == Length("epochs", 60)
    assert (config.max_restarts, config.reproducibility.experiment_seed) == (0, 17)
    assert config.bind_mounts == (BindMount(host_path="/mnt/data", container_path="/mnt/data"),)
    assert config.environment.variables("cuda") == {"NCCL_DEBUG": "INFO"}
    assert config.environment.image["rocm"] == "example.org/training:cuda-11.3"


def test_the_file_for_fashion_mnist() -> None:
    config = read_text(FASHION_MNIST)
    assert config.hyperparameters == {"global_batch_size": 32, "dense1": 128}
    assert (config.searcher.metric, config.searcher.smaller_is_better) == ("val_accuracy", False)
    assert (config.searcher.max_length, config.records_per_epoch) == (Length("epochs", 5), 50000)


# Eighteen fragments of 0.24: text, and values by dotted attribute.

FRAGMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "data": (
        "data:\n  base_url: https://data.example.org/digits/\n  secrets:\n    auth_token: 0123-4567\n",
        {"data": {"base_url": "https://data.example.org/digits/", "secrets": {"auth_token": "0123-4567"}}},
    ),
    "length in batches": (
        "searcher:\n  name: single\n  metric: loss\n  max_length:\n    batches: 900\n",
        {"searcher.max_length": Length("batches", 900)},
    ),
    "length in epochs": (
        ("records_per_epoch: 50000\nsearcher:\n  name: single\n  metric: validation_error\n"
        "  max_length:\n    epochs: 64\n  smaller_is_better: true\n"),
        {
            "searcher.max_length": Length("epochs", 64),
            "records_per_epoch": 50000,
            "searcher.metric": "validation_error",
        },
    ),
    "length in records": (
        "searcher:\n  name: single\n  metric: loss\n  max_length: {records: 640}\n",
        {"searcher.max_length": Length("records", 640)},
    ),
    "script": ("entrypoint: ./hello.sh\n", {"entrypoint.command": ("./hello.sh",)}),
    "launched script": (
        "entrypoint: python3 -m determined.launch.torch_distributed train.py\n",
        {"entrypoint.command": ("python3", "train.py"), "entrypoint.per_slot": True},
    ),
    "launched trial": (
        "entrypoint: python3 -m determined.launch.torch_distributed --trial model_def:Trial\n",
        {"entrypoint.class_path": "model_def:Trial", "entrypoint.command": ()},
    ),
    "trial": ("entrypoint: model_def:Trial\n", {"entrypoint.class_path": "model_def:Trial"}),
    "validation period": (
        "min_validation_period:\n   epochs: 2\n", {"min_validation_period": Length("epochs", 2)},
    ),
    "checkpoint period": (
        "min_checkpoint_period:\n   epochs: 2\n", {"min_checkpoint_period": Length("epochs", 2)},
    ),
    "kept checkpoints": (
        "checkpoint_storage:\n  save_experiment_best: 0\n  save_trial_best: 1\n  save_trial_latest: 1\n",
        {"checkpoint_storage.save_experiment_best": 0, "checkpoint_storage.save_trial_latest": 1},
    ),
    "bucket": (
        "checkpoint_storage:\n  type: gcs\n  bucket: my-bucket\n", {"checkpoint_storage.location": "gs://my-bucket"},
    ),
    "hyperparameters": (
        ("hyperparameters:\n  global_batch_size: 64\n  optimizer_config:\n    optimizer:\n      type: categorical\n"
        "      vals:\n        - SGD\n        - Adam\n        - RMSprop\n    learning_rate:\n      type: log\n"
        "      minval: -5.0\n      maxval: 1.0\n      base: 10.0\n  num_layers:\n    type: int\n    minval: 1\n"
        "    maxval: 3\n  layer1_dropout:\n    type: double\n    minval: 0.2\n    maxval: 0.5\n"),
        {
            "hyperparameters": {
                "global_batch_size": 64,
                "optimizer_config": {
                    "optimizer": {"type": "categorical", "vals": ["SGD", "Adam", "RMSprop"]},
                    "learning_rate": {"type": "log", "minval": -5.0, "maxval": 1.0, "base": 10.0},
                },
                "num_layers": {"type": "int", "minval": 1, "maxval": 3},
                "layer1_dropout": {"type": "double", "minval": 0.2, "maxval": 0.5},
            }
        },
    ),
    "random": (
        "searcher:\n  name: random\n  metric: accuracy\n  max_trials: 5\n  max_length:\n    batches: 1000\n",
        {"searcher.max_trials": 5, "searcher.max_length": Length("batches", 1000)},
    ),
    "one mount": (
        "bind_mounts:\n  - host_path: /data\n    container_path: /data\n",
        {"bind_mounts": (BindMount(host_path="/data", container_path="/data"),)},
    ),
    "two mounts": (
        ("bind_mounts:\n  - host_path: /data\n    container_path: /data\n  - host_path: /shared/read-only-data\n"
        "    container_path: /shared/read-only-data\n    read_only: true\n"),
        {
            "bind_mounts": (
                BindMount(host_path="/data", container_path="/data"),
                BindMount(
                    host_path="/shared/read-only-data", container_path="/shared/read-only-data", read_only=True
                ),
            )
        },
    ),
    "type of a GPU": ("slurm:\n   gpu_type: tesla\n", {"slurm.gpu_type": "tesla"}),
    "arguments of sbatch": (
        "slurm:\n   sbatch_args:\n      - --mem-per-cpu=10\n      - --exclusive\n",
        {"slurm.sbatch_args": ("--mem-per-cpu=10", "--exclusive")},
    ),
}  # fmt: skip

# The examples that the page of 0.38 has in addition, or in another shape.
OF_38: dict[str, tuple[str, dict[str, Any]]] = {
    "script with arguments": (
        "entrypoint: ./hello.sh a --b 1\n", {"entrypoint.command": ("./hello.sh", "a", "--b", "1")},
    ),
    "launched script with arguments": (
        "entrypoint: python3 -m determined.launch.torch_distributed train.py --lr 0.1\n",
        {"entrypoint.command": ("python3", "train.py", "--lr", "0.1"), "entrypoint.per_slot": True},
    ),
    "class of the context": ("entrypoint: MnistTrial\n", {"entrypoint.class_path": ":MnistTrial"}),
    "class of a module": ("entrypoint: model_def:CIFAR10Trial\n", {"entrypoint.class_path": "model_def:CIFAR10Trial"}),
    "class in a class": (
        "entrypoint: library.trial:trial_classes.NestedTrial\n",
        {"entrypoint.class_path": "library.trial:trial_classes.NestedTrial"},
    ),
    "log policies": (
        ("log_policies:\n  - name: ECC Error\n    pattern: '.*uncorrectable ECC.*'\n    action: exclude_node\n"
        "  - name: CUDA OOM\n    pattern: '.*CUDA out of memory.*'\n    action: cancel_retries\n"),
        {
            "log_policies": (
                LogPolicy(name="ECC Error", pattern=".*uncorrectable ECC.*", action="exclude_node"),
                LogPolicy(name="CUDA OOM", pattern=".*CUDA out of memory.*", action="cancel_retries"),
            )
        },
    ),
    "labels alone": (
        ('log_policies:\n  - name: CUDA OOM\n    pattern: ".*CUDA out of memory.*"\n'
        '  - name: ECC Error\n    pattern: ".*uncorrectable ECC error encountered.*"\n'),
        {
            "log_policies": (
                LogPolicy(name="CUDA OOM", pattern=".*CUDA out of memory.*"),
                LogPolicy(name="ECC Error", pattern=".*uncorrectable ECC error encountered.*"),
            )
        },
    ),
    "labels disabled": (
        "log_policies:\n  - name: CUDA OOM\n  - name: ECC Error\n",
        {"log_policies": (LogPolicy(name="CUDA OOM"), LogPolicy(name="ECC Error"))},
    ),
    "retention": (
        "retention_policy:\n   log_retention_days: 90\n", {"retention_policy.log_retention_days": 90},
    ),
    "random without a length": (
        "searcher:\n  name: random\n  metric: accuracy\n  max_trials: 5\n",
        {"searcher.max_trials": 5, "searcher.max_length": None},
    ),
    "adaptive with a time": (
        ("searcher:\n  name: adaptive_asha\n  metric: loss\n  time_metric: epochs\n  max_time: 16\n  max_trials: 64\n"
        "  mode: conservative\n  divisor: 3\n  max_rungs: 4\n  max_concurrent_trials: 8\n"),
        {
            "searcher.time_metric": "epochs",
            "searcher.max_time": 16,
            "searcher.mode": "conservative",
            "searcher.divisor": 3,
            "searcher.max_rungs": 4,
            "searcher.max_concurrent_trials": 8,
            "searcher.max_length": None,
        },
    ),
    "halving with a time": (
        (
            "searcher: {name: async_halving, metric: loss, time_metric: batches, max_time: 900,"
            " max_trials: 64, num_rungs: 3}\n"
        ),
        {"searcher.num_rungs": 3, "searcher.max_time": 900, "searcher.stop_once": True},
    ),
}  # fmt: skip


def attribute(config: object, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


def test_there_are_21_blocks() -> None:
    assert len([MNIST, IMAGENET, FASHION_MNIST, *FRAGMENTS]) == 21


@pytest.mark.parametrize("name", [*FRAGMENTS, *OF_38])
def test_a_fragment_is_read(name: str) -> None:
    fragment, expected = {**FRAGMENTS, **OF_38}[name]
    config = read_fragment(fragment)
    assert {path: attribute(config, path) for path in expected} == expected


@pytest.mark.parametrize("text", [MNIST, IMAGENET, FASHION_MNIST, *(complete(one[0]) for one in FRAGMENTS.values())])
def test_the_stored_form_of_a_block_is_read_as_the_same(text: str) -> None:
    config = read_text(text)
    assert read(config.plain()) == config


@pytest.mark.parametrize(
    "arguments", ["- -p1000\n         - -Pproject", "- -l select=2:ngpus=4:mem=4gb\n         - -l walltime=1:00:00"]
)
def test_jobs_of_pbs_are_refused(arguments: str) -> None:
    what, expected, fix = error_of(f"pbs:\n      pbsbatch_args:\n         {arguments}\n")
    assert what == "'pbs' (mnist.yaml, line 1) asks for jobs of PBS, which lightlib does not submit."
    assert expected == "a worker in each job that you submit."
    assert fix == "delete it, and run `lightlib experiment work URL` in a job of qsub."


def test_an_experiment_printed_by_determined_is_read_without_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(report, "info", notes.append)
    printed = (
        "debug: false\nintegrations: null\ninternal: null\npbs: {}\nslurm: {}\nsecurity: null\nworkspace: ''\n"
        "project: ''\nrecords_per_epoch: 0\ndata_layer: null\ntensorboard_storage: null\npreemption_timeout: null\n"
        "resources: {native_parallel: false, resource_pool: '', agent_label: '', shm_size: null, devices: []}\n"
        "environment: {image: {cpu: a, cuda: b, rocm: c}, ports: {}, registry_auth: null, pod_spec: null,\n"
        "  environment_variables: {cpu: [], cuda: [A=1], rocm: []}}\n"
        "optimizations: {tensor_fusion_cycle_time: 0, auto_tune_tensor_fusion: false, mixed_precision: O0}\n"
    )
    config = read_fragment(printed)
    assert (config.workspace, config.records_per_epoch, config.preemption_timeout) == (None, None, 3600)
    assert config.environment.image == {"cpu": "a", "cuda": "b", "rocm": "c"}
    assert config.environment.variables("cuda") == {"A": "1"}
    assert notes == []
