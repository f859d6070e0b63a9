"""Models and losses with Keras's methods, on its torch backend, for `Module.from_model`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from lightlib.errors import MisconfigurationException


def is_keras_like(model: nn.Module) -> bool:
    """Whether a model has Keras's methods: it computes in `call`, which has an argument `training`.

    A layer of Keras 3 with the torch backend is a `torch.nn.Module`; the package itself is not needed here.

    Example:
        >>> is_keras_like(nn.Linear(2, 2))
        False
    """
    return callable(getattr(model, "call", None)) and hasattr(model, "trainable_weights")


def check_built(model: Any) -> None:
    """Raise if a model of Keras has no weights yet.

    Raises:
        MisconfigurationException: The model is built by its first call, which comes after the optimizer is made.
    """
    if not getattr(model, "built", True):
        raise MisconfigurationException(
            f"{type(model).__name__} is not built: it has no weights before its first call.",
            expected="a model with weights, which the optimizer gets when training begins.",
            fix="model.build((None, number_of_features)), or call it once with an example.",
        )


def with_regularization(model: Any, loss: Tensor) -> Tensor:
    """Return the loss with the losses that layers of the model have added in its last call."""
    for added in getattr(model, "losses", ()):
        loss = loss + added
    return loss


def in_torchs_order(loss: Any) -> Callable[..., Any] | None:
    """Return a loss function of Keras with the order of torch's: predictions, targets, weights; None for another one.

    Keras's take ``y_true``, ``y_pred`` and ``sample_weight``.

    Example:
        >>> def difference(y_true, y_pred, sample_weight=None):
        ...     return y_true - y_pred
        >>> in_torchs_order(difference)(1.0, 3.0)
        2.0
    """
    parameters = _parameters(loss).keys() | _parameters(getattr(loss, "call", None)).keys()
    return partial(_reordered, loss) if {"y_true", "y_pred"} <= parameters else None


def _reordered(loss: Callable[..., Any], predictions: Any, targets: Any, *weights: Any) -> Any:
    return loss(y_true=targets, y_pred=predictions, **dict(zip(("sample_weight",), weights, strict=False)))


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # no function, or one of C
        return {}
