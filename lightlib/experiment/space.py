"""Space: the hyperparameters of an experiment: random values, grids, and the numbers of Optuna."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, shown
from lightlib.experiment.leaves import check_new, leaves, placed
from lightlib.experiment.parameters import Const, Number, Parameter, same
from lightlib.experiment.ranges import MOST_POINTS, Double, Int, Log, LogInt

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["Space", "nested", "trial_seed"]


class Suggesting(Protocol):
    """The methods of Optuna's `Trial` that `Space.suggest` calls."""

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1) -> int:
        """Return an int from `low` to `high`."""

    def suggest_float(self, name: str, low: float, high: float, *, step: float | None = None) -> float:
        """Return a float from `low` to `high`."""

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        """Return one of the choices."""


class Space:
    """The hyperparameters of an experiment.

    Keys are dotted: ``optimizer.lr`` is the `lr` in the mapping `optimizer`. Methods return values by dotted key;
    `nested` gives them the nesting of the file. A key whose `when` is not met is absent.

    Args:
        tree: Nested dicts, as YAML gives them. A dict with a `type` (const, int, double, log, log_int or categorical)
            is a hyperparameter, and so is a `Parameter`; other dicts are nesting, and any other value is a
            constant. Dotted keys are the same as nested ones.
        where: Returns the file and line of a dotted key, for errors. Default: unknown.

    Attributes:
        parameters: By dotted key, in the order of a grid: sorted by name, level by level.

    Raises:
        ArgumentTypeError: `tree` is not a dict, or a key is not a string.
        MisconfigurationException: A key is given twice, a hyperparameter is wrong, or `when` can never be met.
        UnknownNameError: A type, a key, or a key in `when` is unknown.

    Example:
        >>> space = Space({"layers": {"type": "int", "minval": 1, "maxval": 2, "count": 2}, "optimizer.lr": 0.1})
        >>> space.grid()
        [{'layers': 1, 'optimizer.lr': 0.1}, {'layers': 2, 'optimizer.lr': 0.1}]
        >>> nested(space.grid()[0])
        {'layers': 1, 'optimizer': {'lr': 0.1}}
    """

    def __init__(self, tree: Mapping[str, Any], where: Callable[[str], str] = lambda key: "") -> None:
        self._where = where
        if not isinstance(tree, Mapping):
            raise ArgumentTypeError(
                f"hyperparameters is {shown(tree)}.",
                expected="a mapping of names to hyperparameters.",
                fix="hyperparameters: {lr: {type: log, minval: -4, maxval: -1}}",
            )
        parameters: dict[str, Parameter] = {}
        for key, leaf in leaves(tree, "", where):
            with placed(where(key)):
                check_new(key, parameters)
            parameters[key] = leaf
        self.parameters = dict(sorted(parameters.items(), key=lambda item: item[0].split(".")))
        for key, parameter in self.parameters.items():
            with placed(where(key)):
                self._check_when(key, parameter)
        self._order = list(self._conditions_first())

    @property
    def searched(self) -> list[str]:
        """The keys of the hyperparameters that are not constants."""
        return [key for key, parameter in self.parameters.items() if not isinstance(parameter, Const)]

    def sample(self, generator: random.Random) -> dict[str, Any]:
        """Return random values.

        Args:
            generator: Its method `random` is called once for each hyperparameter, also for absent ones.

        Example:
            >>> Space({"units": {"type": "int", "minval": 8, "maxval": 64}}).sample(random.Random(1))
            {'units': 15}
        """
        return self.values(self.draw(generator))

    def draw(self, generator: random.Random) -> dict[str, Number]:
        """Return random numbers, as `sample` draws them, for `values`."""
        return {key: self.parameters[key].draw(generator) for key in self.searched}

    def sample_trial(self, experiment_seed: int, trial: int) -> dict[str, Any]:
        """Return the random values of one trial, which depend on the seed and the number of the trial only.

        Args:
            experiment_seed: The seed of the experiment.
            trial: The number of the trial, from 0.

        Example:
            >>> Space({"units": {"type": "int", "minval": 8, "maxval": 64}}).sample_trial(0, 7)
            {'units': 38}
        """
        return self.values(self.draw_trial(experiment_seed, trial))

    def draw_trial(self, experiment_seed: int, trial: int, again: int = 0) -> dict[str, Number]:
        """Return the random numbers of one trial, for `values`.

        Args:
            experiment_seed: The seed of the experiment.
            trial: The number of the trial, from 0.
            again: Greater than 0 for other numbers, in place of a point that was tried before.
        """
        digest = _digest(experiment_seed, f"{trial}/{again}" if again else trial)
        return self.draw(random.Random(int.from_bytes(digest, "big")))  # noqa: S311  # no secret

    def grid(self) -> list[dict[str, Any]]:
        """Return the values of all points of the grid. Keys are sorted by name, and the last key changes fastest.

        Raises:
            MisconfigurationException: A range has neither `count` nor `step`, or the grid has over 1,000,000 points.
        """
        return [self.values(numbers) for numbers in self.grid_numbers()]

    def grid_numbers(self) -> list[dict[str, Number]]:
        """Return the numbers of all points of the grid, in the order of `grid` and with its errors."""
        points: list[dict[str, tuple[int, Number]]] = [{}]
        for key in self._order:
            parameter = self.parameters[key]
            with placed(self._where(key)):
                axis = list(enumerate(parameter.axis(key)))
            extended = []
            for point in points:
                active = self._is_active(
                    parameter, {other: point[other][1] for other in parameter.when if other in point}
                )
                extended += [{**point, key: number} for number in axis] if active else [point]
                if len(extended) > MOST_POINTS:
                    raise _grid_too_large()
            points = extended
        points.sort(key=lambda point: [point[key][0] if key in point else -1 for key in self.parameters])
        searched = self.searched
        return [{key: point[key][1] for key in searched if key in point} for point in points]

    def values(self, numbers: Mapping[str, Number]) -> dict[str, Any]:
        """Return the values that numbers stand for, those of `draw`, of `grid_numbers`, or Optuna's `trial.params`.

        Args:
            numbers: By dotted key: the exponent for log and log_int, the index into `vals` for categorical, else the
                value. Constants and absent keys need none.

        Raises:
            MisconfigurationException: A hyperparameter has no number.
            UnknownNameError: A number has a key that the space lacks.

        Example:
            >>> space = Space({"lr": {"type": "log", "minval": -4, "maxval": -1}, "seed": 3})
            >>> space.values({"lr": -2.0})
            {'lr': 0.01, 'seed': 3}
        """
        for key in numbers:
            if key not in self.parameters:
                raise UnknownNameError("hyperparameter", key, self.parameters, fix="use a key of the file.")
        active = dict(self._active(numbers))
        return {key: self.parameters[key].value(active[key]) for key in self.parameters if key in active}

    def numbers(self, values: Mapping[str, Any], rest: Mapping[str, Number]) -> dict[str, Number]:
        """Return the numbers that stand for values: the inverse of `values`, up to rounding.

        Args:
            values: By dotted key.
            rest: The numbers of the hyperparameters without a value.

        Raises:
            MisconfigurationException: A hyperparameter cannot have its value, or does not exist for these values.
            UnknownNameError: A value has a key that the space lacks.

        Example:
            >>> space = Space({"lr": {"type": "log", "minval": -4, "maxval": -1}, "seed": 3})
            >>> space.numbers({"lr": 0.01}, rest={})
            {'lr': -2.0}
        """
        numbers = dict(rest)
        for key, value in values.items():
            if key not in self.parameters:
                raise UnknownNameError("hyperparameter", key, self.parameters, fix="use a key of the file.")
            number = self.parameters[key].number(value)
            if number is None:
                raise MisconfigurationException(
                    f"Hyperparameter {key!r} is {shown(value)}, which is not in its space.",
                    expected=f"a value of {self.parameters[key]}.",
                    fix="one of these values, or a larger space in the section hyperparameters.",
                )
            numbers[key] = number
        for key in values.keys() - self.values(numbers).keys():
            raise MisconfigurationException(
                f"Hyperparameter {key!r} has a value, and does not exist: its `when` is not met.",
                expected=f"{self.parameters[key].when}.",
                fix=f"no value for {key!r}.",
            )
        return {key: numbers[key] for key in self.searched if key in numbers}

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return Optuna's distributions of the numbers of `values`, for all searched keys.

        Raises:
            MisconfigurationException: Optuna is not installed.
        """
        return {key: self.parameters[key].distribution() for key in self.searched}

    def suggest(self, trial: Suggesting) -> dict[str, Any]:
        """Return the values that an Optuna trial suggests. Absent keys are not suggested.

        Args:
            trial: An `optuna.Trial`. Its `params` afterwards give the same values by `values`.

        Raises:
            MisconfigurationException: Optuna is not installed.
        """
        numbers: dict[str, Number] = {}
        for key in self._order:
            parameter = self.parameters[key]
            if isinstance(parameter, Const):
                numbers[key] = 0
            elif self._is_active(parameter, numbers):
                numbers[key] = _suggested(trial, key, parameter.distribution())
        return self.values(numbers)

    def _active(self, numbers: Mapping[str, Number]) -> Iterator[tuple[str, Number]]:
        active: dict[str, Number] = {}
        for key in self._order:
            parameter = self.parameters[key]
            if not self._is_active(parameter, active):
                continue
            if key not in numbers and not isinstance(parameter, Const):
                raise MisconfigurationException(
                    f"Hyperparameter {key!r} has no number; those with one are {', '.join(numbers) or 'none'}.",
                    expected="a number for each hyperparameter that is not constant and whose `when` is met.",
                    fix=f"add one for {key!r}, or create a new experiment if the file has changed.",
                )
            active[key] = numbers.get(key, 0)
            yield key, active[key]

    def _is_active(self, parameter: Parameter, numbers: Mapping[str, Number]) -> bool:
        return all(
            key in numbers and same(self.parameters[key].value(numbers[key]), value)
            for key, value in parameter.when.items()
        )

    def _check_when(self, key: str, parameter: Parameter) -> None:
        if not isinstance(parameter.when, Mapping):
            raise ArgumentTypeError(
                f"`when` of hyperparameter {key!r} is {shown(parameter.when)}.",
                expected="a mapping of other keys to their values.",
                fix="when: {optimizer: sgd}",
            )
        for other, value in parameter.when.items():
            if other not in self.parameters:
                fix = "use the dotted key of a hyperparameter, from the top of `hyperparameters`."
                raise UnknownNameError(f"key in `when` of hyperparameter {key!r}", other, self.parameters, fix=fix)
            target = self.parameters[other]
            if isinstance(target, (Double, Log, LogInt)):
                raise MisconfigurationException(
                    f"`when` of hyperparameter {key!r} names {other!r}, of type {target.kind}.",
                    expected="a hyperparameter with countable values: const, int or categorical.",
                    fix=f"make {other!r} categorical, or name another key.",
                )
            _check_possible(key, other, target, value)

    def _conditions_first(self) -> Iterator[str]:
        """Yield all keys in their order, except that the keys in `when` come before those that depend on them."""
        waiting, done = dict(self.parameters), set[str]()
        while waiting:
            ready = next((key for key, parameter in waiting.items() if done.issuperset(parameter.when)), None)
            if ready is None:
                keys = ", ".join(map(repr, waiting))
                raise MisconfigurationException(
                    f"The hyperparameters {keys} depend on each other by `when`.",
                    expected="`when` without cycles.",
                    fix="remove `when` from one of them.",
                )
            del waiting[ready]
            done.add(ready)
            yield ready


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted key as nested dicts.

    Example:
        >>> nested({"batch_size": 8, "optimizer.lr": 0.1, "optimizer.momentum": 0.9})
        {'batch_size': 8, 'optimizer': {'lr': 0.1, 'momentum': 0.9}}
    """
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *above, name = key.split(".")
        node = tree
        for group in above:
            node = node.setdefault(group, {})
        node[name] = value
    return tree


def trial_seed(experiment_seed: int, trial: int, again: int = 0) -> int:
    """Return the seed of a trial, from 0 to 2**31 - 1: the first 31 bits of SHA-256 of ``"experiment_seed/trial"``.

    Args:
        experiment_seed: The seed of the experiment.
        trial: The number of the trial, from 0.
        again: Greater than 0 for another seed, that of ``"experiment_seed/trial/again"``.

    Example:
        >>> trial_seed(42, 0)
        1949701853
    """
    return int.from_bytes(_digest(experiment_seed, f"{trial}/{again}" if again else trial)[:4], "big") >> 1


def _digest(experiment_seed: int, trial: int | str) -> bytes:
    return hashlib.sha256(f"{experiment_seed}/{trial}".encode()).digest()


def _check_possible(key: str, other: str, target: Parameter, condition: Any) -> None:
    if isinstance(target, Int):
        possible = type(condition) is int and target.contains(condition)
        allowed = f"{target.minval} to {target.maxval}" + (f" in steps of {target.step}" if target.step else "")
    else:
        values = [target.value(number) for number in target.axis(other)]
        possible = any(same(value, condition) for value in values)
        allowed = ", ".join(map(repr, values))
    if not possible:
        raise MisconfigurationException(
            f"`when` of hyperparameter {key!r} is never met: {other!r} is never {shown(condition)}.",
            expected=f"a value of {other!r}: {allowed}.",
            fix="write one of these values, or add yours to the other hyperparameter.",
        )


def _suggested(trial: Suggesting, key: str, distribution: Any) -> Number:
    name = type(distribution).__name__
    if name == "CategoricalDistribution":
        return trial.suggest_categorical(key, distribution.choices)  # type: ignore[no-any-return]
    if name == "IntDistribution":
        return trial.suggest_int(key, distribution.low, distribution.high, step=distribution.step)
    return trial.suggest_float(key, distribution.low, distribution.high, step=distribution.step)


def _grid_too_large() -> MisconfigurationException:
    return MisconfigurationException(
        f"The grid has more than {MOST_POINTS:,} points.",
        expected=f"a grid of at most {MOST_POINTS:,} points.",
        fix="lower the counts of the hyperparameters, or use the searcher random or adaptive_asha.",
    )
