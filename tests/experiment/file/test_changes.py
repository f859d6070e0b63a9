"""Changes to the file of an experiment that has begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightlib.config.yaml.document import ConfigError
from lightlib.experiment.file import Change, changed, read, save
from lightlib.experiment.file.changes import MAY_CHANGE
from tests.experiment.given import read_fragment

BEGUN = """\
name: digits
searcher: {name: random, metric: loss, max_trials: 8, max_length: {batches: 900}}
checkpoint_storage: {type: s3, bucket: a, secret_key: abcd}
reproducibility: {experiment_seed: 7}
hyperparameters: {global_batch_size: 64, lr: {type: log, minval: -4, maxval: -1}}
"""
ALLOWED = "name, description, labels, searcher.max_concurrent_trials, resources.max_slots, resources.priority, "
ALLOWED += (
    "resources.weight, resources.resource_pool, max_restarts, log_policies, retention_policy.log_retention_days, "
)
ALLOWED += "checkpoint_storage.save_experiment_best, checkpoint_storage.save_trial_best, "
ALLOWED += "checkpoint_storage.save_trial_latest"


def changes(*overrides: str, continued: bool = False) -> tuple[Change, ...]:
    return changed(read_fragment(BEGUN), read_fragment(BEGUN, overrides), continued=continued)


def refused(*overrides: str, continued: bool = False) -> tuple[str, str, str]:
    with pytest.raises(ConfigError) as caught:
        changes(*overrides, continued=continued)
    what, _, rest = str(caught.value).partition("\n  Expected: ")
    expected, _, fix = rest.partition("\n  Fix: ")
    return what, expected, fix


def test_the_same_file_has_no_changes() -> None:
    assert changes() == ()


@pytest.mark.parametrize(
    ("override", "change"),
    [
        ("name=other", Change("name", "digits", "other")),
        ("description=new", Change("description", None, "new")),
        ("labels=[a]", Change("labels", None, ["a"])),
        ("searcher.max_concurrent_trials=2", Change("searcher.max_concurrent_trials", 16, 2)),
        ("resources.max_slots=2", Change("resources.max_slots", None, 2)),
        ("resources.priority=2", Change("resources.priority", None, 2)),
        ("resources.weight=2", Change("resources.weight", 1, 2)),
        ("resources.resource_pool=big", Change("resources.resource_pool", None, "big")),
        ("max_restarts=0", Change("max_restarts", 5, 0)),
        ("retention_policy.log_retention_days=9", Change("retention_policy.log_retention_days", -1, 9)),
        ("checkpoint_storage.save_experiment_best=1", Change("checkpoint_storage.save_experiment_best", 0, 1)),
        ("checkpoint_storage.save_trial_best=2", Change("checkpoint_storage.save_trial_best", 1, 2)),
        ("checkpoint_storage.save_trial_latest=2", Change("checkpoint_storage.save_trial_latest", 1, 2)),
    ],
)
def test_a_key_that_may_change(override: str, change: Change) -> None:
    assert changes(override) == (change,)


def test_log_policies_may_change_and_every_allowed_key_is_tested() -> None:
    (change,) = changes("log_policies=[{name: NaN, pattern: nan}]")
    assert change.key == "log_policies"
    assert ", ".join(MAY_CHANGE) == ALLOWED
    assert len(MAY_CHANGE) == 14


@pytest.mark.parametrize(
    ("override", "line", "fix"),
    [
        (
            "searcher.max_length={epochs: 5}",
            "'searcher.max_length' (--config searcher.max_length=…) is now {'epochs': 5} instead of {'batches': 900}",
            "searcher.max_length: {'batches': 900}",
        ),
        (
            "searcher.max_trials=4",
            "'searcher.max_trials' (--config searcher.max_trials=…) is now 4 instead of 8",
            "searcher.max_trials: 8",
        ),
        (
            "hyperparameters.lr.minval=-5",
            "'hyperparameters.lr.minval' (--config hyperparameters.lr.minval=…) is now -5 instead of -4",
            "hyperparameters.lr.minval: -4",
        ),
        (
            "hyperparameters.momentum=0.9",
            "'hyperparameters.momentum' (--config hyperparameters.momentum=…) is now 0.9 instead of nothing",
            "hyperparameters.momentum: nothing",
        ),
        (
            "resources.slots_per_trial=2",
            "'resources.slots_per_trial' (--config resources.slots_per_trial=…) is now 2 instead of 1",
            "resources.slots_per_trial: 1",
        ),
        (
            "reproducibility.experiment_seed=8",
            "'reproducibility.experiment_seed' (--config reproducibility.experiment_seed=…) is now 8 instead of 7",
            "reproducibility.experiment_seed: 7",
        ),
        (
            "entrypoint=model:Other",
            "'entrypoint' (--config entrypoint=…) is now 'model:Other' instead of 'model:Classifier'",
            "entrypoint: 'model:Classifier'",
        ),
        (
            "checkpoint_storage.secret_key=efgh",
            "'checkpoint_storage.secret_key' (--config checkpoint_storage.secret_key=…) is now '***' instead of '***'",
            "checkpoint_storage.secret_key: '***'",
        ),
    ],
)
def test_a_key_that_may_not_change(override: str, line: str, fix: str) -> None:
    what, expected, found = refused(override, "max_restarts=1")
    assert what == f"The experiment 'digits' has begun, and {line}."
    assert expected == f"the settings with which it began; only these may change: {ALLOWED}."
    assert found == f"restore {fix}; or give the file another `name:`, which begins a new experiment."


def test_all_refused_keys_are_named_with_file_and_line() -> None:
    new = BEGUN.replace("900", "100").replace("-4", "-5")
    with pytest.raises(ConfigError) as caught:
        changed(read_fragment(BEGUN), read_fragment(new))
    assert str(caught.value).partition("\n")[0] == (
        "The experiment 'digits' has begun, and 'hyperparameters.lr.minval' (mnist.yaml, line 5) is now -5 instead of"
        " -4; 'searcher.max_length' (mnist.yaml, line 2) is now {'batches': 100} instead of {'batches': 900}."
    )


def test_more_trials_need_to_be_continued() -> None:
    what, _, fix = refused("searcher.max_trials=16")
    assert what.endswith("'searcher.max_trials' (--config searcher.max_trials=…) is now 16 instead of 8.")
    assert fix.startswith("restore searcher.max_trials: 8; or")
    assert changes("searcher.max_trials=16", continued=True) == (Change("searcher.max_trials", 8, 16),)


def test_fewer_trials_are_refused_by_continue_as_well() -> None:
    what, _, _ = refused("searcher.max_trials=4", continued=True)
    assert what.endswith("is now 4 instead of 8.")


def test_a_stored_copy_has_no_changes() -> None:
    config = read_fragment(BEGUN)
    save(config, "experiment.yaml")
    stored = read("experiment.yaml")
    assert stored.checkpoint_storage.secret_key == "***"
    assert changed(stored, config) == ()
    assert changed(config, stored) == ()


@pytest.mark.parametrize(
    "secret",
    [
        "environment.environment_variables=[API_KEY=abc]",
        "environment.environment_variables={cpu: [API_KEY=abc, A=b], cuda: [PASSWORD=abc]}",
        "environment.registry_auth={serveraddress: a.io, username: me, password: abc}",
        "data.secrets={pins: [1, 2], pin: 3}",
        "hyperparameters.api_key=abc",
        "hyperparameters.stores=[{url: 's3://me:abc@host', password: abc}]",
    ],
)
def test_a_secret_that_is_masked_in_the_stored_copy_is_no_change(secret: str) -> None:
    config = read_fragment(BEGUN, [secret])
    save(config, "experiment.yaml")
    assert "abc" not in Path("experiment.yaml").read_text()
    assert changed(read("experiment.yaml"), config) == ()


def test_a_seed_that_was_drawn_is_no_change() -> None:
    file = read_fragment("")
    begun = file.with_seed()
    seed = begun.reproducibility.experiment_seed
    assert seed is not None
    assert 0 <= seed <= 2147483647
    assert begun.with_seed() == begun
    assert changed(begun, file) == ()


def test_a_masked_value_is_only_equal_where_it_is_a_secret() -> None:
    what, _, _ = refused("checkpoint_storage.bucket='***'")
    assert what.endswith("is now '***' instead of 'a'.")


def test_a_bool_is_no_int() -> None:
    old, new = (read_fragment(BEGUN, [f"hyperparameters.flag={value}"]) for value in ("1", "true"))
    with pytest.raises(ConfigError, match=r"'hyperparameters.flag' .* is now True instead of 1"):
        changed(old, new)
