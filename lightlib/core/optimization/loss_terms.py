"""LossTerms: the sum of several losses that a training step returns by name, each of them logged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lightlib.core.metrics.results import Results
from lightlib.core.metrics.rules import rule_of
from lightlib.errors import MisconfigurationException

_RULE = rule_of("training_step")
# The arguments of `self.log(name, value)`, without the name and the value.
_ARGUMENTS = (False, None, None, None, "mean", False, False, None, True, None, None, False)


class LossTerms:
    """Sums and logs the losses in a dict without a key "loss".

    Args:
        results: Collects the logged values.
    """

    __slots__ = ("_by_user", "_logged", "_results")

    def __init__(self, results: Results) -> None:
        self._results = results
        self._logged: set[str] = set()  # names that are logged here
        self._by_user: set[str] = set()  # names that the user's step logs

    def sum(self, output: Mapping[str, Any], logs: bool) -> Tensor | None:
        """Return the sum of the entries with "loss" in their names; None if there are none.

        Args:
            output: The output of the step. A tensor counts with its mean, a list with the sum of its means.
            logs: Whether to log each entry, and the sum as "loss".
        """
        terms = {name: _term(name, value) for name, value in output.items() if "loss" in str(name)}
        if not terms:
            return None
        first, *rest = terms.values()
        total = first
        for term in rest:
            total = total + term
        if logs:
            self._log({"loss": total, **terms})
        return total

    def _log(self, terms: Mapping[str, Tensor]) -> None:
        results = self._results
        for name in terms:
            if name not in self._logged and name not in self._by_user:
                slot = results.table.slots.get((_RULE.hook, name, results.table.loader))
                # A slot without arguments comes from a checkpoint.
                by_user = slot is not None and slot.arguments is not None
                (self._by_user if by_user else self._logged).add(name)
        with results.within(_RULE):
            for name in [name for name in terms if name in self._logged]:
                results.log(name, terms[name].detach(), *_ARGUMENTS)


def _term(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.mean()
    if isinstance(value, (list, tuple)) and value and all(isinstance(each, Tensor) for each in value):
        total: Tensor = sum((each.mean() for each in value[1:]), value[0].mean())
        return total
    raise MisconfigurationException(
        f"training_step returned a dict whose {name!r} is {value!r:.60} ({type(value).__name__}).",
        expected='a tensor or a list of tensors under each name that contains "loss": without a key "loss" they are '
        "summed.",
        fix="return {'loss': loss, …} with the loss to minimise, or rename the entry.",
    )
