"""The key `entrypoint`: classes, files of fits, command lines, and Determined's launch modules."""

from __future__ import annotations

import pytest

from lightlib.experiment.file import Entrypoint
from tests.experiment.given import error_of, read_fragment

LAUNCH = "python3 -m determined.launch.torch_distributed"
EXPECTED = "module:Class, the YAML file of a fit, or a command line (a list, or text)."


def entrypoint(written: str) -> Entrypoint:
    found = read_fragment(f"entrypoint: {written}\n").entrypoint
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("written", "class_path"),
    [
        ("model:Classifier", "model:Classifier"),
        ("package.model:outer.Inner", "package.model:outer.Inner"),
        ("Classifier", ":Classifier"),
        ("':Classifier'", ":Classifier"),
        (f"{LAUNCH} --trial model:Classifier", "model:Classifier"),
        (f"{LAUNCH} --trial=model:Classifier", "model:Classifier"),
        (f"[{LAUNCH.replace(' ', ', ')}, --trial, 'model:Classifier']", "model:Classifier"),
    ],
)
def test_a_class(written: str, class_path: str) -> None:
    found = entrypoint(written)
    assert (found.class_path, found.file, found.command, found.per_slot) == (class_path, "", (), False)


@pytest.mark.parametrize("written", ["config.yaml", "configs/fit.yml"])
def test_the_file_of_a_fit(written: str) -> None:
    found = entrypoint(written)
    assert (found.class_path, found.file, found.command) == ("", written, ())


@pytest.mark.parametrize(
    ("written", "command", "per_slot"),
    [
        ("./hello.sh", ("./hello.sh",), False),
        ("python3 train.py --name 'a b'", ("python3", "train.py", "--name", "a b"), False),
        ("[python3, train.py, 'a b']", ("python3", "train.py", "a b"), False),
        ("cd code && python3 train.py", ("sh", "-c", "cd code && python3 train.py"), False),
        (f"{LAUNCH} train.py --lr 1", ("python3", "train.py", "--lr", "1"), True),
        (f"{LAUNCH} -- train.py --lr 1", ("python3", "train.py", "--lr", "1"), True),
        (f"{LAUNCH} -m package.train", ("python3", "-m", "package.train"), True),
        (f"{LAUNCH} python3 train.py", ("python3", "train.py"), True),
        (f"{LAUNCH} ./train.sh -- a", ("./train.sh", "--", "a"), True),
        ("[python, -m, determined.launch.torch_distributed, train.py]", ("python", "train.py"), True),
    ],
)
def test_a_command_line(written: str, command: tuple[str, ...], per_slot: bool) -> None:
    found = entrypoint(written)
    assert (found.command, found.per_slot, found.class_path, found.file) == (command, per_slot, "", "")


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        (
            "3",
            ("'entrypoint' (mnist.yaml, line 1) is 3 (int).", EXPECTED, "entrypoint: model:Classifier"),
        ),
        (
            "model:3lassifier",
            (
                "'entrypoint' (mnist.yaml, line 1) is 'model:3lassifier' (str).",
                EXPECTED,
                "entrypoint: model:Classifier",
            ),
        ),
        (
            "[python3, 3]",
            (
                "'entrypoint' (mnist.yaml, line 1) is ['python3', 3] (list).",
                "a list of texts; numbers need quotes.",
                "entrypoint: [python3, '3']",
            ),
        ),
        (
            'python3 "train.py',
            (
                "'entrypoint' (mnist.yaml, line 1) is 'python3 \"train.py' (str).",
                "a command line; no closing quotation.",
                "close the quote.",
            ),
        ),
        (
            "python3 -m determined.launch.horovod train.py",
            (
                (
                    "'entrypoint' (mnist.yaml, line 1) runs determined.launch.horovod, which starts"
                    " processes of Horovod,"
                    " which lightlib does not use."
                ),
                EXPECTED,
                f"entrypoint: {LAUNCH} SCRIPT, or module:Class: both train with DDP",
            ),
        ),
        (
            "python3 -m determined.launch.deepspeed --trial model:Classifier",
            (
                (
                    "'entrypoint' (mnist.yaml, line 1) runs determined.launch.deepspeed, which starts processes of"
                    " DeepSpeed's launcher."
                ),
                EXPECTED,
                f"entrypoint: module:Class with fit.trainer.strategy: deepspeed, or {LAUNCH} SCRIPT",
            ),
        ),
        (
            "python3 -m determined.launch.tensorflow train.py",
            (
                (
                    "'entrypoint' (mnist.yaml, line 1) runs determined.launch.tensorflow, which starts TensorFlow, and"
                    " trials of lightlib are fits of PyTorch modules."
                ),
                EXPECTED,
                "entrypoint: the command line of your program as a list: [python3, train.py]",
            ),
        ),
        (
            f"{LAUNCH} --nproc_per_node 2 -- train.py",
            (
                "'entrypoint' (mnist.yaml, line 1) has options of torchrun: --nproc_per_node 2.",
                "no options: resources sets the processes.",
                f"entrypoint: {LAUNCH} train.py",
            ),
        ),
        (
            LAUNCH,
            (
                "'entrypoint' (mnist.yaml, line 1) ends after determined.launch.torch_distributed.",
                "a script after it.",
                f"entrypoint: {LAUNCH} train.py",
            ),
        ),
        (
            f"{LAUNCH} --trial",
            (
                "'entrypoint' (mnist.yaml, line 1) has '' after --trial.",
                "module:Class.",
                "entrypoint: model_def:MyTrial",
            ),
        ),
        (
            f"{LAUNCH} --verbose train.py",
            (
                "'entrypoint' (mnist.yaml, line 1) has the option --verbose before the script.",
                "the script right after the launch module.",
                f"entrypoint: {LAUNCH} train.py",
            ),
        ),
    ],
)
def test_a_wrong_entrypoint_is_refused(written: str, parts: tuple[str, str, str]) -> None:
    assert error_of(f"entrypoint: {written}\n") == parts
