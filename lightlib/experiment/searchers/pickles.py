"""Pickles: refuses a state of CMA-ES in a ledger that could run code."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

from lightlib.errors import MisconfigurationException

_OPTIMIZER = ":optimizer:"  # in the names of Optuna's attributes; numbered pieces of one text
_ALLOWED = {
    ("_codecs", "encode"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    ("cmaes._cma", "CMA"),
    ("cmaes._sepcma", "SepCMA"),
    ("cmaes._cmawm", "CMAwM"),
}


class _Numbers(pickle.Unpickler):
    """Loads an optimizer of the package cmaes, and no name of another one."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise MisconfigurationException(
                f"The state of CMA-ES in the ledger names {module}.{name}, which no optimizer contains.",
                expected="a ledger that only lightlib writes to.",
                fix="begin another experiment, and look who can write to the storage.",
            )
        return super().find_class(module, name)


def check_optimizer(attributes: Mapping[str, Any]) -> None:
    """Raise if the state of CMA-ES in the attributes of a trial contains anything but its numbers.

    Optuna's sampler keeps its optimizer as a pickle, which can run code when it is loaded.

    Args:
        attributes: That the sampler wrote. Without a state nothing is checked.

    Raises:
        MisconfigurationException: It does.
    """
    pieces = sorted((int(key.rpartition(":")[2]), text) for key, text in attributes.items() if _OPTIMIZER in key)
    if pieces:
        _Numbers(io.BytesIO(bytes.fromhex("".join(text for _, text in pieces)))).load()
