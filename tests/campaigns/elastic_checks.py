"""A plain loop over the same samples on one device, and the comparison of a run with it."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import default_collate

from tests.campaigns.elastic_program import (
    BATCHES,
    EPOCHS,
    NOTES,
    Elastic,
    interval,
    loaders,
    losses_of,
    model,
    optimizer_of,
)
from tests.campaigns.program import OUTCOME

TOLERANCE = 1e-6  # relative


@dataclass
class Course:
    """The course of a training.

    Attributes:
        ids: The samples of each optimizer step.
        losses: The mean loss of each step.
        rates: Its learning rate.
        epochs: Its epoch.
        validations: The metrics of each validation, by the number of steps before it.
        weights: The weights at the end.
        worlds: With how many processes each step was made.
    """

    ids: list[list[int]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    validations: dict[int, dict[str, float]] = field(default_factory=dict)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    worlds: list[int] = field(default_factory=list)


def plain_course(how: Elastic) -> Course:
    """Train in a plain loop of torch, with the global batch size on one device."""
    course, net = Course(), model(how)
    optimizer, schedule = optimizer_of(how, net.parameters())
    torch.manual_seed(5)
    batch_size = how.samples if how.data != "stream" else min(BATCHES[how.batches][1], how.samples)
    train, validation = loaders(how, batch_size)
    for epoch in range(EPOCHS):
        if how.data == "stream":
            train.dataset.set_epoch(epoch)
        for batch in _batches(how, train):
            losses, ids = losses_of(net, batch)
            course.rates.append(optimizer.param_groups[0]["lr"])
            course.epochs.append(epoch)
            course.ids.append(ids)
            course.losses.append(losses.mean().item())
            optimizer.zero_grad()
            losses.mean().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if len(course.ids) % interval(how) == 0:
                course.validations[len(course.ids)] = _validated(net, validation)
    course.weights = {f"model.{name}": value.detach() for name, value in net.named_parameters()}
    return course


def _batches(how: Elastic, train: Any) -> Iterator[Any]:
    """Return batches of the global batch size."""
    if how.data == "map":
        yield from train
        return
    if how.data == "stream":  # workers share it out in batches
        samples = [sample for batch in train for sample in zip(*batch, strict=True)]
        for first in range(0, len(samples), how.samples):
            yield default_collate(samples[first : first + how.samples])
        return
    one, other = iter(train["one"]), iter(train["other"])
    for batch in islice(one, len(train["one"])):  # not past its end, where a sampler draws
        if (second := next(other, None)) is None:  # the shorter loader starts again
            other = iter(train["other"])
            second = next(other)
        yield {"one": batch, "other": second}


@torch.no_grad()
def _validated(net: torch.nn.Module, validation: Any) -> dict[str, float]:
    """Return the metrics over all validation samples."""
    batches = list(validation)
    x, y = torch.cat([batch[0] for batch in batches]), torch.cat([batch[1] for batch in batches])
    logits = net(x)
    right = logits.argmax(1) == y
    classes = [right[y == label].double().mean().item() for label in y.unique().tolist()]
    return {"val_loss": cross_entropy(logits, y).item(), "val_accuracy": sum(classes) / len(classes)}


def course_of(where: Path) -> Course:
    """Return the course that led to the last weights: of each step only the last time that it was made."""
    course, steps = Course(), collections.defaultdict[int, list[dict[str, Any]]](list)
    for line in (where / NOTES).read_text().splitlines():
        note = json.loads(line)
        kind = steps[note["step"]] if "ids" in note else None
        if kind is None:
            course.validations[note["step"]] = note["validation"]
        else:
            kind.append(note)
    for step in range(max(steps, default=-1) + 1):
        last = max((note["attempt"] for note in steps[step]), default=0)
        notes = [note for note in steps[step] if note["attempt"] == last]
        course.ids.append([number for note in notes for number in note["ids"]])
        course.losses.append(sum(note["loss"] for note in notes) / max(1, len(course.ids[-1])))
        course.rates.append(notes[0]["rate"] if notes else 0.0)
        course.epochs.append(notes[0]["epoch"] if notes else -1)
        course.worlds.append(notes[0]["world"] if notes else 0)
    if (where / OUTCOME).exists():
        course.weights = torch.load(where / OUTCOME)
    return course


def problems(how: Elastic, plain: Course, found: Course) -> tuple[list[str], float]:
    """Return the differences of a run from the plain loop, and the largest relative error of a number."""
    lines, errors = list(_samples(how, plain, found)), []
    for name in ("losses", "rates"):
        errors += [
            (_relative(*pair), f"{name} of step {step}: {pair[0]!r} expected, {pair[1]!r} found")
            for step, pair in enumerate(zip(getattr(plain, name), getattr(found, name), strict=False))
        ]
    if plain.validations.keys() != found.validations.keys():
        lines.append(f"validations after {sorted(plain.validations)} steps expected, {sorted(found.validations)} found")
    for step in plain.validations.keys() & found.validations.keys():
        for name, value in plain.validations[step].items():
            there = found.validations[step].get(name, float("nan"))
            errors.append((_relative(value, there), f"{name} after {step} steps: {value!r} expected, {there!r} found"))
    if plain.weights.keys() - found.weights.keys():
        lines.append(f"weights: {sorted(plain.weights)} expected, {sorted(found.weights)} found")
    for name in plain.weights.keys() & found.weights.keys():
        errors.append((_distance(plain.weights[name], found.weights[name]), f"weights of {name}"))
    lines += [f"{text} (relative error {error:.1e})" for error, text in errors if not error <= TOLERANCE]
    return lines, max(error for error, _ in errors)


def _samples(how: Elastic, plain: Course, found: Course) -> Iterator[str]:
    if len(plain.ids) != len(found.ids):
        yield f"{len(plain.ids)} steps expected, {len(found.ids)} found"
    for step, (wanted, had) in enumerate(zip(plain.ids, found.ids, strict=False)):
        if sorted(wanted) != sorted(had):
            more, less = collections.Counter(had), collections.Counter(wanted)
            few, many = sorted((less - more).elements()), sorted((more - less).elements())
            yield f"samples of step {step} ({len(had)}, {len(wanted)} expected): {few} are missing, {many} are too many"
    used = collections.Counter(
        (epoch, number) for epoch, ids in zip(found.epochs, found.ids, strict=True) for number in ids
    )
    twice = [key for key, times in used.items() if times > 1] if how.data != "combined" else []
    each = BATCHES[how.batches][2] if how.batches != "dropping" else how.steps // EPOCHS * how.samples
    if twice or len(used) != EPOCHS * each:
        yield f"of {EPOCHS} × {each} samples {len(used)} were used; more than once: {twice[:10]}"  # noqa: RUF001  a multiplication sign is meant


def _relative(expected: float, found: float) -> float:
    return abs(expected - found) / max(abs(expected), abs(found), 1e-6)


def _distance(expected: torch.Tensor, found: torch.Tensor) -> float:
    """Return the largest difference of two tensors, relative to their largest element."""
    return float((expected.double() - found.double()).abs().max() / expected.double().abs().max())


def changes_of(course: Course) -> Mapping[str, int]:
    """Return how often the number of processes changed between two steps that count, by the two numbers."""
    pairs = zip(course.worlds, course.worlds[1:], strict=False)
    return collections.Counter(f"{before} to {after}" for before, after in pairs if before != after)
