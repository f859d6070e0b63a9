"""ResumeSource: the checkpoint that a call starts from, found, read and checked first."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightlib.checkpoint import formats
from lightlib.checkpoint.storage.content import FORMAT, OURS
from lightlib.core.progress.states import TrainerFn
from lightlib.core.resume.find import FoundCheckpoint, after_damage, resolve_path
from lightlib.core.resume.options import Resume
from lightlib.errors import ArgumentTypeError, CheckpointError, MisconfigurationException, shown
from lightlib.strategies.extension import Store

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer
    from lightlib.strategies.strategy import Strategy


@dataclass
class ResumeSource:
    """The checkpoint that a call starts from."""

    found: FoundCheckpoint
    content: dict[str, Any] | None
    parts: Resume

    @property
    def continues(self) -> bool:
        """Whether the call continues the run that wrote the checkpoint, with its files and its logs."""
        return self.content is not None and self.found.continues and self.parts.full

    def run_id(self, before: str, strategy: Strategy) -> str:
        """Return the name of the run that continues, or a new one, the same on all processes.

        Args:
            before: Of the run that this Trainer continues without a checkpoint; may be empty.
        """
        label = self.found.label
        if self.continues and label is not None and label.run:
            return label.run
        if self.content is None and before:
            return before
        drawn: str = strategy.broadcast(uuid.uuid4().hex[:16])
        return drawn


def find_origin(
    trainer: Trainer,
    fn: TrainerFn,
    module: Module,
    last_module: bool,
    given: Any,
    weights_only: bool | None,
    resume: Any,
) -> ResumeSource:
    """Find, read and check the checkpoint of a call; all processes call this and get the same answer."""
    parts = Resume.of(resume)
    if resume is not None and given is None:
        raise MisconfigurationException(
            f"fit got resume={shown(resume)}, but no ckpt_path.",
            expected="a checkpoint whose parts are restored.",
            fix='fit(module, ckpt_path="last", resume=…), or leave resume out.',
        )
    if weights_only is not None and not isinstance(weights_only, bool):
        raise ArgumentTypeError(
            f"weights_only is {shown(weights_only)}.", expected="True, False or None.", fix="leave it out."
        )
    checkpoint = _resolved(trainer, fn, last_module, given)
    kind = type(module) if fn is TrainerFn.FITTING and not parts.weights_alone else None
    while checkpoint.path is not None:
        content, error = _read(checkpoint.path, weights_only, kind, parts, trainer.strategy.extension.store)
        errors = trainer.strategy.collectives.all_gather_object(error)
        error = next((failure for failure in errors if failure is not None), None)
        if error is None:
            return ResumeSource(checkpoint, content, parts)
        checkpoint = after_damage(checkpoint, error)
    return ResumeSource(checkpoint, None, parts)


def _resolved(trainer: Trainer, fn: TrainerFn, last_module: bool, ckpt_path: Any) -> FoundCheckpoint:
    """Return the checkpoint to read, or raise why there is none: rank zero decides for all."""
    answer: tuple[FoundCheckpoint | None, Exception | None] = None, None
    if trainer.is_global_zero:
        try:
            answer = resolve_path(trainer, fn, last_module, ckpt_path), None
        except MisconfigurationException as raised:
            answer = None, raised
    checkpoint, error = trainer.strategy.broadcast(answer)
    if checkpoint is None:
        assert error is not None
        raise error
    return checkpoint


def _read(
    path: str, weights_only: bool | None, kind: type | None, parts: Resume, store: Store | None
) -> tuple[dict[str, Any] | None, CheckpointError | None]:
    try:
        if store is not None:
            content = store.load(path, weights_only)
        else:
            content = formats.load(path, "cpu", trust=formats.is_trusted(weights_only))
        if not _is_newer(content):
            check(content, path, kind, parts)
    except CheckpointError as error:
        return None, error.with_traceback(None)
    check(content, path)  # a newer format is not damage: an older checkpoint is no answer to it
    return content, None


def _is_newer(content: Mapping[str, Any]) -> bool:
    """Whether a later version of lightlib wrote a checkpoint, in a form that this one does not know."""
    lightlib_content = content.get(OURS)
    version = lightlib_content.get("format") if isinstance(lightlib_content, Mapping) else None
    return isinstance(version, int) and version > FORMAT


def check(content: Mapping[str, Any], path: Any, resumes: type | None = None, parts: Resume | None = None) -> None:
    """Refuse a checkpoint that cannot be read further, before anything is changed by it.

    Args:
        resumes: The module's class if training resumes from the checkpoint, which takes more than weights.
        parts: The parts to restore. Default: everything.
    """
    lightlib_content = content.get(OURS)
    version = lightlib_content.get("format") if isinstance(lightlib_content, Mapping) else None
    if _is_newer(content):
        raise CheckpointError(
            f"{str(path)!r} has format {version}, which is newer than this version of lightlib.",
            expected=f"a format of at most {FORMAT}.",
            fix="pip install --upgrade lightlib",
        )
    expected: dict[str, tuple[type, ...]] = {}
    if resumes is not None:
        parts = parts or Resume()
        expected |= {"optimizer_states": (list, tuple)} if parts.optimizers else {}
        expected |= {"lr_schedulers": (list, tuple)} if parts.schedules else {}
        expected |= {"callbacks": (Mapping,)} if parts.callbacks else {}
        missing = [key for key in expected if key not in content]
        if missing:
            raise CheckpointError(
                f"The checkpoint holds weights alone: it has no {missing[0]!r} ({str(path)!r}).",
                expected="a checkpoint that was saved with weights_only=False.",
                fix=f"module = {resumes.__name__}.load_from_checkpoint({str(path)!r}), then fit without ckpt_path; or "
                "fit(…, resume='weights').",
            )
    wrong = [key for key, kinds in expected.items() if not isinstance(content[key], kinds)]
    wrong += (
        [OURS] if lightlib_content is not None and (not isinstance(version, int) or isinstance(version, bool)) else []
    )
    if wrong:
        raise CheckpointError(
            f"{str(path)!r} is damaged or from another program: its {wrong[0]!r} is {shown(content[wrong[0]])}.",
            expected="a file that Trainer.save_checkpoint or Lightning wrote.",
            fix="use another checkpoint.",
        )
