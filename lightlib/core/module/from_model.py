"""ModelSteps: the steps and optimizers of a plain torch.nn.Module, for `Module.from_model`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from lightlib.core.module.keras_model import check_built, in_torchs_order, is_keras_like, with_regularization
from lightlib.core.module.preprocessor import PreprocessorMixin
from lightlib.errors import ArgumentTypeError, MisconfigurationException, shown

_FIX = "Module.from_model(model, torch.nn.CrossEntropyLoss(), torch.optim.Adam)"


class ModelSteps(PreprocessorMixin):
    """Steps that call a model, and a loss or a function of the user's.

    A strategy may wrap or shard `model`, so the signature of its `forward` is read once, here.
    """

    if TYPE_CHECKING:  # those of Module
        log: Any
        trainer: Any
    _made_by = "Module.from_model"

    def __init__(
        self,
        model: Any,
        loss: Any,
        optimizer: Any,
        scheduler: Any,
        *,
        interval: str,
        step: Callable[..., Any] | None,
        preprocessor: Any,
    ) -> None:
        super().__init__()
        _check(model, loss, optimizer, scheduler, interval, step)
        self.use_preprocessor(preprocessor)
        self._is_keras = is_keras_like(model)
        if self._is_keras:
            check_built(model)
        self.model, self.loss_function = model, loss
        self._reordered_loss = in_torchs_order(loss)
        self._optimizer, self._scheduler, self._interval, self._step = optimizer, scheduler, interval, step
        self._signature = inspect.signature(model.forward)
        self._has_mode = "mode" in self._signature.parameters and loss is None
        self._shows_predictions = False

    def setup(self, stage: str) -> None:
        """Note whether a callback reads the predictions of training; otherwise they are not kept beyond the loss."""
        self._shows_predictions = stage == "fit" and any(map(_reads_outputs, (*self.trainer.callbacks, self)))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the model."""
        return self.model(*args, **kwargs)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss, or the losses that the model or the user's function returns."""
        if self._step is not None:
            return self._step(self, batch)
        if self.loss_function is None:
            output = _by_name(self._run(batch, mode="loss"))
            loss = _loss_of(output)
            if loss is not None:
                self.log("loss", loss.mean(), prog_bar=True)
            return output
        loss, output = self._loss(batch)
        if self._is_keras:
            loss = with_regularization(self.model, loss)
        self.log("loss", loss, prog_bar=True)
        return {"loss": loss, "preds": output, "target": batch[1]} if self._shows_predictions else loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Log the loss as "val_loss", if there is a loss function or the model returns it; return its output."""
        return self._evaluate(batch, "val_loss")

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Log the loss as "test_loss", if there is a loss function or the model returns it; return its output."""
        return self._evaluate(batch, "test_loss")

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Return the model's output; of a batch `(inputs, targets)` it gets the inputs."""
        if self.loss_function is None:
            return self._run(batch, mode="predict")
        labelled = isinstance(batch, (list, tuple)) and len(batch) in (2, 3)
        return self._output(batch[0] if labelled else batch)

    def configure_optimizers(self) -> Any:
        """Return the optimizer, and the schedule if there is one."""
        if self._optimizer is None:
            raise MisconfigurationException(
                "Module.from_model got no optimizer, and the model is trained.",
                expected="a function of the parameters, or an optimizer.",
                fix=_FIX,
            )
        if self._scheduler is None:
            return self._optimizer
        schedule = {"scheduler": self._scheduler, "interval": self._interval}
        return {"optimizer": self._optimizer, "lr_scheduler": schedule}

    def _evaluate(self, batch: Any, name: str) -> Any:
        if self.loss_function is None:
            output = self._run(batch, mode="predict")
            named = _by_name(output)
            loss = _loss_of(named) if isinstance(named, Mapping) or _is_scalar(named) else None
        else:
            loss, output = self._loss(batch)
        if loss is not None:
            self.log(name, loss.mean(), prog_bar=True)
        return output

    def _loss(self, batch: Any) -> tuple[Tensor, Any]:
        if not isinstance(batch, (list, tuple)) or len(batch) not in (2, 3):
            raise MisconfigurationException(
                f"Module.from_model has a loss function, but a batch is {_described(batch)}.",
                expected="(inputs, targets) or (inputs, targets, weights).",
                fix="return such tuples from the data set, or compute the loss: from_model(model, step=function).",
            )
        inputs, *targets = batch
        output = self._output(inputs)
        return (self._reordered_loss or self.loss_function)(output, *targets), output

    def _output(self, inputs: Any) -> Any:
        if self._is_keras:  # several inputs are one argument, a list or a dict
            return self.model(inputs, training=self.training)
        if isinstance(inputs, Mapping):
            return self.model(**inputs)
        return self.model(*inputs) if isinstance(inputs, (list, tuple)) else self.model(inputs)

    def _run(self, batch: Any, mode: str) -> Any:
        """Call a model that computes its losses itself."""
        options: dict[str, Any] = {"mode": mode} if self._has_mode else {}
        if self._is_keras:
            options["training"] = self.training
        if isinstance(batch, Mapping):
            return self.model(**batch, **options)
        if isinstance(batch, (list, tuple)) and self._takes(len(batch), options):
            return self.model(*batch, **options)
        if isinstance(batch, str):
            raise ArgumentTypeError(
                f"A batch is {shown(batch)}.",
                expected="a dict, a tuple or list, or a tensor, which become the arguments of the model's forward.",
                fix="return tensors from the data set.",
            )
        return self.model(batch, **options)

    def _takes(self, number: int, options: Mapping[str, Any]) -> bool:
        try:
            self._signature.bind(*range(number), **options)
        except TypeError:
            return False
        return True


def _by_name(output: Any) -> Any:
    """Return a tuple with one scalar, the loss, or an object with a `loss`, as a dict; any other output as it is."""
    if isinstance(output, (Mapping, Tensor)) or output is None:
        return output
    if hasattr(output, "_asdict"):
        return output._asdict()
    if isinstance(output, (tuple, list)):
        scalars = [index for index, value in enumerate(output) if _is_scalar(value)]
        if len(scalars) != 1:
            return output
        rest = [value for index, value in enumerate(output) if index != scalars[0]]
        predictions = {"preds": rest[0] if len(rest) == 1 else tuple(rest)} if rest else {}
        return {"loss": output[scalars[0]], **predictions}
    loss = getattr(output, "loss", None)
    return {**getattr(output, "__dict__", {}), "loss": loss} if isinstance(loss, Tensor) else output


def _loss_of(output: Any) -> Tensor | None:
    """Return the tensor that is the loss in an output of `_by_name`."""
    loss = output.get("loss") if isinstance(output, Mapping) else output
    return loss if isinstance(loss, Tensor) else None


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0 and value.is_floating_point()


def _reads_outputs(owner: Any) -> bool:
    """Whether `on_train_batch_end` is the user's, or that of a callback that measures or draws training batches."""
    method = getattr(owner, "on_train_batch_end", None)
    place = getattr(method, "__module__", None) or ""
    if place.startswith(("lightlib.callbacks.", "lightlib.core.")):
        return False
    return method is not None and "train" in (getattr(owner, "stages", None) or ("train",))


def _described(batch: Any) -> str:
    return f"a {type(batch).__name__} of {len(batch)}" if isinstance(batch, (list, tuple, dict)) else shown(batch)


def _check(model: Any, loss: Any, optimizer: Any, scheduler: Any, interval: Any, step: Any) -> None:
    if not isinstance(model, nn.Module):
        fix = f"pass an instance: {model.__name__}(…)" if isinstance(model, type) else _FIX
        raise ArgumentTypeError(
            f"`model` of Module.from_model is {shown(model)}.", expected="an instance of torch.nn.Module.", fix=fix
        )
    if loss is not None and step is not None:
        raise MisconfigurationException(
            "Module.from_model got both `loss` and `step`.", expected="one of the two.", fix="leave out one of them."
        )
    steps = hasattr(optimizer, "step") and not isinstance(optimizer, type)
    for name, value, fits in (
        ("loss", loss, callable(loss) and not (isinstance(loss, type) and issubclass(loss, nn.Module))),
        ("step", step, callable(step)),
        ("optimizer", optimizer, callable(optimizer) or steps),
        ("scheduler", scheduler, callable(scheduler) or hasattr(scheduler, "step")),
    ):
        if value is not None and not fits:
            a_class = f"pass an instance: {value.__name__}()" if isinstance(value, type) else _FIX
            raise ArgumentTypeError(
                f"`{name}` of Module.from_model is {shown(value)}.",
                expected="a function, or None."
                if name in ("loss", "step")
                else "a function that returns it, or an instance.",
                fix=a_class,
            )
    if interval not in ("epoch", "step"):
        raise MisconfigurationException(
            f"`interval` of Module.from_model is {shown(interval)}.",
            expected='"epoch" or "step".',
            fix='Module.from_model(…, interval="step")',
        )
