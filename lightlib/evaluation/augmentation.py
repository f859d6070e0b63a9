"""TestTimeAugmentation: merges the outputs of a model for several augmented versions of each batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from lightlib.callbacks.callback import Callback
from lightlib.errors import (
    ArgumentTypeError,
    MisconfigurationException,
    UnknownNameError,
    check_type,
    check_word,
    shown,
    wrong_type,
    wrong_value,
)
from lightlib.evaluation.stages import check_stages, without_hooks_of
from lightlib.tree import map_tensors, tensors_in

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

_Stage = Literal["val", "test", "predict"]
_STAGES: tuple[_Stage, ...] = get_args(_Stage)
_MERGES = ("mean", "max")
_FIX = "TestTimeAugmentation([lambda x: x.flip(-1)])"


class TestTimeAugmentation(Callback):
    """Runs the model on augmented versions of its input too, and gives the step the merged output.

    Whenever a step calls the model, ``self(x)``, it gets ``merge([model(x), undo(model(augment(x))), …])``. So losses,
    logged values, metrics and predictions are those of the merged output, and the module does not change.

    Args:
        augmentations: Functions that return an augmented version of the input of the model; or pairs of one and its
            inverse for outputs, as a mask that was predicted for a flipped image must be flipped back. A model with
            several positional arguments passes all of them, and expects a tuple of as many.
        merge: ``"mean"`` or ``"max"`` of each tensor in the outputs, or a function of the list of outputs. Default:
            ``"mean"``.
        original: Whether the output for the unchanged input counts as well, as the first. Default: True.
        module: The name of the submodule that the steps call, such as ``"net"``. Default: the module itself.
        stages: ``"test"``, ``"predict"`` and ``"val"``. Default: ``("test", "predict")``.

    Raises:
        ArgumentTypeError: An argument has the wrong type.
        UnknownNameError: Another word for `merge`, or no such stage; in a run: the module has no such submodule.
        MisconfigurationException: There is no augmentation; in a run: a step did not call the model, or the outputs
            have different structures.

    Example:
        >>> flips = TestTimeAugmentation([(lambda x: x.flip(-1), lambda mask: mask.flip(-1))])
        >>> flips.num_views
        2
    """

    __test__ = False  # no test, whatever pytest reads in the name

    def __init__(
        self,
        augmentations: Sequence[Callable[..., Any] | tuple[Callable[..., Any], Callable[[Any], Any]]],
        merge: Literal["mean", "max"] | Callable[[list[Any]], Any] = "mean",
        original: bool = True,
        module: str | None = None,
        stages: _Stage | Sequence[_Stage] = ("test", "predict"),
    ) -> None:
        super().__init__()
        self._views = _checked_views(augmentations)
        expected = "'mean', 'max', or a function of the list of outputs"
        check_type("TestTimeAugmentation", "merge", merge, (str, Callable), expected, "'mean'")
        if isinstance(merge, str):
            check_word("TestTimeAugmentation", "merge", merge, _MERGES, example="mean")
        check_type("TestTimeAugmentation", "module", module, str | None, "the name of a submodule, or None", "'net'")
        self.merge, self.original, self.module = merge, original, module
        self.stages = check_stages("TestTimeAugmentation", stages, _STAGES)
        self._handle: Any = None  # of the forward hook
        self._inside = False  # whether the model runs on an augmented input
        self._called = False  # whether the present step has called the model
        without_hooks_of(self, self.stages)

    @property
    def num_views(self) -> int:
        """How many versions of each input the model gets."""
        return len(self._views) + self.original

    def _begin(self, pl_module: Module) -> None:
        self._remove()
        names = {name: child for name, child in pl_module.named_modules() if name}
        if self.module is not None and self.module not in names:
            class_name = type(pl_module).__name__
            raise UnknownNameError(
                f"submodule of {class_name}",
                self.module,
                names,
                fix="TestTimeAugmentation(…, module=None) for the module itself.",
            )
        model: nn.Module = pl_module if self.module is None else names[self.module]
        self._handle = model.register_forward_hook(self._forward, with_kwargs=True)

    def _forward(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Return the merged output in place of `output`; called by torch after each forward of the model."""
        if self._inside:
            return None
        self._inside = self._called = True
        try:
            outputs = [output] if self.original else []
            for augment, undo in self._views:
                augmented = augment(*args)
                prediction = model(*(augmented if isinstance(augmented, tuple) else (augmented,)), **kwargs)
                outputs.append(prediction if undo is None else undo(prediction))
        finally:
            self._inside = False
        return self.merge(outputs) if callable(self.merge) else _merged(outputs, self.merge)

    def _check(self, trainer: Trainer, pl_module: Module) -> None:
        called, self._called = self._called, False
        if not called:
            class_name = type(pl_module).__name__
            model = class_name if self.module is None else f"{class_name}.{self.module}"
            raise MisconfigurationException(
                f"TestTimeAugmentation: a step of {class_name} did not call {model}, so nothing was augmented.",
                expected="steps that call it: self(x), and not self.net(x) or self.forward(x)."
                if self.module is None
                else f"steps that call self.{self.module}(x).",
                fix="TestTimeAugmentation(…, module='net') with the name of the submodule that the steps call.",
            )

    def _remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._handle, self._called = None, False

    # hooks
    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        self._remove()

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin(pl_module)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._check(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._remove()

    def on_test_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin(pl_module)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._check(trainer, pl_module)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._remove()

    def on_predict_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin(pl_module)

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._check(trainer, pl_module)

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._remove()


def _merged(outputs: list[Any], how: str) -> Any:
    """Return the mean or maximum of each tensor over the outputs, in their structure."""
    tensors = [list(tensors_in(output)) for output in outputs]
    shapes = [[tuple(tensor.shape) for tensor in each] for each in tensors]
    if not tensors[0] or any(each != shapes[0] for each in shapes):
        raise MisconfigurationException(
            f"TestTimeAugmentation cannot merge outputs with tensors of shapes {', '.join(map(str, shapes))}.",
            expected="the same structure and shapes for each version of the input.",
            fix="give pairs (augment, undo), or merge=function.",
        )

    def merge(same: tuple[Tensor, ...]) -> Tensor:
        stacked = torch.stack(same)
        return stacked.mean(0) if how == "mean" else stacked.amax(0)

    each = iter([merge(same) for same in zip(*tensors, strict=True)])
    return map_tensors(lambda _: next(each), outputs[0])


def _checked_views(argument: Any) -> list[tuple[Callable[..., Any], Callable[[Any], Any] | None]]:
    if not isinstance(argument, (list, tuple)):
        expected = "a list of functions, or of pairs (augment, undo)"
        raise wrong_type("TestTimeAugmentation", "augmentations", argument, expected, fix=_FIX)
    if not argument:
        raise wrong_value("TestTimeAugmentation", "augmentations", argument, "at least one augmentation", fix=_FIX)
    views = [each if isinstance(each, tuple) else (each, None) for each in argument]
    for view in views:
        if len(view) != 2 or not callable(view[0]) or not (view[1] is None or callable(view[1])):
            raise ArgumentTypeError(
                f"TestTimeAugmentation got the augmentation {shown(view if len(view) != 2 or view[1] else view[0])}.",
                expected="a function of the input, or a pair of one and its inverse for outputs.",
                fix=_FIX,
            )
    return views
