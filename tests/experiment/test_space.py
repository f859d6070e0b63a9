"""Spaces: hyperparameters in a file, random values, and conditions."""

from __future__ import annotations

import random

import pytest

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.experiment.ranges import Double, Int, Log
from lightlib.experiment.space import Space, nested, trial_seed

ALL = {
    "global_batch_size": 64,
    "layers": [16, 8],
    "nothing": None,
    "empty": {},
    "const": {"type": "const", "val": {"a": 1}},
    "count": {"type": "int", "minval": 2, "maxval": 5},
    "dropout": {"type": "double", "minval": 0.2, "maxval": 0.5},
    "optimizer": {
        "init_args": {"lr": {"type": "log", "minval": -4, "maxval": -1}},
        "type": {"type": "categorical", "vals": ["sgd", {"adam": [0.9, 0.999]}, None, True]},
    },
}


def samples(tree, number=200, seed=0):
    generator = random.Random(seed)
    space = Space(tree)
    return [space.sample(generator) for _ in range(number)]


def problem_of(tree, kind=MisconfigurationException):
    with pytest.raises(kind) as caught:
        Space(tree)
    what, expected, fix = str(caught.value).split("\n")
    assert expected.startswith("  Expected: ")
    assert fix.startswith("  Fix: ")
    return what, expected.removeprefix("  Expected: "), fix.removeprefix("  Fix: ")


class TestSamples:
    def test_constants_are_those_of_the_file(self):
        for values in samples(ALL, 3):
            assert values["global_batch_size"] == 64
            assert values["layers"] == [16, 8]
            assert values["nothing"] is None
            assert values["empty"] == {}
            assert values["const"] == {"a": 1}

    def test_an_int_takes_all_values_and_no_more(self):
        assert {values["count"] for values in samples(ALL)} == {2, 3, 4, 5}
        assert {type(values["count"]) for values in samples(ALL)} == {int}

    def test_a_double_fills_its_range(self):
        found = [values["dropout"] for values in samples(ALL)]
        assert 0.2 <= min(found) < 0.21
        assert 0.49 < max(found) <= 0.5

    def test_a_log_is_uniform_in_the_exponent(self):
        found = [values["optimizer.init_args.lr"] for values in samples(ALL, 3000)]
        assert min(found) >= 1e-4
        assert max(found) <= 1e-1
        for below, share in ((1e-3, 1 / 3), (1e-2, 2 / 3)):
            assert sum(value < below for value in found) / 3000 == pytest.approx(share, abs=0.03)

    def test_another_base(self):
        found = [values["x"] for values in samples({"x": {"type": "log", "minval": 3, "maxval": 5, "base": 2}})]
        assert 8 <= min(found) < 9
        assert 30 < max(found) <= 32

    def test_a_categorical_takes_values_of_any_type(self):
        found = [values["optimizer.type"] for values in samples(ALL)]
        assert [value for value in ["sgd", {"adam": [0.9, 0.999]}, None, True] if value not in found] == []

    def test_log_int_gives_ints(self):
        found = {values["x"] for values in samples({"x": {"type": "log_int", "minval": 0, "maxval": 3, "base": 2}})}
        assert found == {1, 2, 3, 4, 5, 6, 7, 8}

    @pytest.mark.parametrize(
        ("given", "possible"),
        [
            ({"type": "int", "minval": 1, "maxval": 8, "step": 3}, {1, 4, 7}),
            ({"type": "double", "minval": 0.1, "maxval": 0.4, "step": 0.1}, {0.1, 0.2, 0.3, 0.4}),
            ({"type": "log", "minval": -3, "maxval": -1, "step": 1}, {0.001, 0.01, 0.1}),
            ({"type": "log_int", "minval": 4, "maxval": 6, "step": 1, "base": 2}, {16, 32, 64}),
        ],
    )
    def test_steps(self, given, possible):
        assert {values["x"] for values in samples({"x": given})} == possible

    def test_they_follow_from_the_generator(self):
        assert samples(ALL, 5) == samples(ALL, 5)
        assert samples(ALL, 5) != samples(ALL, 5, seed=1)

    def test_the_order_of_the_file_does_not_matter(self):
        turned = dict(reversed(ALL.items()))
        assert samples(turned, 5) == samples(ALL, 5)

    def test_a_draw_is_one_call_of_random(self):
        class Half(random.Random):
            def random(self):
                return 0.5

            def getrandbits(self, k):
                raise AssertionError

        values = Space(ALL).sample(Half())
        assert values["count"] == 4
        assert values["dropout"] == 0.35
        assert values["optimizer.init_args.lr"] == pytest.approx(10**-2.5)

    def test_the_bounds_of_the_generator_stay_within_the_range(self):
        class Bound(random.Random):
            def random(self):
                return 1 - 2**-53

        values = Space(ALL).sample(Bound())
        assert values["count"] == 5
        assert values["dropout"] <= 0.5

    def test_a_range_of_one_value(self):
        assert {values["x"] for values in samples({"x": {"type": "double", "minval": 0.1, "maxval": 0.1}})} == {0.1}

    def test_trials_do_not_share_values(self):
        space = Space({"layers": [16, 8], "betas": {"type": "categorical", "vals": [[0.9, 0.99]]}})
        for values in space.sample(random.Random(0)).values():
            values.append(4)
        assert space.sample(random.Random(0)) == {"layers": [16, 8], "betas": [0.9, 0.99]}


class TestTrials:
    def test_the_seed_of_a_trial_is_31_bits_of_a_hash(self):
        # `printf 42/0 | sha256sum` begins with e86c2dbb, and 0xe86c2dbb >> 1 is the number.
        assert trial_seed(42, 0) == 1949701853
        assert trial_seed(42, 1) != trial_seed(42, 0) != trial_seed(43, 0)
        assert all(0 <= trial_seed(seed, 7) < 2**31 for seed in range(100))

    def test_values_follow_from_seed_and_number_alone(self):
        space = Space(ALL)
        first = [space.sample_trial(3, trial) for trial in range(20)]
        assert [Space(ALL).sample_trial(3, trial) for trial in reversed(range(20))] == first[::-1]
        assert first != [space.sample_trial(4, trial) for trial in range(20)]
        assert len({values["dropout"] for values in first}) == 20


class TestKeys:
    def test_dotted_keys_are_nested_keys(self):
        lr = {"type": "log", "minval": -4, "maxval": -1}
        dotted = Space({"optimizer.init_args.lr": lr, "optimizer.name": "sgd"})
        tree = Space({"optimizer": {"init_args": {"lr": lr}, "name": "sgd"}})
        mixed = Space({"optimizer": {"init_args.lr": lr}, "optimizer.name": "sgd"})
        assert dotted.parameters == tree.parameters == mixed.parameters
        assert list(dotted.parameters) == ["optimizer.init_args.lr", "optimizer.name"]

    def test_values_as_nested_dicts(self):
        values = Space(ALL).sample_trial(0, 0)
        tree = nested(values)
        assert tree["optimizer"]["init_args"]["lr"] == values["optimizer.init_args.lr"]
        assert list(tree["optimizer"]) == ["init_args", "type"]
        assert tree["const"] == {"a": 1}
        assert tree["empty"] == {}

    def test_objects_may_stand_for_mappings(self):
        space = Space({"lr": Log(-4, -1), "layers": {"number": Int(1, 3)}, "dropout": Double(0, 1, step=0.5)})
        assert space.searched == ["dropout", "layers.number", "lr"]
        assert space.parameters["lr"] == Space({"lr": {"type": "log", "minval": -4, "maxval": -1}}).parameters["lr"]

    def test_constants_are_not_searched(self):
        assert Space(ALL).searched == ["count", "dropout", "optimizer.init_args.lr", "optimizer.type"]
        assert Space({"a": 1, "b": {"type": "const", "val": 2}}).searched == []

    def test_a_whole_float_is_an_int(self):
        assert samples({"x": {"type": "int", "minval": 1e3, "maxval": 1e3}}, 1) == [{"x": 1000}]


CONDITIONAL = {
    "optimizer": {"type": "categorical", "vals": ["sgd", "adam"]},
    "momentum": {"type": "double", "minval": 0, "maxval": 1, "when": {"optimizer": "sgd"}},
    "nesterov": {"type": "categorical", "vals": [True, False], "when": {"optimizer": "sgd"}},
    "a": {"type": "const", "val": 1, "when": {"nesterov": True}},
}


class TestConditions:
    def test_a_key_is_absent_where_its_condition_is_not_met(self):
        found = samples(CONDITIONAL)
        assert {frozenset(values) for values in found} == {
            frozenset({"optimizer"}),
            frozenset({"optimizer", "momentum", "nesterov"}),
            frozenset({"optimizer", "momentum", "nesterov", "a"}),
        }
        for values in found:
            assert ("momentum" in values) == (values["optimizer"] == "sgd")
            assert ("a" in values) == values.get("nesterov", False)

    def test_a_condition_takes_no_random_numbers_of_other_keys(self):
        plain = {key: {**given, "when": {}} for key, given in CONDITIONAL.items()}
        for conditional, free in zip(samples(CONDITIONAL), samples(plain), strict=True):
            assert conditional.items() <= free.items()

    def test_true_is_not_one(self):
        tree = {"n": {"type": "categorical", "vals": [1, True]}, "x": {"type": "const", "val": 0, "when": {"n": True}}}
        assert all(("x" in values) == (values["n"] is True) for values in samples(tree))

    def test_several_conditions_must_all_be_met(self):
        both = {"optimizer": "sgd", "nesterov": False}
        tree = {**CONDITIONAL, "x": {"type": "int", "minval": 1, "maxval": 9, "when": both}}
        assert all(("x" in values) == (both.items() <= values.items()) for values in samples(tree))

    @pytest.mark.parametrize(
        ("when", "what", "expected", "fix"),
        [
            (
                {"optimiser": "sgd"},
                "Unknown key in `when` of hyperparameter 'x' 'optimiser'. Did you mean 'optimizer'?",
                "one of 'a', 'momentum', 'nesterov', 'optimizer', 'x'.",
                "use the dotted key of a hyperparameter, from the top of `hyperparameters`.",
            ),
            (
                {"optimizer": "sdg"},
                "`when` of hyperparameter 'x' is never met: 'optimizer' is never 'sdg' (str).",
                "a value of 'optimizer': 'sgd', 'adam'.",
                "write one of these values, or add yours to the other hyperparameter.",
            ),
            (
                {"momentum": 0.5},
                "`when` of hyperparameter 'x' names 'momentum', of type double.",
                "a hyperparameter with countable values: const, int or categorical.",
                "make 'momentum' categorical, or name another key.",
            ),
            (
                "sgd",
                "`when` of hyperparameter 'x' is 'sgd' (str).",
                "a mapping of other keys to their values.",
                "when: {optimizer: sgd}",
            ),
            (
                {"x": 3},
                "The hyperparameters 'x' depend on each other by `when`.",
                "`when` without cycles.",
                "remove `when` from one of them.",
            ),
        ],
    )
    def test_mistakes(self, when, what, expected, fix):
        tree = {**CONDITIONAL, "x": {"type": "int", "minval": 1, "maxval": 9, "when": when}}
        assert problem_of(tree) == (what, expected, fix)

    def test_a_condition_on_an_int(self):
        n = {"type": "int", "minval": 1, "maxval": 5, "step": 2}
        assert "n" in Space({"n": n, "x": {"type": "const", "val": 1, "when": {"n": 3}}}).parameters
        what, expected, _ = problem_of({"n": n, "x": {"type": "const", "val": 1, "when": {"n": 4}}})
        assert what == "`when` of hyperparameter 'x' is never met: 'n' is never 4 (int)."
        assert expected == "a value of 'n': 1 to 5 in steps of 2."

    def test_a_group_has_no_condition(self):
        what, expected, fix = problem_of({"sgd": {"when": {"a": 1}, "momentum": 0.9}})
        assert what == "'sgd' has `when` but no type: it groups 'when', 'momentum'."
        assert expected == "`when` within a hyperparameter, next to its type."
        assert fix == "move `when` into each hyperparameter below 'sgd'."


RATE = {"type": "log", "minval": -4, "maxval": -1}
EXAMPLES = {
    "int": "for example {}: {type: int, minval: 1, maxval: 8}",
    "double": "for example {}: {type: double, minval: 0.0, maxval: 0.5}",
    "log": "for example {}: {type: log, minval: -5, maxval: -1, base: 10}",
    "log_int": "for example {}: {type: log_int, minval: 4, maxval: 8, base: 2}",
    "categorical": "for example {}: {type: categorical, vals: [16, 32, 64]}",
}


class TestMistakes:
    @pytest.mark.parametrize(
        ("given", "problem", "expected"),
        [
            ({"type": "int", "minval": 3, "maxval": 1}, "minval is 3, above maxval 1", "minval <= maxval."),
            ({"type": "double", "minval": 3, "maxval": 1}, "minval is 3, above maxval 1", "minval <= maxval."),
            ({"type": "int", "minval": 0.5, "maxval": 1}, "minval is 0.5 (float)", "an int."),
            ({"type": "int", "minval": False, "maxval": 1}, "minval is False (bool)", "an int."),
            ({"type": "double", "minval": 0, "maxval": "1e-3"}, "maxval is '1e-3' (str)", "a finite number."),
            ({"type": "double", "minval": 0, "maxval": float("inf")}, "maxval is inf (float)", "a finite number."),
            ({"type": "double", "minval": None, "maxval": 1}, "minval is None (NoneType)", "a finite number."),
            ({"type": "double", "minval": 0, "maxval": 1, "step": 0}, "step is 0", "a step > 0."),
            ({"type": "int", "minval": 0, "maxval": 4, "step": 1.5}, "step is 1.5 (float)", "an int."),
            ({"type": "int", "minval": 0, "maxval": 4, "count": 0}, "count is 0 (int)", "an int from 1 to 1,000,000."),
            ({**RATE, "count": 2.0}, "count is 2.0 (float)", "an int from 1 to 1,000,000."),
            ({**RATE, "base": 1}, "base is 1 (int)", "a finite base > 0 that is not 1."),
            ({**RATE, "base": -2}, "base is -2 (int)", "a finite base > 0 that is not 1."),
            (
                {"type": "log", "minval": -4, "maxval": 400},
                "10 ** 400 is inf",
                "exponents in minval and maxval, not the values themselves.",
            ),
            (
                {"type": "log_int", "minval": -4, "maxval": 4},
                "10 ** -4 is 0.0001",
                "exponents in minval and maxval, not the values themselves.",
            ),
            ({"type": "categorical", "vals": []}, "vals is empty", "a list with at least one value."),
            ({"type": "categorical", "vals": "sgd"}, "vals is 'sgd' (str)", "a list with at least one value."),
        ],
    )
    def test_values(self, given, problem, expected):
        what, *rest = problem_of({"model": {"x": given}})
        assert what == f"Hyperparameter 'model.x' of type {given['type']}: {problem}."
        assert rest == [expected, EXAMPLES[given["type"]].replace("{}", "model.x", 1)]

    def test_an_object_is_checked_too(self):
        what, _, _ = problem_of({"lr": Log(-1, -4)})
        assert what == "Hyperparameter 'lr' of type log: minval is -1, above maxval -4."

    def test_val_for_vals(self):
        assert problem_of({"a": {"b": {"type": "categorical", "val": [1, 2]}}}, UnknownNameError) == (
            "Unknown key of hyperparameter 'a.b' (type categorical) 'val'. Did you mean 'vals'?",
            "one of 'vals', 'when'.",
            "a.b: {type: categorical, vals: [16, 32, 64]}",
        )

    @pytest.mark.parametrize(
        ("given", "meant"),
        [
            ("doubel", "double"),
            ("catagorical", "categorical"),
            ("Log", "log"),
            ("float", "double"),
            ("uniform", "double"),
        ],
    )
    def test_types(self, given, meant):
        what, expected, fix = problem_of({"a.b": {"type": given, "minval": 1}}, UnknownNameError)
        assert what == f"Unknown type of hyperparameter 'a.b' {given!r}. Did you mean {meant!r}?"
        assert expected == "one of 'categorical', 'const', 'double', 'int', 'log', 'log_int'."
        assert fix.startswith("a.b: {type: double, minval: 0.0, maxval: 0.5}, or for a constant named type: ")

    def test_a_type_that_is_a_list(self):
        what, _, _ = problem_of({"a": {"type": ["int"]}}, UnknownNameError)
        assert what.startswith("Unknown type of hyperparameter 'a' ['int'].")

    def test_a_constant_may_be_called_type(self):
        space = Space({"optimizer": {"type": {"type": "const", "val": "adam"}}})
        assert space.sample_trial(0, 0) == {"optimizer.type": "adam"}

    @pytest.mark.parametrize(("given", "meant"), [("min", "minval"), ("maxvl", "maxval"), ("Count", "count")])
    def test_keys_of_a_range(self, given, meant):
        what, _, fix = problem_of({"n": {"type": "int", "minval": 1, "maxval": 2, given: 1}}, UnknownNameError)
        assert what == f"Unknown key of hyperparameter 'n' (type int) {given!r}. Did you mean {meant!r}?"
        assert fix == "n: {type: int, minval: 1, maxval: 8}"

    def test_a_missing_key(self):
        assert problem_of({"n": {"type": "int", "minval": 1}}) == (
            "Hyperparameter 'n' of type int has no maxval.",
            "maxval in each hyperparameter of type int.",
            "n: {type: int, minval: 1, maxval: 8}",
        )

    @pytest.mark.parametrize(
        ("tree", "what"),
        [
            ({"a.b": 1, "a": {"b": 2}}, "Hyperparameter 'a.b' is given twice, as a dotted and as a nested key."),
            ({"a": 1, "a.b": 2}, "Hyperparameter 'a' has a value, but 'a.b' is given too."),
            ({"a.b.c": RATE, "a": {"b": RATE}}, "Hyperparameter 'a.b' has a value, but 'a.b.c' is given too."),
        ],
    )
    def test_a_key_twice(self, tree, what):
        assert problem_of(tree) == (what, "each key once.", "remove one of the two.")

    @pytest.mark.parametrize(
        ("tree", "what"),
        [
            ({1: 2}, "A key of the hyperparameters is 1 (int)."),
            ({"a": {True: 2}}, "A key of the hyperparameters in 'a' is True (bool)."),
            ({"a..b": 2}, "A key of the hyperparameters is 'a..b' (str)."),
            ({"": 2}, "A key of the hyperparameters is '' (str)."),
        ],
    )
    def test_keys_that_are_no_names(self, tree, what):
        assert problem_of(tree, ArgumentTypeError) == (
            what,
            "names, or names joined by dots.",
            "write a name; in YAML put quotes around numbers and around on, off, yes, no.",
        )

    def test_no_mapping(self):
        assert problem_of([1], ArgumentTypeError) == (
            "hyperparameters is [1] (list).",
            "a mapping of names to hyperparameters.",
            "hyperparameters: {lr: {type: log, minval: -4, maxval: -1}}",
        )
