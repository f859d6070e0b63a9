"""Slots: the option, locks of several workers, killed workers, and the variables of a trial."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lightlib.errors import MisconfigurationException
from lightlib.experiment.machine import slots as module
from lightlib.experiment.machine.slots import Slot, Slots, variables

CUDA = [Slot("cuda", number) for number in range(3)]
TAKES_ONE = """
import sys, time
from pathlib import Path
from lightlib.experiment.machine.slots import Slot, Slots
slots = Slots([Slot("cuda", 0), Slot("cuda", 1)], Path(sys.argv[1]))
print(slots.take(1)[0].number, flush=True)
time.sleep(1e5)
"""


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", *module._JOBS):
        monkeypatch.delenv(name, raising=False)


def machine_with(monkeypatch, gpus=0, cores=2, mps=False):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)


def taken(slots):
    return slots.take(slots.free())


class TestOption:
    @pytest.mark.parametrize(
        ("asked", "numbers"),
        [
            ("auto", [0, 1, 2, 3]),
            (" auto ", [0, 1, 2, 3]),
            ("2", [0, 1]),
            ("4", [0, 1, 2, 3]),
            ("0,1,3", [0, 1, 3]),
            ("3, 0", [3, 0]),
            ("1,", [1]),
            ("0,", [0]),
        ],
    )
    def test_selects(self, asked, numbers, monkeypatch, tmp_path):
        machine_with(monkeypatch, gpus=4)
        slots = Slots.of_machine(asked, tmp_path)
        assert slots.total == len(numbers)
        assert taken(slots) == tuple(Slot("cuda", number) for number in numbers)

    @pytest.mark.parametrize(
        ("asked", "message", "fix"),
        [
            ("5", "--slots is '5', but this machine has 4", "--slots 4, or leave it out"),
            ("0", "no slots", "--slots 0, "),
            ("0,4,7", "no slot 4, 7", "from 0 to 3"),
            ("9,", "no slot 9", "from 0 to 3"),
            ("1,0,1", "a number appears twice", "--slots 1,0"),
            ("1,1", "a number appears twice", "--slots 1,"),
            *(
                (wrong, repr(wrong), "--slots auto")
                for wrong in ("", ",", "all", "-1", "1,,2", "0-3", "²", "1;2", "1.5")
            ),
        ],
    )
    def test_errors_name_the_option_and_the_machine(self, asked, message, fix, monkeypatch, tmp_path):
        machine_with(monkeypatch, gpus=4)
        with pytest.raises(MisconfigurationException) as caught:
            Slots.of_machine(asked, tmp_path)
        what, expected, line = str(caught.value).splitlines()
        assert message in what
        assert "--slots" in what
        assert "This machine has 4 slots, one for each cuda device." in expected
        assert fix in line

    def test_a_machine_with_one_core(self, monkeypatch, tmp_path):
        machine_with(monkeypatch, cores=1)
        with pytest.raises(MisconfigurationException, match=r"has 1 slot, one for each core\."):
            Slots.of_machine("2", tmp_path)

    def test_without_an_accelerator_each_core_is_a_slot(self, monkeypatch, tmp_path):
        machine_with(monkeypatch, cores=3)
        assert taken(Slots.of_machine(locks=tmp_path)) == tuple(Slot("cpu", number) for number in range(3))

    def test_of_an_apple_machine(self, monkeypatch, tmp_path):
        machine_with(monkeypatch, mps=True)
        assert taken(Slots.of_machine(locks=tmp_path)) == (Slot("mps", 0),)

    def test_of_a_system_without_affinities(self, monkeypatch, tmp_path):
        machine_with(monkeypatch)
        monkeypatch.delattr(os, "sched_getaffinity")
        monkeypatch.setattr(os, "cpu_count", lambda: 5)
        assert Slots.of_machine(locks=tmp_path).total == 5


class TestTaking:
    def test_all_or_none(self, tmp_path):
        slots = Slots(CUDA, tmp_path)
        assert slots.take(4) is None
        assert slots.free() == 3
        assert slots.take(2) == (CUDA[0], CUDA[1])
        assert slots.take(2) is None
        assert slots.free() == 1
        assert slots.take(1) == (CUDA[2],)
        assert slots.free() == 0

    def test_none_for_a_trial_on_the_cpu(self, tmp_path):
        slots = Slots(CUDA[:1], tmp_path)
        assert slots.take(0) == ()
        slots.take(1)
        assert slots.take(0) == ()
        slots.give_back(())

    def test_one_given_back_is_taken_again(self, tmp_path):
        slots = Slots(CUDA, tmp_path)
        slots.take(3)
        slots.give_back([CUDA[1]])
        assert slots.take(1) == (CUDA[1],)

    @pytest.mark.parametrize("again", [[CUDA[2]], [CUDA[0], CUDA[2]], [Slot("cpu", 0)]])
    def test_one_that_is_not_taken_cannot_be_given_back(self, again, tmp_path):
        slots = Slots(CUDA, tmp_path)
        slots.take(1)
        with pytest.raises(AssertionError, match="not taken"):
            slots.give_back(again)
        assert slots.free() == 2, "the rest is as it was"

    @pytest.mark.parametrize("flock", [True, False])
    def test_two_workers_never_have_the_same(self, flock, tmp_path, monkeypatch):
        monkeypatch.setattr(module, "_HAS_FLOCK", flock)
        one, two = Slots(CUDA, tmp_path), Slots(CUDA, tmp_path)
        assert one.take(1) == (CUDA[0],)
        assert two.free() == 2
        assert two.take(2) == (CUDA[1], CUDA[2])
        assert (one.free(), one.take(1), two.take(1)) == (0, None, None)
        one.give_back([CUDA[0]])
        assert two.take(1) == (CUDA[0],)
        two.give_back(CUDA)
        assert one.free() == 3

    def test_a_failed_request_holds_nothing(self, tmp_path):
        one, two = Slots(CUDA, tmp_path), Slots(CUDA, tmp_path)
        one.take(1)
        assert two.take(3) is None
        assert one.take(2) == (CUDA[1], CUDA[2])

    def test_a_lock_that_fails_releases_the_rest(self, tmp_path):
        (tmp_path / "cuda-1").mkdir()
        slots = Slots(CUDA, tmp_path)
        with pytest.raises(IsADirectoryError):
            slots.take(2)
        assert Slots(CUDA[:1], tmp_path).take(1) == (CUDA[0],)

    def test_one_given_back_is_free_although_a_forked_process_has_its_file(self, tmp_path):
        one, two = Slots(CUDA[:1], tmp_path), Slots(CUDA[:1], tmp_path)
        one.take(1)
        (release,) = one._taken.values()
        copy = os.dup(release.args[0])  # as a fork has it
        try:
            assert two.take(1) is None
            one.give_back(CUDA[:1])
            assert two.take(1) == (CUDA[0],)
        finally:
            os.close(copy)

    def test_programs_inherit_no_lock(self, tmp_path):
        slots = Slots(CUDA[:1], tmp_path)
        slots.take(1)
        (release,) = slots._taken.values()
        assert not os.get_inheritable(release.args[0])

    @pytest.mark.processes
    def test_a_killed_worker_frees_its_slots(self, tmp_path):
        program = [sys.executable, "-c", TAKES_ONE, str(tmp_path)]
        other = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        try:
            assert other.stdout.readline() == "0\n"
            slots = Slots(CUDA[:2], tmp_path)
            assert slots.free() == 1
            assert slots.take(2) is None
            assert slots.take(1) == (CUDA[1],)
            other.send_signal(signal.SIGKILL)
            other.wait(60)
            assert slots.take(1) == (CUDA[0],)
        finally:
            other.kill()
            other.wait(60)
            other.stdout.close()


class TestDevices:
    """Workers that see different GPUs under the same number."""

    def test_the_device_is_locked_and_not_its_number(self, tmp_path, monkeypatch):
        machine_with(monkeypatch, gpus=2)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
        one = Slots.of_machine(locks=tmp_path)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
        two = Slots.of_machine(locks=tmp_path)
        assert one.take(2) == (CUDA[0], CUDA[1])
        assert two.take(1) == (CUDA[1],), "GPU 6"
        assert sorted(file.name for file in tmp_path.iterdir()) == ["cuda-4", "cuda-5", "cuda-6"]

    def test_so_is_the_core(self, tmp_path, monkeypatch):
        machine_with(monkeypatch)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {2, 7})
        assert Slots.of_machine("1,", tmp_path).take(1) == (Slot("cpu", 1),)
        assert [file.name for file in tmp_path.iterdir()] == ["cpu-7"]

    @pytest.mark.parametrize(
        ("visible", "slots", "expected"),
        [
            (None, CUDA[:1], "0"),
            (None, [CUDA[2], CUDA[0]], "2,0"),
            ("4,5", CUDA[:2], "4,5"),
            ("4, 5", CUDA[1:2], "5"),
            ("GPU-8f1a,GPU-77c2", CUDA[1:2], "GPU-77c2"),
            ("MIG-2e7d", CUDA[:1], "MIG-2e7d"),
        ],
    )
    def test_a_trial_sees_its_gpus(self, visible, slots, expected, monkeypatch):
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert variables(slots) == {"CUDA_VISIBLE_DEVICES": expected}

    def test_rocm_prefers_its_own_variable(self, monkeypatch):
        monkeypatch.setenv("HIP_VISIBLE_DEVICES", "4,5")
        assert variables(CUDA[1:2]) == {"CUDA_VISIBLE_DEVICES": "1"}
        monkeypatch.setattr(torch.version, "hip", "6.2")
        assert variables(CUDA[1:2]) == {"HIP_VISIBLE_DEVICES": "5"}
        assert variables([]) == {"OMP_NUM_THREADS": "1", "HIP_VISIBLE_DEVICES": ""}

    @pytest.mark.parametrize("slots", [[], [Slot("cpu", 0)], [Slot("cpu", 0), Slot("cpu", 1)]])
    def test_a_trial_on_the_cpu_sees_none(self, slots, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
        assert variables(slots) == {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    def test_of_an_apple_machine(self):
        assert variables([Slot("mps", 0)]) == {}


class TestFolder:
    @pytest.fixture(autouse=True)
    def _temporary(self, tmp_path, monkeypatch):
        machine_with(monkeypatch)
        monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path))

    def test_is_of_this_user_alone(self, tmp_path):
        assert Slots.of_machine().take(1)
        (folder,) = tmp_path.iterdir()
        assert folder.name == f"lightlib-slots-{os.getuid()}"
        assert folder.stat().st_mode & 0o777 == 0o700
        assert Slots.of_machine().free() == 1, "the next worker uses the same"

    def test_each_job_of_a_batch_system_has_its_own(self, monkeypatch):
        for job in ("17", "18"):  # both see their GPU as number 0
            monkeypatch.setenv("SLURM_JOB_ID", job)
            assert Slots.of_machine().take(2)

    def test_one_that_another_user_can_write_is_refused(self, tmp_path):
        folder = tmp_path / f"lightlib-slots-{os.getuid()}"
        folder.mkdir()
        folder.chmod(0o777)
        with pytest.raises(MisconfigurationException, match="another user can write it"):
            Slots.of_machine()

    def test_so_is_a_link(self, tmp_path):
        (tmp_path / "theirs").mkdir()
        Path(tmp_path / f"lightlib-slots-{os.getuid()}").symlink_to(tmp_path / "theirs")
        with pytest.raises(MisconfigurationException, match="is a link"):
            Slots.of_machine()
