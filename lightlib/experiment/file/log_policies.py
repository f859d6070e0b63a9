"""The key `log_policies`: patterns in the output of trials, and the action that follows a match."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from typing_extensions import Self

from lightlib.experiment.file import checks
from lightlib.experiment.file.part import Part, key
from lightlib.experiment.file.place import Place

ACTIONS = ("cancel_retries", "exclude_node")
_KEYS = {"name", "pattern", "action"}


def _pattern(value: Any, place: Place) -> str:
    pattern: str = checks.text(".*out of memory.*")(value, place)
    try:
        re.compile(pattern)
    except re.error as error:
        at = "" if error.pos is None else f", at character {error.pos + 1}"
        fix = f"put a backslash before characters that stand for themselves: {place.line(re.escape(pattern))}"
        place.wrong(value, f"a regular expression; {error.msg}{at}.", fix)
    return pattern


def _action(value: Any, place: Place) -> str:
    if isinstance(value, dict) and set(value) == {"type"}:
        value, place = value["type"], place.below("type")
    return str(checks.choice(*ACTIONS)(value, place))


class LogPolicy(Part):
    """A pattern in the output of trials, and the action that follows a match.

    Attributes:
        name: Its label on a trial whose output matches. Default: none.
        pattern: A regular expression, searched in each line. None disables the policy of this name.
        action: ``"cancel_retries"``: a failed trial is not restarted; ``"exclude_node"``: not on this machine.
            Default: only the label.
    """

    section: ClassVar[str] = "log_policies"

    name: str | None = key(checks.text("CUDA OOM"), default=None)
    pattern: str | None = key(_pattern, default=None)
    action: str | None = key(_action, default=None)

    def checked(self, place: Place) -> Self:
        if self.name is None and (self.pattern is None or self.action is None):
            place.refuse(
                "has no 'name'.",
                "a name; without one, both a pattern and an action.",
                f"{place.below('name').key}: CUDA OOM",
            )
        return self


DEFAULTS = (
    LogPolicy(name="CUDA OOM", pattern=".*CUDA out of memory.*"),
    LogPolicy(name="ECC Error", pattern=".*uncorrectable ECC error encountered.*"),
)


def log_policies(value: Any, place: Place) -> tuple[LogPolicy, ...]:
    """Return the policies of the file, then the default ones that it does not name.

    The file has a list, one policy, or a mapping of names to policies.

    Example:
        >>> [one.name for one in log_policies([{"name": "NaN", "pattern": "loss is nan"}], Place("log_policies", {}))]
        ['NaN', 'CUDA OOM', 'ECC Error']
    """
    if isinstance(value, (list, tuple)):
        policies = [LogPolicy.read(entry, place.below(index)) for index, entry in enumerate(value)]
    else:
        entries = checks.mapping(value, place)
        if set(entries) & _KEYS:
            policies = [LogPolicy.read(entries, place)]
        else:
            policies = [_named(name, entry, place.below(name)) for name, entry in entries.items()]
    indices: dict[str, int] = {}
    for index, policy in enumerate(policies):
        if policy.name is not None and policy.name in indices:
            here = place.below(index).below("name")
            here.refuse(f"is {policy.name!r} again.", "each name once.", "rename one of the two policies.")
        indices[policy.name or f"#{index}"] = index
    return (*policies, *(default for default in DEFAULTS if default.name not in indices))


def _named(name: str, value: Any, place: Place) -> LogPolicy:
    entries = {"pattern": value} if isinstance(value, str) else checks.mapping({} if value is None else value, place)
    return LogPolicy.read({"name": name, **entries}, place)
