"""Seeds reach every generator, and the state of all generators can be saved and restored."""

from __future__ import annotations

import os
import random

import numpy
import pytest
import torch

from lightlib.data.seed import choose_seed, isolate_rng, rng_state, seed_everything, seed_was_chosen, set_rng_state
from lightlib.errors import MisconfigurationException


def draw():
    """One number of each generator."""
    return random.random(), float(numpy.random.rand()), torch.rand(1).item()


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS", "LIGHTLIB_CHOSEN_SEED", "RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)


class TestSeedEverything:
    def test_every_generator(self):
        assert seed_everything(3) == 3
        first = draw()
        torch.rand(5)
        seed_everything(3)
        assert draw() == first

    def test_equals_seeding_by_hand(self):
        seed_everything(7)
        drawn = draw()
        random.seed(7)
        numpy.random.seed(7)
        torch.manual_seed(7)
        assert draw() == drawn

    def test_the_environment_is_told_and_asked(self):
        seed_everything(5, workers=True)
        assert (os.environ["PL_GLOBAL_SEED"], os.environ["PL_SEED_WORKERS"]) == ("5", "1")
        assert seed_everything() == 5

    def test_the_default_is_zero(self):
        assert seed_everything() == 0

    @pytest.mark.parametrize("seed", [0, "12", 2**32 - 1, numpy.int64(9)])
    def test_what_a_seed_may_be(self, seed):
        assert seed_everything(seed) == int(seed)

    @pytest.mark.parametrize("seed", [-1, 2**32, "x", 1.5, True, [1]])
    def test_what_it_may_not_be(self, seed):
        with pytest.raises(MisconfigurationException, match=r"seed_everything got the seed .*\n.*from 0 to 4294967295"):
            seed_everything(seed)

    def test_a_wrong_seed_of_the_environment_is_not_replaced_silently(self, monkeypatch):
        monkeypatch.setenv("PL_GLOBAL_SEED", "eleven")
        with pytest.raises(
            MisconfigurationException, match="the environment variable PL_GLOBAL_SEED got the seed 'eleven'"
        ):
            seed_everything()

    def test_says_it_once_and_only_when_wanted(self, caplog):
        with caplog.at_level("INFO", logger="lightlib"):
            seed_everything(4)
            seed_everything(4, verbose=False)
        assert caplog.messages == ["Seed set to 4"]


class TestState:
    def test_round_trip(self):
        state = rng_state()
        first = draw()
        set_rng_state(state)
        assert draw() == first

    def test_numpy_legacy_gaussian_is_part_of_it(self):
        numpy.random.randn()
        state = rng_state()
        first = numpy.random.randn()
        set_rng_state(state)
        assert numpy.random.randn() == first

    def test_can_be_saved_as_plain_values(self, tmp_path):
        random.gauss(0, 1)
        state = rng_state()
        torch.save(state, tmp_path / "state")
        first = draw(), random.gauss(0, 1)
        set_rng_state(torch.load(tmp_path / "state", weights_only=True))
        assert (draw(), random.gauss(0, 1)) == first

    def test_a_state_without_numpy_leaves_numpy_alone(self):
        state = {name: value for name, value in rng_state().items() if name != "numpy"}
        numpy.random.seed(1)
        set_rng_state(state)
        drawn = numpy.random.rand()
        numpy.random.seed(1)
        assert numpy.random.rand() == drawn


class TestIsolate:
    def test_nothing_drawn_inside_has_an_effect(self):
        state = rng_state()
        first = draw()
        set_rng_state(state)
        with isolate_rng():
            seed_everything(99, verbose=False)
            draw()
        assert draw() == first

    def test_after_an_error_too(self):
        state = rng_state()
        first = draw()
        set_rng_state(state)
        with pytest.raises(ZeroDivisionError), isolate_rng():
            raise ZeroDivisionError(draw())
        assert draw() == first


class TestChooseSeed:
    """A random seed, when none in particular is wanted."""

    def test_another_one_each_time(self):
        seeds = {seed_everything(choose_seed(), verbose=False) for _ in range(5)}
        assert len(seeds) == 5
        assert seed_was_chosen()

    def test_what_the_environment_asks_for(self, monkeypatch):
        monkeypatch.setenv("PL_GLOBAL_SEED", "11")
        assert choose_seed() == 11
        assert not seed_was_chosen()

    def test_a_wrong_one_is_refused(self, monkeypatch):
        monkeypatch.setenv("PL_GLOBAL_SEED", "eleven")
        with pytest.raises(MisconfigurationException, match="PL_GLOBAL_SEED got the seed 'eleven'"):
            choose_seed()

    @pytest.mark.parametrize(
        ("rank", "run", "others"),
        [
            ("RANK", "MASTER_PORT", {"WORLD_SIZE": "2", "MASTER_ADDR": "there"}),
            ("SLURM_PROCID", "SLURM_STEP_ID", {"SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", "SLURM_NNODES": "1"}),
        ],
    )
    def test_processes_of_one_launcher_have_one(self, monkeypatch, rank, run, others):
        for name, value in {**others, rank: "0", run: "1234"}.items():
            monkeypatch.setenv(name, value)
        first = choose_seed()
        monkeypatch.delenv("LIGHTLIB_CHOSEN_SEED")
        monkeypatch.setenv(rank, "1")
        assert choose_seed() == first
        monkeypatch.setenv(run, "1235")
        assert choose_seed() != first

    def test_a_process_that_another_has_started_has_its_seed(self, monkeypatch):
        seed = seed_everything(choose_seed(), verbose=False)
        for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "there", "MASTER_PORT": "1"}.items():
            monkeypatch.setenv(name, value)
        assert choose_seed() == seed

    def test_a_seed_that_is_asked_for_afterwards(self):
        seed_everything(choose_seed(), verbose=False)
        seed_everything(4, verbose=False)
        assert not seed_was_chosen()


class TestStateOfNumpy:
    """The state is the one that NumPy returns, whether it is taken from the last time or not."""

    def drawn(self, draw):
        before = rng_state()
        draw()
        after = rng_state()
        assert after["numpy"][1:3] == [numpy.random.get_state()[1].astype("<u4").tobytes(), numpy.random.get_state()[2]]
        following = numpy.random.randn(3).tolist()
        set_rng_state(after)
        assert numpy.random.randn(3).tolist() == following
        return before["numpy"], after["numpy"]

    @pytest.mark.parametrize("seconds", [0, 1, 2, 3])
    def test_a_second_normal_number_is_part_of_it(self, seconds):
        numpy.random.seed(3)
        for _ in range(seconds):  # of two normal numbers the second changes no word of the generator
            before, after = self.drawn(numpy.random.randn)
            assert before != after

    def test_it_is_new_after_each_draw_and_each_seed(self):
        numpy.random.seed(3)
        before, after = self.drawn(numpy.random.rand)
        assert before != after
        before, after = self.drawn(lambda: None)
        assert before == after
        before, after = self.drawn(lambda: numpy.random.seed(4))
        assert before != after

    def test_a_changed_copy_changes_no_later_state(self):
        numpy.random.seed(3)
        rng_state()["numpy"].clear()
        assert len(rng_state()["numpy"]) == 5

    def test_it_is_not_read_again_before_it_changes(self, monkeypatch):
        numpy.random.seed(3)
        rng_state()
        monkeypatch.setattr(numpy.random, "get_state", None)
        rng_state()
