"""MuonAdamW: Muon for the matrices of hidden layers, and AdamW for all other parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.optimizer import ParamsT

from lightlib import report
from lightlib.errors import MisconfigurationException, check_flag, check_int, check_word
from lightlib.optim.groups import param_groups
from lightlib.optim.per_parameter import PerParameter
from lightlib.torch_private import muon_rate, orthogonalized

_Rates = Literal["original", "match_rms_adamw"]


class MuonAdamW(PerParameter):
    """Muon for the matrices of hidden layers, and AdamW for all other parameters, as one optimizer.

    The steps are those of :class:`torch.optim.Muon` and :class:`torch.optim.AdamW`. A schedule moves the rate of each
    group relative to the group's own first rate.

    Given a module, groups are those of `param_groups`: weights with two dimensions use Muon, except embeddings and the
    last one of the module, which is its output layer (and, if that is frozen, the last one that is trained); norms and
    biases do not decay. `rules` may set ``use_muon``.
    Given parameters, those with two dimensions use Muon, which includes embeddings and output layers, so you are
    warned. A group with the key ``use_muon`` is taken as it is.

    With sharded parameters (FSDP, tensor parallelism) each process gathers one matrix after the other for its step;
    the state stays sharded. With ``"zero1"`` each process steps its share of the matrices.

    Args:
        params: The module, `self` in `configure_optimizers`; or parameters, named parameters, or groups of them.
        lr: The learning rate of AdamW. Default 3e-4.
        muon_lr: The learning rate of Muon. Default 0.02.
        weight_decay: The decay of both, decoupled from the gradient. Default 0.1.
        betas, eps: Of AdamW, as torch's.
        momentum, nesterov, ns_steps: Of Muon, as torch's.
        adjust_lr_fn: How Muon's rate depends on the shape: ``"original"`` as None, or ``"match_rms_adamw"``, with which
            rates of AdamW can be used for both.
        foreach: Whether AdamW steps the parameters of a group together. Default: torch's choice.
        maximize: Steps up instead of down. Default False.
        rules: Options by a pattern of names, as of `param_groups`; only with a module.

    Raises:
        ArgumentTypeError: An option has the wrong type.
        MisconfigurationException: An option is out of its range, no parameter uses Muon or none AdamW, or one that is
            not a matrix shall use Muon; in a step: a gradient is sparse.

    Example:
        >>> net = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
        >>> for group in MuonAdamW(net, lr=1e-3).param_groups:
        ...     print(group["use_muon"], group["lr"], group["weight_decay"], len(group["params"]))
        False 0.001 0.1 2
        True 0.02 0.1 1
        False 0.001 0.0 2
    """

    takes_module = True

    def __init__(
        self,
        params: nn.Module | ParamsT,
        lr: float = 3e-4,
        muon_lr: float = 0.02,
        weight_decay: float = 0.1,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: _Rates | None = None,
        foreach: bool | None = None,
        maximize: bool = False,
        rules: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "muon_lr": muon_lr,
            "weight_decay": weight_decay,
            "betas": betas,
            "eps": eps,
            "momentum": momentum,
            "nesterov": check_flag("MuonAdamW", "nesterov", nesterov),
            "ns_steps": check_int("MuonAdamW", "ns_steps", ns_steps, 1),
            "adjust_lr_fn": adjust_lr_fn,
            "foreach": foreach,
            "maximize": maximize,
        }
        if adjust_lr_fn is not None:
            check_word("MuonAdamW", "adjust_lr_fn", adjust_lr_fn, get_args(_Rates))
        for name, value in defaults.items():
            self._check(name, value)
        if isinstance(params, nn.Module):
            params = param_groups(params, lr, weight_decay, muon_lr=muon_lr, rules=rules)
        elif rules is not None:
            raise MisconfigurationException(
                "MuonAdamW got `rules` without a module, so there are no names to match.",
                expected="the module in place of its parameters.",
                fix="MuonAdamW(self, rules={'net.0': {'use_muon': False}})",
            )
        super().__init__(params, defaults)
        self._check_both()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; without ``use_muon`` it is divided into matrices and the rest.

        Raises:
            ArgumentTypeError: An option has the wrong type.
            MisconfigurationException: An option is out of its range, or a vector shall use Muon.
        """
        for group in _divided(param_group):
            if check_flag("MuonAdamW", "use_muon", group["use_muon"]):
                group.setdefault("lr", self.defaults["muon_lr"])
            super().add_param_group(group)
            self.param_groups[-1].pop("muon_lr", None)
            for parameter in group["params"] if group["use_muon"] else ():
                _need_matrix(parameter)

    def step_group(self, group: dict[str, Any]) -> None:
        if group["use_muon"]:
            super().step_group(group)
            return
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = {"step": torch.tensor(0.0, dtype=torch.float32), **_moments(parameter)}
        states = [self.state[parameter] for parameter in parameters]
        adamw(
            parameters,
            [self._dense(parameter.grad) for parameter in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            foreach=group["foreach"],
            has_complex=any(map(torch.is_complex, parameters)),
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            **{name: group[name] for name in ("lr", "weight_decay", "eps", "maximize")},
        )

    def step_parameter(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        _need_matrix(parameter)  # DeepSpeed steps flat copies
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        momentum, average = group["momentum"], state["momentum_buffer"]
        average.lerp_(gradient, 1 - momentum)
        update = gradient.lerp(average, momentum) if group["nesterov"] else average.clone()
        rate = muon_rate(group["lr"], group["adjust_lr_fn"], parameter.shape)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(_orthogonalized(update, parameter, group["ns_steps"]), alpha=-rate)

    def _check_both(self) -> None:
        values = {group["use_muon"] for group in self.param_groups}
        if True not in values:
            raise MisconfigurationException(
                f"MuonAdamW got {sum(len(group['params']) for group in self.param_groups)} parameters, but no matrix "
                "of a hidden layer.",
                expected="a parameter with two dimensions, other than embeddings and the last one of the module.",
                fix="torch.optim.AdamW(self.parameters()), or MuonAdamW(self, rules={'net.0.weight': "
                "{'use_muon': True}})",
            )
        if False not in values:
            raise MisconfigurationException(
                "MuonAdamW got matrices only: nothing is left for AdamW.",
                expected="parameters of both kinds.",
                fix="torch.optim.Muon(…); or MuonAdamW(self), which gives the last matrix to AdamW.",
            )


def _divided(group: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a group that has ``use_muon``; or its matrices and its other parameters, which may be named."""
    if "use_muon" in group:
        yield group
        return
    entries = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
    parameters = [entry[1] if isinstance(entry, tuple) else entry for entry in entries]
    matrices = [isinstance(parameter, Tensor) and _is_matrix(parameter) for parameter in parameters]
    if any(matrices):
        report.warn(
            f"MuonAdamW got {sum(matrices)} matrices without their module: Muon steps embeddings and output layers "
            "among them as well.\n"
            "  Expected: the module, or groups with the key 'use_muon'.\n"
            "  Fix: MuonAdamW(self, …)",
            report.PossibleUserWarning,
        )
    for kind in (True, False):
        part = [entry for entry, is_matrix in zip(entries, matrices, strict=True) if is_matrix is kind]
        if part or not (kind or entries):
            yield {**group, "params": part, "use_muon": kind}


def _is_matrix(parameter: Tensor) -> bool:
    return parameter.ndim == 2 and not parameter.is_complex()


def _need_matrix(parameter: Tensor) -> None:
    if not _is_matrix(parameter):
        raise MisconfigurationException(
            f"MuonAdamW got a parameter of shape {tuple(parameter.shape)} with use_muon=True.",
            expected="a real matrix: Muon makes the rows of a step orthogonal, and some engines flatten parameters.",
            fix="use_muon=False, with which AdamW steps it; with DeepSpeed, strategy='fsdp'.",
        )


def _moments(parameter: Tensor) -> dict[str, Tensor]:
    names = ("exp_avg", "exp_avg_sq")
    return {name: torch.zeros_like(parameter, memory_format=torch.preserve_format) for name in names}


def _orthogonalized(update: Any, parameter: Any, steps: int) -> Tensor:
    """Orthogonalize a matrix; of a sharded one, the full matrix on each process, which then keeps its shard."""
    if not hasattr(update, "full_tensor"):
        return orthogonalized(update, steps)
    from torch.distributed.tensor import DTensor, Replicate  # optional: slow to import

    mesh, full = parameter.device_mesh, orthogonalized(update.full_tensor(), steps)
    replicated = DTensor.from_local(full.contiguous(), mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicated.redistribute(placements=parameter.placements)
