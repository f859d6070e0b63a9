"""Synchronous halving: a rung is decided when all its trials have reached it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from lightlib.experiment.searchers.scores import score

__all__ = ["due"]


def due(
    rungs: Sequence[Mapping[int, float]],
    reaching: Mapping[int, int],
    ended: Collection[int],
    divisor: float,
    trials: int,
) -> list[tuple[int, int]]:
    """Return all promotions that a bracket owes: the best of each rung that is full, one of `divisor` and at least one.

    Args:
        rungs: The scores in each rung by trial; of equal ones the trial with the lower number is better. A trial that
            failed counts with the worst score.
        reaching: For each trial, the highest rung that it has reached or trains to.
        ended: Trials that cannot continue: their scores count.
        divisor: One of so many trials is promoted.
        trials: Of the bracket.

    Returns:
        Pairs of a trial and the rung to train to.

    Example:
        >>> due([{0: 0.5, 1: 0.4}, {}], reaching={0: 0, 1: 0}, ended=(), divisor=2, trials=3)
        []
        >>> due([{2: 0.4, 0: 0.5, 1: 0.4}, {}], reaching={0: 0, 1: 0, 2: 0}, ended=(), divisor=2, trials=3)
        [(1, 1)]
    """
    promotions = []
    for rung, values in enumerate(rungs[:-1]):
        if not trials or len(values) < trials:
            break
        in_order = sorted((score(value), trial) for trial, value in values.items())
        best = [trial for _, trial in in_order[: max(int(trials / divisor), 1)]]
        promoted = [trial for trial in best if reaching[trial] > rung or trial not in ended]
        promotions += [(trial, rung + 1) for trial in promoted if reaching[trial] == rung]
        trials = len(promoted)
    return promotions
