"""Loggers of a run that is resumed: their states, and the files that they write."""

from __future__ import annotations

import json
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightlib.loggers import CSVLogger, Fanout, TensorBoardLogger

KINDS = (CSVLogger, TensorBoardLogger)


def saved(*loggers):
    """Save as core does for a checkpoint; return the state after a round trip through JSON."""
    fanout = Fanout(loggers)
    fanout.save()
    return json.loads(json.dumps(fanout.state_dict()))


def resumed(states, *loggers):
    """Restore the loggers as core does before a resumed run; return the first one."""
    Fanout(loggers).load_state_dict(states)
    for logger in loggers:
        logger.prepare()
    return loggers[0]


def begun(logger, **params):
    logger.prepare()
    logger.log_hyperparams(params)
    logger.save()
    return logger


def left(logger):
    """Return the state that an ended run leaves."""
    state = saved(begun(logger))
    logger.finalize("failed")
    return state


def text(logger):
    return Path(logger.log_dir, "metrics.csv").read_bytes()


def scalars(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())
