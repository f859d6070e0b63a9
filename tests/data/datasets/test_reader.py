"""Mixtures and packed documents in runs: a plain loop's batches, and a resume at the next one."""

from __future__ import annotations

import pytest

from tests.data.datasets.loaders import IS_MAP, MAKE, STEP, SavesAt, fit, fit_all, plain
from tests.processes.ranks import ranks

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # by torch, and called by torchdata


WORKERS = [(name, {"num_workers": 2}) for name in MAKE]
PERSISTENT = [
    (name, {"num_workers": 2, "persistent_workers": True}) for name in MAKE if not name.startswith("stateful")
]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in MAKE),
        pytest.param("stateful rows", {"num_workers": 1}, marks=pytest.mark.processes),
        *(pytest.param(*case, marks=pytest.mark.processes) for case in [*WORKERS, *PERSISTENT]),
    ],
    ids=str,
)
def test_a_run_reads_what_a_plain_loop_reads_and_resumes_anywhere(tmp_path, name, options):
    make = MAKE[name]
    first, second = plain(make(batch_size=2, **options))
    complete = fit(make(batch_size=2, **options), callbacks=[SavesAt(tmp_path)])
    assert complete == first + second
    assert first != second, "each epoch has another order"
    here, total = len(first), len(complete)
    for step in (2, here + 1) if options else range(1, total):
        assert fit(make(batch_size=2, **options), tmp_path / f"{step}.ckpt", seed=99) == complete[step:], step


@pytest.mark.processes
def test_two_ranks_read_what_one_process_reads_and_resume(tmp_path):
    both = ranks(2, fit_all, tmp_path)
    rest = ranks(2, fit_all, tmp_path, True)
    for name, make in MAKE.items():
        (one, epochs), (two, epochs_too) = (found[name] for found in both)
        assert epochs == epochs_too
        expected = [
            _samples(batch)
            for epoch in plain(make(batch_size=4 if name in IS_MAP else 2, drop_last=True))
            for batch in epoch
        ]
        steps = [sorted(_samples(a) + _samples(b)) for a, b in zip(one, two, strict=True)]
        if name in IS_MAP:
            assert steps == [sorted(batch) for batch in expected], name
        else:
            read = [batch for pair in zip(one, two, strict=True) for batch in map(_samples, pair)]
            assert len(expected) - len(read) <= 2, "an incomplete round of each epoch is dropped"
            assert [batch for batch in expected if batch in read] == read, name
        assert [found[name][0] for found in rest] == [one[STEP:], two[STEP:]], name


def _samples(batch):
    return batch if isinstance(batch, list) else batch["input_ids"]
