"""`make gpu` up to the device: its list, errors, results, and parts that fail, crash or hang."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time

import pytest
import torch

from lightlib.errors import MisconfigurationException
from tests.gpu import __main__ as program
from tests.gpu import command, failing, training
from tests.gpu.case import PRECISIONS, Case, DiffersError, Outcome
from tests.gpu.device import Device, facts
from tests.gpu.parts import PARTS
from tests.gpu.processes import ROOT, Limits, run_cases
from tests.gpu.results import BEGIN, END, Results, write_page

MACHINE = {"devices": ["H200"], "pretended": False, "torch": "2.13.0", "lightlib": "0.1.0", "cuda": "13.0"}
PRETENDED = {**MACHINE, "devices": ["pretended, CPU"], "pretended": True}


@pytest.fixture
def no_processes(monkeypatch):
    """Let each case pass without a process, and return the names of those that ran."""
    ran = []

    def run(part, cases, device, folder, report, limits):
        for case in cases:
            ran.append((part, case.name))
            report(case, Outcome("passed", {"error": 0.25}, 1.0))

    monkeypatch.setattr(command, "run_cases", run)
    monkeypatch.setattr(command, "_facts", facts)
    return ran


def test_each_part_has_cases_with_names_of_their_own():
    for device in (Device(True, 1), Device(True, 8)):
        for part in PARTS.values():
            names = [case.name for case in part.cases(device, PRECISIONS)]
            assert len(names) == len(set(names)) > 0


def test_a_case_is_made_for_the_least_and_the_largest_number_of_devices():
    assert Device(True, 1).counts(2) == [2]
    assert Device(True, 7).counts(2) == [2, 6]
    assert Device(True, 8).counts(2, most=4) == [2, 4]


def test_the_list_names_cases_and_the_devices_that_they_need(capsys):
    assert command.main(["--pretend", "--devices", "1", "--list", "--only", "strategies", "kill"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "    single_device/bf16-mixed" in lines
    assert "    hsdp, 4 ranks/32-true   (needs 4 GPUs, 1 here)" in lines
    assert any(line.startswith("    ddp-workers2") and "needs 2 GPUs" in line for line in lines)


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="needs a machine without a GPU")
def test_without_a_gpu_the_error_states_the_reason_and_the_way_out(capsys):
    assert command.main([]) == 2
    message = capsys.readouterr().err
    assert "There is no GPU: torch" in message
    assert "Expected: a machine where torch finds a CUDA device" in message
    assert "--pretend" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "strategy"], "Unknown part 'strategy'.*'strategies'"),
        (["--precisions", "bf16"], "Unknown precision 'bf16'.*'bf16-"),
        (["--cases", "nonsense"], "No case begins with 'nonsense'"),
        (["--devices", "0"], "--devices 0"),
        (["--devices", "9"], "from 1 to 8"),
        (["--page", "missing.json"], "missing.json cannot be read as results"),
    ],
)
def test_bad_requests(arguments, message, capsys):
    assert command.main(["--pretend", *arguments]) == 2
    found = capsys.readouterr().err
    assert re.search(message, found), found


def test_missing_packages_are_named_before_anything_runs(monkeypatch, capsys, no_processes, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find(name))
    assert command.main(["--pretend", "--results", str(tmp_path / "r.json")]) == 2
    assert "The part 'kill' needs tensorboard" in capsys.readouterr().err
    assert not no_processes
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    assert program.main() == 2
    assert "has no torch" in capsys.readouterr().err


def test_results_of_several_calls_are_merged_and_those_that_passed_are_left_out(no_processes, tmp_path, capsys):
    path = tmp_path / "results.json"
    call = ["--pretend", "--devices", "1", "--results", str(path), "--only", "prefetch", "--cases", "workers"]
    assert command.main([*call[:-1], "no workers"]) == 0
    assert command.main(call) == 0
    assert command.main([*call, "no workers", "--resume"]) == 0
    assert "nothing left to run" in capsys.readouterr().out
    assert len(no_processes) == len(json.loads(path.read_text())["parts"]["prefetch"]) == 7


def test_results_of_another_machine_are_not_mixed(tmp_path):
    Results(tmp_path / "r.json", MACHINE).add("plan", "mlp", Outcome("passed", date="2026-11-30").as_dict())
    with pytest.raises(MisconfigurationException, match=r"devices \['H200'\], and this run has \['pretended, CPU'\]"):
        Results(tmp_path / "r.json", PRETENDED)
    assert Results(tmp_path / "r.json", MACHINE).passed("plan", "mlp")


def test_the_page_has_results_of_gpus_alone(tmp_path):
    page = tmp_path / "gpu.md"
    page.write_text(f"Above.\n\n{BEGIN}\nold\n{END}\n\nBelow.\n")
    results = Results(tmp_path / "r.json", MACHINE)
    for name, state, figures in [
        ("ddp/32-true", "passed", {"error": 1.234e-7}),
        ("ddp/bf16-mixed", "failed", {}),
        ("hsdp/32-true", "needs devices", {}),
    ]:
        problem = {"failed": "a | b\nmore", "needs devices": "needs 4 GPUs, 1 here"}.get(state, "")
        results.add("strategies", name, Outcome(state, figures, 2.0, problem, date="2026-11-30").as_dict())
    results.add(
        "plan", "mlp", Outcome("passed", {"counted MiB": 2.0, "allowance": 0.0625}, date="2026-11-30").as_dict()
    )
    write_page(results, page)
    write_page(results, page)
    text = page.read_text()
    assert text.startswith("Above.")
    assert text.endswith("Below.\n")
    assert "old" not in text
    for line in (
        "1 x H200; torch 2.13.0, lightlib 0.1.0, cuda 13.0.",
        "2026-11-30: 1 passed, 1 failed, 1 needs devices; 6 s.",
        "| case | 32-true | bf16-mixed |",
        "| ddp | 1.23e-07 | **failed** |",
        "| hsdp | needs 4 GPUs |  |",
        "- ddp/bf16-mixed: a \\| b",
        "| case | result | counted MiB | allowance |",
        "| mlp | passed | 2 | 0.0625 |",
    ):
        assert text.count(f"{line}\n") == 1, line
    pretended = Results(tmp_path / "p.json", PRETENDED)
    with pytest.raises(MisconfigurationException, match="results of a pretended run"):
        write_page(pretended, page)
    assert page.read_text() == text
    assert pretended.page().startswith("**pretended, on a CPU with gloo: no GPU was used.**")


@pytest.mark.parametrize("precision", ["64-true", "32-true", "bf16-mixed", "bf16-true"])
def test_training_with_another_rate_is_beyond_the_tolerance(precision):
    expected = training.by_hand(precision, torch.device("cpu"))
    assert training.check(expected, expected, precision) == {"error": 0.0}
    with pytest.raises(DiffersError, match="of their change, at most"):
        training.check(training.by_hand(precision, torch.device("cpu"), lr=0.1), expected, precision)
    with pytest.raises(DiffersError, match="of their change, at most"):
        training.check({name: weight * torch.nan for name, weight in expected.items()}, expected, precision)


def ended(part, cases, tmp_path, limits=Limits()):  # noqa: B008  frozen
    found = {}
    device = Device(True, 2)
    run_cases(part, cases, device, tmp_path, lambda case, outcome: found.setdefault(case.name, outcome), limits)
    return found


@pytest.mark.processes
def test_a_case_that_fails_or_crashes_leaves_the_rest(tmp_path):
    cases = [case for case in failing.cases(Device(True, 2), ()) if case.name != "hangs"]
    found = ended("tests.gpu.failing:PART", cases, tmp_path)
    assert [outcome.state for outcome in found.values()] == ["passed", "failed", "failed", "failed", "passed"], found
    assert found["passes"].figures == {"rank": 0}
    assert found["differs"].problem.endswith("DiffersError: 0.5 is not 0.25")
    assert found["differs"].output[-1].endswith("0.5 is not 0.25")
    assert found["crashes"].problem == "the processes ended with SIGSEGV, SIGSEGV"
    assert found["one rank fails"].problem == "rank 1: RuntimeError: out of memory"


@pytest.mark.processes
def test_a_case_that_hangs_is_ended_with_all_that_it_has_started(tmp_path, monkeypatch):
    seconds = str(10**8 + os.getpid())  # of this test alone: the other ones sleep as well
    monkeypatch.setenv("SLEEPS", seconds)
    begun = time.monotonic()
    cases = [Case("hangs", devices=2, ranks=2), Case("passes", devices=2, ranks=2)]
    found = ended("tests.gpu.failing:PART", cases, tmp_path, Limits(part=25.0, case=20.0))
    assert found["hangs"].problem == "no end within 20 s; the processes were ended"
    assert found["hangs"].output[0] == "--- hangs"
    assert found["passes"].state in ("passed", "not reached")
    assert time.monotonic() - begun < failing.SECONDS
    while time.monotonic() - begun < failing.SECONDS:  # a killed process may take a moment to go
        left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        if f"sleep {seconds}" not in left:
            return
        time.sleep(0.1)
    raise AssertionError(f"sleep {seconds} was not ended")


@pytest.mark.processes
def test_processes_that_end_before_their_first_case(tmp_path):
    found = ended("tests.gpu.failing:EARLY", failing.cases(Device(True, 2), ()), tmp_path)
    assert found["passes"].problem == "the processes ended with code 3, code 3"
    assert {outcome.state for name, outcome in found.items() if name != "passes"} == {"not reached"}


@pytest.mark.processes
def test_a_small_part_on_the_cpu(tmp_path):
    call = [sys.executable, "-m", "tests.gpu", "--pretend", "--results", tmp_path / "r.json", "--precisions", "32-true"]
    call += ["--only", "strategies", "prefetch", "--devices", "2", "--cases", "fsdp, 2", "workers, pinned"]
    found = subprocess.run([*map(str, call)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "strategies: 1 passed" in found.stdout
    assert "prefetch: 4 passed" in found.stdout
    assert json.loads((tmp_path / "r.json").read_text())["machine"]["pretended"] is True


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(3600)
def test_everything_on_the_cpu(tmp_path):
    call = [sys.executable, "-m", "tests.gpu", "--pretend", "--results", str(tmp_path / "r.json"), "--limit", "1200"]
    found = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    results = json.loads((tmp_path / "r.json").read_text())["parts"]
    assert list(results) == list(PARTS)
    states = {case["state"] for cases in results.values() for case in cases.values()}
    assert states == {"passed", "needs devices"}
