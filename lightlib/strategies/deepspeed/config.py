"""DeepSpeed's configuration: from options, overruled by the user's, checked against the Trainer."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightlib.errors import (
    ArgumentTypeError,
    MisconfigurationException,
    UnknownNameError,
    check_type,
    check_word,
    owner,
    shown,
    wrong_value,
)

STAGES = (0, 1, 2, 3)
DEVICES = ("cpu", "nvme", "none")
_AUTO = "auto"
_ZERO = (
    "contiguous_gradients", "overlap_comm", "allgather_partitions", "reduce_scatter", "allgather_bucket_size",
    "reduce_bucket_size", "sub_group_size",
)  # fmt: skip
_SENDING = {"allgather_partitions": True, "reduce_scatter": True, "zero_allow_untested_optimizer": True}
_BUFFERS = {
    "params_buffer_count": 5,
    "params_buffer_size": 100_000_000,
    "max_in_cpu": 1_000_000_000,
    "optimizer_buffer_count": 4,
}
_AIO = {
    "block_size": 1_048_576,
    "queue_depth": 8,
    "single_submit": False,
    "overlap_events": True,
    "thread_count": 1,
}
_ACTIVATIONS = dict.fromkeys(
    ("partition_activations", "cpu_checkpointing", "contiguous_memory_optimization", "synchronize_checkpoint_boundary"),
    False,
)
_SCALING = {"loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1}
_DEFAULTS: dict[str, Any] = {**_SENDING, **_BUFFERS, **_AIO, **_ACTIVATIONS, **_SCALING}
_PRECISIONS = {"fp16": "'16-mixed'", "bf16": "'bf16-mixed'"}


def read(config: Any) -> dict[str, Any]:
    """Return a copy of `config`, or the content of the JSON file of that name.

    Raises:
        ArgumentTypeError: It is neither.
        MisconfigurationException: The file cannot be read, or holds something else.

    Example:
        >>> read({"zero_optimization": {"stage": 1}})
        {'zero_optimization': {'stage': 1}}
    """
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return copy.deepcopy(dict(config))
    expected = "a dict as DeepSpeed documents it, or the path of a JSON file of one"
    check_type("DeepSpeedStrategy", "config", config, (str, Path), expected, '{"zero_optimization": {"stage": 2}}')
    try:
        content = json.loads(Path(config).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise MisconfigurationException(
            f"DeepSpeedStrategy(config={str(config)!r}) cannot be read: {error}",
            expected="a JSON file.",
            fix="correct the path or the file, or pass a dict.",
        ) from error
    if not isinstance(content, dict):
        raise MisconfigurationException(
            f"The file {str(config)!r} holds {shown(content)}.",
            expected="a JSON object of DeepSpeed's settings.",
            fix='{"zero_optimization": {"stage": 2}}',
        )
    return content


def with_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` with the defaults of those that are not given.

    Raises:
        UnknownNameError: There is no such option.

    Example:
        >>> with_defaults({"hysteresis": 4})["hysteresis"]
        4
    """
    for name in options:
        if name not in _DEFAULTS:
            raise UnknownNameError("option of DeepSpeedStrategy", name, _DEFAULTS, fix="DeepSpeedStrategy(config={…})")
    return {**_DEFAULTS, **options}


def stage_of(stage: int | None, config: Mapping[str, Any]) -> int:
    """Return the stage of ZeRO that the argument or the config asks for; 2 when neither does.

    Raises:
        MisconfigurationException: They ask for different ones.

    Example:
        >>> stage_of(None, {"zero_optimization": {"stage": 3}}), stage_of(None, {})
        (3, 2)
    """
    section = config.get("zero_optimization", {})
    if not isinstance(section, Mapping):
        raise ArgumentTypeError(
            f"DeepSpeedStrategy(config=…) has zero_optimization={shown(section)}.",
            expected="a dict.",
            fix='config={"zero_optimization": {"stage": 2}}',
        )
    asked = section.get("stage", _AUTO)
    if asked == _AUTO:
        return 2 if stage is None else stage
    if stage is not None and stage != asked:
        raise MisconfigurationException(
            f"DeepSpeedStrategy(stage={stage}), and its config has stage {asked!r}.",
            expected="one stage.",
            fix="leave one of the two out.",
        )
    return int(asked)


def from_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration for the arguments of DeepSpeedStrategy.

    Raises:
        MisconfigurationException: They do not go together.
    """
    _check(options)
    config: dict[str, Any] = {
        "zero_allow_untested_optimizer": options["zero_allow_untested_optimizer"],
        "zero_force_ds_cpu_optimizer": False,  # any optimizer may be offloaded, with a warning if it is slow there
        "activation_checkpointing": {name: options[name] for name in _ACTIVATIONS},
    }
    if options["zero_optimization"] and options["stage"]:
        config["zero_optimization"] = _zero(options)
    if "nvme" in _places(options):
        config["aio"] = {name: options[name] for name in _AIO}
    return config


def _zero(options: Mapping[str, Any]) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": options["stage"], **{name: options[name] for name in _ZERO}}
    if options["offload_parameters"]:
        zero["offload_param"] = {
            "device": options["offload_params_device"],
            "buffer_count": options["params_buffer_count"],
            "buffer_size": options["params_buffer_size"],
            "max_in_cpu": options["max_in_cpu"],
            "pin_memory": options["pin_memory"],
        }
    if options["offload_optimizer"]:
        zero["offload_optimizer"] = {
            "device": options["offload_optimizer_device"],
            "buffer_count": options["optimizer_buffer_count"],
            "pin_memory": options["pin_memory"],
        }
    for section in ("offload_param", "offload_optimizer"):
        if zero.get(section, {}).get("device") == "nvme":
            zero[section]["nvme_path"] = options["nvme_path"]
    return zero


def _places(options: Mapping[str, Any]) -> set[str]:
    """Return where something is offloaded to."""
    places = {options["offload_params_device"]} if options["offload_parameters"] else set()
    return places | ({options["offload_optimizer_device"]} if options["offload_optimizer"] else set())


def _check(options: Mapping[str, Any]) -> None:
    stage = options["stage"]
    if isinstance(stage, bool) or stage not in STAGES:
        raise wrong_value("DeepSpeedStrategy", "stage", stage, "0, 1, 2 or 3", 2)
    for name in ("remote_device", "offload_params_device", "offload_optimizer_device"):
        if options[name] is not None:
            check_word("DeepSpeedStrategy", name, options[name], DEVICES, example="cpu")
    wants = [name for name in ("offload_optimizer", "offload_parameters") if options[name]]
    least = 3 if options["offload_parameters"] or "nvme" in _places(options) else 1
    if wants and (stage < least or not options["zero_optimization"]):
        raise MisconfigurationException(
            f"DeepSpeedStrategy(stage={stage}, {', '.join(f'{name}=True' for name in wants)}"
            f"{', to nvme' if 'nvme' in _places(options) else ''}).",
            expected=f"stage {least}{'' if least == 3 else ', 2 or 3'}, which shards the offloaded state.",
            fix=f"DeepSpeedStrategy(stage={max(least, 2)}, {', '.join(f'{name}=True' for name in wants)})",
        )


def merged(made: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `made`, overruled by `given` key by key, except where `given` has ``"auto"``.

    Example:
        >>> merged({"zero_optimization": {"stage": 2, "overlap_comm": True}}, {"zero_optimization": {"stage": "auto"}})
        {'zero_optimization': {'stage': 2, 'overlap_comm': True}}
    """
    whole = copy.deepcopy(dict(made))
    for name, value in given.items():
        if isinstance(value, Mapping):
            section = whole.get(name)
            whole[name] = merged(section if isinstance(section, Mapping) else {}, value)
        elif not (isinstance(value, str) and value == _AUTO):
            whole[name] = copy.deepcopy(value)
    return whole


def resolved(
    config: Mapping[str, Any],
    half: str | None,
    precision: str,
    world_size: int,
    accumulate: int | None = None,
    clip: float | None = None,
    global_batch_size: int | None = None,
    batch_size: int | str = "auto",
    scaling: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return `config` with the Trainer's arguments filled in.

    Args:
        half: ``"fp16"``, ``"bf16"`` or None: which of DeepSpeed's sections the precision stands for.
        accumulate: `accumulate_grad_batches`; None when there is no training yet: then nothing is compared.
        batch_size: Samples that one process reads at a time, if the user gave them, for DeepSpeed's messages.
        scaling: The options of float16's loss scaling.

    Raises:
        MisconfigurationException: They contradict each other.

    Example:
        >>> full = resolved({"zero_optimization": {"stage": 2}}, None, "32-true", 4, accumulate=2)
        >>> full["gradient_accumulation_steps"], full["gradient_clipping"], full["fp16"]["enabled"]
        (1, 0.0, False)
    """
    whole = copy.deepcopy(dict(config))
    for section, fix in (("optimizer", "return it from configure_optimizers"), ("scheduler", "return it there, too")):
        if section in whole:
            raise MisconfigurationException(
                f"DeepSpeedStrategy(config=…) has a section {section!r}: {shown(whole[section])}",
                expected="the optimizer and its schedules from configure_optimizers, as with every strategy.",
                fix=f"leave the section out and {fix}; deepspeed.ops.adam has FusedAdam and DeepSpeedCPUAdam.",
            )
    _fill_precision(whole, half, precision, scaling or {})
    configured_clip = whole.get("gradient_clipping")
    if configured_clip and clip is not None and float(configured_clip) != float(clip):
        fix = "leave gradient_clipping out of the config."
        raise _conflict(f"gradient_clipping={configured_clip!r}", f"gradient_clip_val={clip!r}", fix)
    # The strategy passes the Trainer's value to the engine before each step, so that hooks may change it.
    whole["gradient_clipping"] = float(configured_clip) if configured_clip and clip is None else 0.0
    _fill_batches(whole, world_size, accumulate, global_batch_size, batch_size)
    return whole


def _conflict(configured: str, trainer: str, fix: str) -> MisconfigurationException:
    return MisconfigurationException(
        f"DeepSpeedStrategy(config=…) has {configured}, and {owner().noun} {trainer}.",
        expected="one value in both.",
        fix=fix,
    )


def _fill_precision(whole: dict[str, Any], half: str | None, precision: str, scaling: Mapping[str, Any]) -> None:
    for section, name in _PRECISIONS.items():
        values = whole.setdefault(section, {})
        is_enabled = half == section
        enabled = values.setdefault("enabled", is_enabled)
        if bool(enabled) != is_enabled:
            right = name if enabled else "'32-true'"
            fix = f"leave {section!r} out of the config, or {owner()}(precision={right})"
            raise _conflict(f"{section}: enabled={enabled!r}", f"precision={precision!r}", fix)
    if half == "fp16":
        whole["fp16"] = {**{name: scaling[name] for name in _SCALING if name in scaling}, **whole["fp16"]}


def _fill_batches(
    whole: dict[str, Any],
    world_size: int,
    accumulate: int | None,
    global_batch_size: int | None,
    batch_size: int | str,
) -> None:
    batch, micro = whole.pop("train_batch_size", None), whole.pop("train_micro_batch_size_per_gpu", None)
    steps = whole.pop("gradient_accumulation_steps", None)
    known_size = batch_size if isinstance(batch_size, int) else None
    if accumulate is None:  # an evaluation
        whole["gradient_accumulation_steps"] = 1
        whole["train_micro_batch_size_per_gpu"] = micro or known_size or 1
        return
    if steps is not None and steps != accumulate:
        fix = f"{owner()}(accumulate_grad_batches={steps}), and leave it out of the config."
        raise _conflict(f"gradient_accumulation_steps={steps!r}", f"accumulate_grad_batches={accumulate}", fix)
    if batch is not None and global_batch_size is not None and batch != global_batch_size:
        fix = "leave train_batch_size out of the config."
        raise _conflict(f"train_batch_size={batch!r}", f"global_batch_size={global_batch_size}", fix)
    per_process = accumulate * world_size
    size = batch or global_batch_size
    micro = micro or known_size or (size // per_process if size else 1)
    if batch is not None and batch != micro * per_process:
        raise MisconfigurationException(
            f"DeepSpeedStrategy(config=…) has train_batch_size={batch}, which is not {micro} samples at a time in "
            f"{world_size} processes with accumulate_grad_batches={accumulate}.",
            expected="train_batch_size = train_micro_batch_size_per_gpu * processes * accumulate_grad_batches.",
            fix="leave both out of the config: the loader has the batch size.",
        )
    # The loop divides the loss and marks the last batch of a window. The engine must not divide it again, as it would
    # in stage 0; but when it offloads, it makes buffers to accumulate in only when it knows that it will.
    offloads = whole.get("zero_optimization", {}).get("offload_optimizer", {}).get("device", "none") != "none"
    whole["gradient_accumulation_steps"] = accumulate if offloads else 1
    whole["train_micro_batch_size_per_gpu"] = max(1, micro)  # for the speeds that DeepSpeed prints
