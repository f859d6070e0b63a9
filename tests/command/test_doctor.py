"""`lightlib doctor` and `lightlib env`: the environment, its problems and their fixes."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from torch.utils import collect_env

from lightlib.command.doctor import checks, facts
from lightlib.command.doctor.checks import Check
from lightlib.command.doctor.facts import Package
from lightlib.command.main import main
from tests.processes import programs

ROOT = Path(__file__).resolve().parents[2]
QUERIES = ("get_cpu_info", "get_gpu_info", "get_nvidia_driver_version", "get_cudnn_version")
COLLECT = {name: getattr(collect_env, name) for name in QUERIES}
Usage = namedtuple("Usage", "total used free")  # noqa: PYI024  as shutil's


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """Unset variables that affect a run, limit imports to a few packages, and stub torch's queries."""
    for name in facts.environment():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(facts, "OPTIONAL", ["numpy", "not-there"])
    for name in QUERIES:
        monkeypatch.setattr(collect_env, name, lambda run: None)


def found(name, generator):
    return next(check for check in generator if check.name == name)


def test_what_it_prints(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if re.match("[A-Z]", line)] == [
        "Versions", "Devices", "Network", "Environment", "Checks",
    ]  # fmt: skip
    assert f"torch          {torch.__version__}\n" in said
    assert "not installed  not-there" in said
    assert re.search(r"^  ok +self-test: a fit of one step on the CPU \(", said, re.MULTILINE)
    assert re.search(r"\n\d+ ok, \d+ warnings?, 0 failed\.\n$", said)


def test_the_same_as_json(capsys, monkeypatch):
    monkeypatch.setattr(checks, "_one_step", lambda: Check("self-test", "ok", "made"))
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert main(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert list(said) == ["versions", "devices", "network", "environment", "checks"]
    assert said["versions"]["torch"] == torch.__version__
    assert said["environment"] == {"NCCL_DEBUG": "INFO"}
    assert said["checks"][-1] == {"name": "self-test", "status": "ok", "found": "made", "fix": ""}


def test_a_failure_is_the_exit_status(capsys, monkeypatch):
    monkeypatch.setattr(checks, "_one_step", lambda: Check("self-test", "failed", "broken " * 30, "repair it"))
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "  failed   self-test: broken broken" in said
    assert "\n           Fix: repair it\n" in said
    assert said.endswith("1 failed.\n")
    lines = [line for line in said[said.index("Checks") :].splitlines() if os.getcwd() not in line]  # a path is not cut
    assert max(map(len, lines)) <= shutil.get_terminal_size().columns


def test_env_is_markdown_without_secrets(capsys, monkeypatch):
    monkeypatch.setenv("LIGHTLIB_API_KEY", "abc")
    monkeypatch.setenv("PL_STORE", "s3://me:abc@host/bucket")
    monkeypatch.setenv("NCCL_NOTE", "a `tick`")
    assert main(["env"]) == 0
    said = capsys.readouterr().out
    assert re.findall(r"^\*\*(\w+)\*\*$", said, re.MULTILINE) == ["Versions", "Devices", "Environment"]
    assert f"- torch: `{torch.__version__}`" in said
    assert "- LIGHTLIB_API_KEY: `***`\n" in said
    assert "- PL_STORE: `s3://***@host/bucket`\n" in said
    assert "- NCCL_NOTE: `a 'tick'`\n" in said
    assert "abc" not in said


def test_env_without_variables(capsys):
    assert main(["env"]) == 0
    assert capsys.readouterr().out.endswith("- variables: `none that affect a run`\n")


def test_which_variables_matter():
    names = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "SLURM_NTASKS", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG")
    names += ("GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "PL_GLOBAL_SEED", "LIGHTLIB_LAUNCHED", "TORCH_LOGS")
    others = ("HOME", "PATH", "SLURM_JOB_USER", "SLURM_SUBMIT_DIR", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN")
    assert set(facts.environment(dict.fromkeys(names + others, "1"))) == set(names)


# packages
def test_what_is_needed_is_what_the_package_declares():
    declared = re.search(
        r"^dependencies = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL
    )
    wanted = {one.name: one.specifier for one in map(Requirement, re.findall(r'"(.+?)"', declared.group(1)))}
    assert set(facts.REQUIRED) == set(wanted)
    assert f"torch=={checks.TESTED_TORCH}." in (ROOT / "constraints.txt").read_text()


def test_a_broken_package_does_no_harm(capsys, monkeypatch, tmp_path):
    (tmp_path / "broken_one.py").write_text("print('noise')\nraise OSError('no libcudart.so.12\\nsearched: /a /b')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(facts, "OPTIONAL", ["broken-one"])
    package = facts.packages()[-1]
    assert package == Package("broken-one", False, "version unknown", "OSError: no libcudart.so.12")
    assert "noise" not in capsys.readouterr().out
    check = found("packages", checks._packages([package]))
    assert (check.status, check.found) == (
        "warning",
        "broken-one version unknown, but cannot be imported: OSError: no libcudart.so.12",
    )
    assert check.fix.startswith("pip install --force-reinstall broken-one, or pip uninstall broken-one")


def test_without_torch_the_rest_is_told(capsys, monkeypatch):
    broken = Package("torch", True, "2.13.0", "OSError: libcudart.so.12: cannot open shared object file")
    monkeypatch.setattr(facts, "packages", lambda: [broken, Package("rich", True, None)])
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "torch          2.13.0, but cannot be imported: OSError: libcudart.so.12: cannot open" in said
    assert "Network\n  needs torch\n" in said
    assert "failed   packages: rich is not installed, and lightlib needs it\n           Fix: pip install rich" in said
    assert "self-test" not in said
    assert "all required packages" not in said
    assert main(["env"]) == 0


@pytest.mark.parametrize(
    ("version", "status", "text"),
    [
        ("2.13.0+cpu", "ok", "is the 2.13 that lightlib is tested with"),
        ("2.14.0.dev20261101", "ok", "newer than the 2.13"),
        ("2.7.1", "warning", "older than the 2.13"),
    ],
)
def test_the_version_of_torch(version, status, text):
    check = checks._torch(version)
    assert check.status == status
    assert text in check.found


def test_a_version_that_the_installed_lightlib_does_not_want(monkeypatch):
    wanted = ["packaging>=999", "rich>=1", "omegaconf>=999; extra == 'interpolate'", "not-there>=1"]
    monkeypatch.setattr(checks.importlib.metadata, "requires", lambda name: wanted)
    check = found("packages", checks._packages([]))
    assert (check.status, check.fix) == ("failed", "pip install 'packaging>=999'")


# places to write
def test_a_folder_that_cannot_be_written(monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checks.tempfile, "TemporaryFile", refuse)
    check = found("folder", checks._folder())
    assert check.status == "failed"
    assert "Permission denied" in check.found
    assert "default_root_dir" in check.fix


def test_little_space(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**33, 2**33 - 2**26, 2**26))
    check = found("folder", checks._folder())
    assert (check.status, "64 MiB" in check.found) == ("warning", True)
    monkeypatch.setattr(checks, "_SHARED_MEMORY", "/")
    check = found("shared memory", checks._shared_memory())
    assert (check.status, "--shm-size" in check.fix) == ("warning", True)


def test_variables_that_make_a_run_slow(monkeypatch):
    assert list(checks._variables()) == []
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "detail")
    assert [check.fix.split(",")[0] for check in checks._variables()] == [
        "unset CUDA_LAUNCH_BLOCKING",
        "unset TORCH_DISTRIBUTED_DEBUG",
    ]


# processes
def test_the_launcher_and_its_threads(monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 4, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 4}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setattr(facts, "processors", lambda: (8, 8))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    launcher, threads = checks._processes()
    assert launcher.found.startswith("4 processes by RANK and WORLD_SIZE")
    assert threads.status == "warning"
    assert "4 processes with 8 threads each on 8 cores (OMP_NUM_THREADS is not set)" in threads.found
    assert threads.fix == "export OMP_NUM_THREADS=2"


def test_half_of_a_launcher(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    check = found("launcher", checks._processes())
    assert check.status == "failed"
    assert check.found.startswith("WORLD_SIZE=4 is set in the environment, but RANK is not")
    assert "unset WORLD_SIZE" in check.fix


def test_srun_that_was_forgotten(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    check = found("launcher", checks._processes())
    assert (check.status, "srun" in check.found) == ("warning", True)


@pytest.mark.parametrize(
    ("files", "allowed"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, None),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000", "cpu.max": "100000 100000"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_cores_that_a_container_allows(tmp_path, monkeypatch, files, allowed):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(facts, "_GROUPS", tmp_path)
    monkeypatch.setattr(facts, "_own_group", lambda: "a/b")
    monkeypatch.setattr(facts.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert facts.processors()[1] == (8 if allowed is None else allowed)


# devices
def test_what_torch_collects(monkeypatch):
    gpus = "GPU 0: NVIDIA H100\nGPU 1: NVIDIA H100"
    answers = ("Architecture: x86_64\nModel name:   A CPU @ 3 GHz\nBogoMIPS: 1", gpus, "580.1", None)
    for name, answer in zip(QUERIES, answers, strict=True):
        monkeypatch.setattr(collect_env, name, lambda run, answer=answer: answer)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.version, "hip", None)
    assert facts._collected() == {
        "cpu": "A CPU @ 3 GHz",
        "gpus": "GPU 0: NVIDIA H100; GPU 1: NVIDIA H100",
        "gpu driver": "580.1",
        "cuda of torch": "12.8",
        "cudnn": "none",
        "hip of torch": "none",
        "mps": "available" if torch.backends.mps.is_available() else "not available",
    }


@pytest.mark.processes
def test_what_torch_collects_on_this_machine(monkeypatch):
    for name, query in COLLECT.items():
        monkeypatch.setattr(collect_env, name, query)
    devices = facts._collected()
    assert devices["cpu"]
    assert {"gpus", "gpu driver", "cuda of torch", "cudnn", "mps"} <= set(devices)
    assert not {"None", "N/A", ""} & set(devices.values())


def test_a_gpu_that_is_not_found(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    check = found("gpu", checks._gpus())
    assert check.status == "warning"
    assert "no GPU is found, runs use the CPU: torch" in check.found
    assert check.fix.startswith("nothing, if this machine has no GPU; else install")


def test_a_driver_without_a_build_for_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(collect_env, "get_nvidia_driver_version", lambda run: "580.1")
    check = found("gpu", checks._gpus())
    assert (check.status, check.fix.startswith("install a torch build with CUDA")) == ("warning", True)


def test_a_gpu_that_cannot_compute():
    check = checks._computes(torch.device("cuda", 99))
    assert (check.status, check.found.startswith("cuda:99 cannot compute: ")) == ("failed", True)
    assert checks._computes(torch.device("cpu")).status == "ok"


# trial runs
def test_an_interface_that_is_not_there(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    check = checks._rendezvous()
    assert check.status == "failed"
    assert "GLOO_SOCKET_IFNAME, which is 'nowhere0'" in check.fix


def test_processes_can_meet():
    assert checks._rendezvous().status == "ok"


def test_the_self_test_is_one_process_whatever_started_this_one(monkeypatch, capfd):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert checks._one_step().status == "ok"
    assert capfd.readouterr() == ("", "")


def test_the_self_test_tells_what_went_wrong(monkeypatch):
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_: 1 / 0)
    check = checks._one_step()
    assert (check.status, "ZeroDivisionError" in check.found) == ("failed", True)


@pytest.mark.processes
def test_nothing_of_torch_is_imported_to_ask_for_help():
    code = "import sys; from lightlib.command.main import main\n"
    code += "for verb in ('doctor', 'env', 'init'):\n    try: main([verb, '--help'])\n    except SystemExit: pass\n"
    code += "sys.exit('torch' in sys.modules)"
    done = programs.interpreter("-c", code)
    assert done.returncode == 0, done.stderr
    assert "--json" in done.stdout
