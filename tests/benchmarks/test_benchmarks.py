"""Every benchmark runs at its smallest size and reports correctly whether a target is met."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from benchmarks import (
    calls,
    checkpoints,
    end_to_end,
    evaluation,
    features,
    first_step,
    imports,
    ledger,
    peers,
    search,
    sizes,
    step,
    table,
)
from benchmarks.__main__ import main
from benchmarks.measure import Row, Size, Target
from benchmarks.peers import LIGHTLIB, LIGHTNING, NOT_INSTALLED, PLAIN, Peer
from benchmarks.task import BARE, LOGGED, REALISTIC, tiny
from tests.processes import programs

SMALLEST = Size(rounds=1, fewer_rounds=1, steps=3, warm_up=1, counted=1, large_steps=2, processes=1, all_imports=False)
MISSING = Peer("Missing", "no_such_framework", "no_such_file", "import no_such_framework")


@pytest.fixture(autouse=True)
def only_lightlib(monkeypatch):
    """Measure only lightlib: installed frameworks must not decide how long the tests take."""
    for module in (calls, checkpoints, imports, first_step, evaluation, end_to_end, step):
        if hasattr(module, "LIGHTNING"):
            monkeypatch.setattr(module, "LIGHTNING", MISSING)
    monkeypatch.setattr(gc, "collect", lambda *_: 0)  # it would go through all that the tests have imported, each time
    monkeypatch.setattr(first_step, "_PEERS", (PLAIN, LIGHTLIB, MISSING))
    monkeypatch.setattr(step, "PEERS", (MISSING,))


def rows_of(benchmark):
    results = list(benchmark.run(SMALLEST))
    rows = [result for result in results if isinstance(result, Row)]
    missing = [row for row in rows if row.who == "Missing"]
    assert missing
    assert all(not row.values and row.note == NOT_INSTALLED for row in missing)
    return [row for row in rows if row.who != "Missing"], [r for r in results if isinstance(r, Target)]


@pytest.mark.processes
def test_calls():
    rows, targets = rows_of(calls)
    assert all(row.who == "lightlib" and len(row.values) == 1 for row in rows)
    assert len(targets) == 4
    assert all(target.met for target in targets)


@pytest.mark.processes
def test_calls_do_not_depend_on_the_number_of_batches():
    assert calls.calls_per_batch(LIGHTLIB.train, 50, LOGGED) == calls.calls_per_batch(LIGHTLIB.train, 100, LOGGED)


def test_sizes():
    results = list(sizes.run(SMALLEST))
    rows, targets = ([one for one in results if isinstance(one, kind)] for kind in (Row, Target))
    assert len(rows) == 6
    assert len(targets) == 3
    assert all(target.met for target in targets)
    scores = sizes.TOKENS * sizes.CLASSES * 4 / 1e6
    assert rows[0].values[0] > 2 * scores > scores > rows[1].values[0]  # MB of scores and their gradients


@pytest.mark.processes  # a logger looks for the commit of the program
def test_features():
    results = list(features.run(SMALLEST))
    calls = [result.median for result in results if result.unit == "calls"]
    budgets = [0, 73, 37, 9, 9]  # of a logger, halved batches, counted samples, and two monitors every 50 steps
    assert len(calls) == len(budgets)
    assert all(0 < count <= most or count == most == 0 for count, most in zip(calls, budgets, strict=True)), calls
    assert [result.unit for result in results[len(calls) :]] == ["µs"] * len(features.FEATURES)


def test_checkpoints(monkeypatch):
    monkeypatch.setattr(checkpoints, "LAYERS", 2)
    monkeypatch.setattr(checkpoints, "WIDTH", 8)
    rows, targets = rows_of(checkpoints)
    assert [row.who for row in rows] == ["plain PyTorch", "lightlib", "lightlib"]
    assert [target.limit for target in targets] == [1.1]


@pytest.mark.processes
def test_step():
    rows, targets = rows_of(step)
    assert [row.who for row in rows] == ["plain PyTorch", "lightlib"] * 3
    (target,) = targets  # there is nothing else to compare with
    assert (target.value, target.limit) == (rows[-1].median, 0.0)


def test_a_peer_that_fails_does_not_end_the_measurement(monkeypatch):
    monkeypatch.setattr(Peer, "installed", True)
    failed = step.over_plain([MISSING], BARE, SMALLEST)[-1]
    assert failed.note == "failed: ModuleNotFoundError"


@pytest.mark.processes
def test_an_import_that_fails_does_not_end_the_measurement(monkeypatch):
    monkeypatch.setattr(Peer, "installed", True)
    monkeypatch.setattr(imports, "LIGHTLIB", Peer("lightlib", "json", "lightlib", "import json"))
    failed = [row for row in imports.run(SMALLEST) if isinstance(row, Row) and row.who == "Missing"]
    assert [row.note for row in failed] == ["failed: ModuleNotFoundError: No module named 'no_such_framework'"] * 2


@pytest.mark.parametrize(
    ("medians", "met"),
    [
        ({"lightlib": 20.0, "Lightning": 330.0, "Ignite": 20.0}, [True, True]),
        ({"lightlib": 20.0, "Lightning": 290.0, "Ignite": 19.0}, [False, False]),
        ({"lightlib": 20.0}, []),
    ],
)
def test_targets_with_everything_off(medians, met, monkeypatch):
    monkeypatch.setattr(step, "LIGHTNING", LIGHTNING)
    assert [target.met for target in step.targets("everything off", medians)] == met


def test_the_realistic_run_is_compared_with_the_fastest_full_trainer(monkeypatch):
    monkeypatch.setattr(step, "LIGHTNING", LIGHTNING)
    monkeypatch.setattr(step, "PEERS", peers.PEERS)
    medians = {"lightlib": 60.0, "Lightning": 1300.0, "skorch": 100.0, "torchtnt": 300.0, "Fabric": 50.0}
    share, least = step.targets("realistic", medians)
    assert share.met
    assert least.limit == 100.0
    assert "skorch" in least.what


@pytest.mark.processes
def test_imports():
    rows, (target,) = rows_of(imports)
    assert [(row.who, row.unit) for row in rows] == [("lightlib", "s"), ("lightlib", "MB")]
    assert (target.value, target.unit) == (rows[0].median, "s")
    assert target.value > 0


@pytest.mark.processes
def test_first_step(monkeypatch):
    def run_warm(command, cwd, **_):
        assert command[:3] == [sys.executable, "-W", "ignore"]
        return programs.run(*command[3:], cwd=cwd)

    monkeypatch.setattr(first_step.subprocess, "run", run_warm)
    rows, _ = rows_of(first_step)
    assert [row.who for row in rows] == ["plain PyTorch", "lightlib"] * 3
    assert all(row.median > 0 for row in rows)


@pytest.mark.processes
def test_search(monkeypatch):
    pytest.importorskip("optuna")

    def run_warm(command, cwd, env, **_):
        words = command[1:] if command[1] == "-m" else command[3:]
        assert command == [sys.executable, *(() if words == command[1:] else ("-W", "ignore")), *words]
        return programs.run(*words, cwd=cwd, env=env, starts=1)

    monkeypatch.setattr(search.subprocess, "run", run_warm)
    monkeypatch.setattr(search, "PEERS", (search.FOLDER, search.Peer("Missing", "", "BENCH_MISSING")))
    results = list(search.run(SMALLEST))
    rows, targets = ([one for one in results if isinstance(one, kind)] for kind in (Row, Target))
    *rows, reports, decisions, preview = rows
    assert [(row.who, row.note) for row in rows] == [
        ("lightlib, folder", ""),
        ("Missing", "BENCH_MISSING is not set"),
    ] * 2
    assert targets[0].value == rows[0].median
    assert rows[2].median > 0
    assert 0 < reports.median < decisions.median
    assert preview.median > 0
    assert [one.limit for one in targets] == [0.15, 0.1, 50, 0.5]


@pytest.mark.processes
def test_ledger(monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.delenv("BENCH_POSTGRESQL", raising=False)
    results = list(ledger.run(SMALLEST))
    rows = [one for one in results if isinstance(one, Row)]
    measured = [row for row in rows if row.values]
    assert [row.who for row in measured] == ["Optuna", "lightlib", "Optuna", "lightlib", "lightlib"]
    assert all(row.median > 0 for row in measured)
    assert {row.note for row in rows if not row.values} == {"BENCH_POSTGRESQL is not set"}
    assert [one.limit for one in results if isinstance(one, Target)] == [2.0, 1.5, 3.0]


def test_evaluation():
    rows, _ = rows_of(evaluation)
    assert [row.who for row in rows] == ["lightlib"] * 2


@pytest.mark.processes
def test_end_to_end():
    rows, _ = rows_of(end_to_end)
    assert [row.unit for row in rows] == ["ms", "times"] * 2
    assert all(row.median > 0 for row in rows)


def test_lightlib_computes_what_the_plain_loop_computes(tmp_path, monkeypatch):
    weights = {}
    for peer in (PLAIN, LIGHTLIB):
        task = tiny(20, 0, REALISTIC, tmp_path)
        network = task.network()
        monkeypatch.setattr(task, "new_network", lambda network=network: network)
        peer.train(task)
        weights[peer.name] = [parameter.detach().clone() for parameter in network.parameters()]
    for one, other in zip(*weights.values(), strict=True):
        assert one.equal(other)


TRAIN_A_PEER = """
import pathlib, sys
from benchmarks import peers, task
(peer,) = (peer for peer in peers.PEERS if peer.file == sys.argv[1])
work = task.tiny(5, 1, getattr(task, sys.argv[2]), pathlib.Path(sys.argv[3]))
peer.train(work)
assert work.clock.typical > 0
"""


@pytest.mark.processes
@pytest.mark.parametrize("peer", peers.PEERS, ids=lambda peer: peer.file)
def test_an_installed_peer_runs_every_batch(peer, tmp_path):
    if not peer.installed:
        pytest.skip(NOT_INSTALLED)
    for switches in ("BARE", "REALISTIC"):  # in another process: leftovers of a framework are not tested here
        command = [sys.executable, "-W", "ignore", "-c", TRAIN_A_PEER, peer.file, switches, str(tmp_path)]
        done = subprocess.run(command, cwd=imports.ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_clock_refuses_a_run_that_was_too_short(tmp_path):
    task = tiny(5, 1, BARE, tmp_path)
    task.clock.last += 1
    PLAIN.train(task)
    with pytest.raises(AssertionError, match="only 7 batches were requested"):
        _ = task.clock.typical


RESULTS = [
    Row("µs per step", "lightlib", [3.0, 1.0, 2.0, 4.0, 5.0], "µs"),
    Row("µs per step", "other", [], "µs", NOT_INSTALLED),
    Row("calls", "lightlib", [22.0], "calls"),
    Target("calls", 22.0, 45.0, "calls"),
    Target("share", 0.2, 0.1, ""),
]


def test_the_table_for_the_screen():
    assert table.text(RESULTS).splitlines() == [
        "what         who       median         quartiles  least",
        "µs per step  lightlib  3.0 µs         2.0 … 4.0  1.0",
        "µs per step  other     not installed",
        "calls        lightlib  22.0 calls",
        "",
        "target  measured    at most",
        "calls   22.0 calls  45.0 calls  met",
        "share   0.2000      0.1000      MISSED",
    ]


def test_the_written_table():
    text = table.markdown(RESULTS, SMALLEST, ("0.10", "0.20"))
    assert "| share | 0.2000 | 0.1000 | MISSED |" in text
    assert "| µs per step | lightlib | 3.0 µs | 2.0 … 4.0 | 1.0 |" in text
    assert text.index("| target |") < text.index("| what |")
    assert "lightlib 0." in text


def test_a_quick_run_is_printed_and_only_written_where_it_is_told_to(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.__main__.QUICK", SMALLEST)
    monkeypatch.setattr("benchmarks.__main__.RESULTS", tmp_path / "RESULTS.md")
    monkeypatch.setattr("benchmarks.__main__.quiet", lambda: None)
    assert main(["--quick", "--only", "evaluation"]) == 0
    assert "µs per predicted batch" in capsys.readouterr().out
    assert not (tmp_path / "RESULTS.md").exists()
    assert main(["--quick", "--only", "evaluation", "--output", str(tmp_path / "own.md")]) == 0
    assert "µs per predicted batch" in (tmp_path / "own.md").read_text(encoding="utf-8")


def test_results_are_kept_while_a_framework_is_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.__main__.BENCHMARKS", {"evaluation": lambda size: iter(RESULTS)})
    monkeypatch.setattr("benchmarks.__main__.RESULTS", tmp_path / "RESULTS.md")
    monkeypatch.setattr("benchmarks.__main__.quiet", lambda: None)
    monkeypatch.setattr("benchmarks.__main__.PEERS", (LIGHTLIB, MISSING))
    assert main([]) == 0
    assert "RESULTS.md is unchanged" in (printed := capsys.readouterr().out)
    assert "pip install no_such_framework" in printed
    assert not (tmp_path / "RESULTS.md").exists()
    monkeypatch.setattr("benchmarks.__main__.PEERS", (LIGHTLIB,))
    assert main([]) == 0
    assert (tmp_path / "RESULTS.md").exists()
