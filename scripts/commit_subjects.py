"""Check the subjects of new commits: `area: imperative summary`, at most 72 characters."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The last commit before the rule. Subjects up to here are left as they are.
BEFORE_THE_RULE = "0adbf6a"
MAX_LENGTH = 72
SUBJECT = re.compile(r"[a-z][\w./-]*(?:(?:, | and )[a-z][\w ./-]*)*: \S")
# Third person and past tense are the usual slips; a full stop at the end is the other one.
NOT_IMPERATIVE = re.compile(r": (?:\w+ed|adds|fixes|makes|removes|moves|uses|writes|updates|changes|renames|splits) ")


def problems(subject: str) -> Iterator[str]:
    """Yield the reasons why this subject breaks the rule."""
    if len(subject) > MAX_LENGTH:
        yield f"has {len(subject)} characters, at most {MAX_LENGTH}"
    if not SUBJECT.match(subject):
        yield "does not begin with `area: `, in lower case"
    elif subject.endswith(".") or NOT_IMPERATIVE.search(subject):
        yield "is not an imperative without a full stop, such as `core: refuse negative steps`"


def new_subjects(root: Path = ROOT) -> list[str]:
    """Return the subjects of commits since the rule, without merges; none if there is no history."""
    git = ["git", "-C", str(root)]
    known = subprocess.run([*git, "cat-file", "-e", f"{BEFORE_THE_RULE}^{{commit}}"], capture_output=True, check=False)
    if known.returncode:
        return []
    log = [*git, "log", "--no-merges", "--format=%s", f"{BEFORE_THE_RULE}..HEAD"]
    return subprocess.run(log, capture_output=True, text=True, check=True).stdout.splitlines()


def main() -> int:
    """Print each subject that breaks the rule; the exit code is 1 if there is one."""
    found = [f"“{subject}” {why}." for subject in new_subjects() for why in problems(subject)]
    if found:
        fix = "Fix: git commit --amend, or git rebase -i for older ones; the reason goes into the body."
        sys.stderr.write("\n".join([*found, fix]) + "\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
