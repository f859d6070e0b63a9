"""Finds assignments to attributes of another object, and lists those that are allowed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.rules import File

# (files, target, reason); files and targets are regular expressions that match in full. Otherwise a function assigns
# only to attributes of `self`, `cls` and of objects that it made itself.
ALLOWED: tuple[tuple[str, str, str], ...] = (
    # torch and Python
    (
        ".*",
        r"\w+(\[.*\])?\.(grad|requires_grad|training|track_running_stats|momentum)",
        "torch keeps this state in attributes",
    ),
    (".*", r"ctx\.\w+|context\.parameter", "torch.autograd.Function: what forward keeps for backward"),
    (".*", r"\w+(\.\w+)?\.param_groups|optimizer\._opt_called", "torch.optim: schedulers assign them too"),
    (".*", r"torch\.backends\.\w+\.\w+|_attention\._cp_options\.\w+", "torch: switches of the process"),
    (
        "lightlib/strategies/axes/tensor/(tensor_axis|trial).py",
        r"here\[name\]\.key|part\.activation_relu_or_gelu|part\.get_submodule\(name\)\.key",
        "read by forward methods",
    ),
    (
        "lightlib/strategies/axes/tensor/planes.py",
        r"layer\.forward",
        "a wrapping module would change the names of parameters",
    ),
    ("lightlib/callbacks/pruning/masks.py", r"layer\.name", "torch.nn.utils.prune keeps the computed weight there"),
    ("lightlib/loggers/services/dvclive.py", r"client\.step", "the documented way to set the step"),
    ("lightlib/core/module/initialization.py", r"layer\.reset_parameters", "torch: how a layer gets its first values"),
    ("lightlib/strategies/state_by_name.py", r"module\._MARK", "a mark that torch.nn.Module must not register"),
    (
        "lightlib/data/.*",
        r"(copied|info|bits|generator\.bit_generator)\..*",
        "workers and generators of torch and NumPy",
    ),
    (".*", r"error\.args|self\.received\.__traceback__", "exceptions: Python 3.10 has no add_note"),
    (
        ".*",
        r"sys\.excepthook|sys\.argv|warnings\.showwarning|sys\.modules\[(package|module)\]\.name",
        "hooks of the interpreter",
    ),
    (
        "lightlib_lightning/tools/small_functions.py",
        r"holder\.attribute|module\.get_submodule\(owner\)\.last",
        "the purpose of lightning_setattr and set_shared_parameters",
    ),
    (
        "lightlib/tuner/attribute.py",
        r"holder\.name",
        "the purpose of a search: it sets the user's learning rate or batch size",
    ),
    # other libraries, which have no setters
    (
        "lightlib_lightning/internals/loops.py",
        r"self\.trainer\.(max_steps|max_epochs)",
        "Lightning's names for limits of the Trainer, which are set by assignment",
    ),
    ("lightlib/core/metrics/.*", r"(slot\.)?metric\.\w+", "torchmetrics: its protocol for synchronisation"),
    ("lightlib/callbacks/progress/.*", r"(bar|live)\.\w+", "tqdm and rich: how a bar is changed"),
    (
        "lightlib/checkpoint/storage/upload.py",
        r"self\.file\.closed",
        "fsspec: keeps a discarded upload from completing",
    ),
    (
        "lightlib/strategies/deepspeed/.*",
        r"(inner|scaler|self\.engine\.optimizer)\.\w+|parameter\.data",
        "DeepSpeed's engine",
    ),
    (
        "lightlib/precision/bitsandbytes.py",
        r"(old|weight)\.data",
        "bitsandbytes: how it quantizes a parameter in place",
    ),
    (
        "lightlib/(precision/chosen|core/attachment).py",
        r"(parameter|buffer|grad)\.data",
        "torch: how a cast keeps the object that an optimizer holds",
    ),
    ("lightlib_lightning/loggers.py", r"logger\.propagate|rank_zero\.log", "logging: the documented switch; as below"),
    ("lightlib/report.py", r"theirs\.rank", "lightning_utilities: its decorators read the rank there"),
    # Lightning's public protocol
    (
        "lightlib/core/(session|session_state|attachment).py",
        r"(module|datamodule|owner)\.(trainer|device_mesh|_results)",
        "attributes of users' objects",
    ),
    ("lightlib/core/session.py", r"callback\.'_pl_module'", "projects read it"),
    ("lightlib/fabric/wrapped.py", r"self\.module\.\w+", "the wrapper stands for the user's module"),
    (
        "lightlib/(callbacks|tuner)/.*",
        r"trainer\.(should_stop|accumulate_grad_batches)",
        "how a callback stops or changes a run",
    ),
    ("lightlib/cli.py", r"self\.model\.configure_optimizers", "LightningCLI: the method that it configures"),
    ("lightlib/core/.*", r"self\.strategy\.sync_batchnorm|callback\.dirpath", "public attributes, set before a run"),
    (".*", r"report\.rank_zero_only\.rank", "the rank of a process, as in Lightning"),
    ("lightlib_lightning/plugins/io.py", r"self\._checkpoint_io\.checkpoint_io", "Lightning's protocol for wrappers"),
    (
        "lightlib_lightning/plugins/batch_calls.py",
        r"(optimization\.)?window\.\w+",
        "the state of a batch, as in loop.py",
    ),
    # the hot path: a method would be a Python call for every batch or hook
    ("lightlib/core/run/loop.py", r"(optimization\.)?(window|table)\.\w+", "the state of a batch"),
    ("lightlib/core/run/hooks.py", r"results\.scope", "the hook that runs"),
    ("lightlib/core/metrics/reduction.py", r"(table|slot)\.\w+", "the values of a micro-batch"),
)


def assigned(statement: ast.AST) -> Iterator[ast.expr]:
    """Yield the single targets of an assignment; none of other statements."""
    pending: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        pending = list(statement.targets)
    elif isinstance(statement, ast.AugAssign) or (isinstance(statement, ast.AnnAssign) and statement.value is not None):
        pending = [statement.target]
    while pending:
        target = pending.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            pending.extend(target.elts)
        else:
            yield target.value if isinstance(target, ast.Starred) else target


def nodes_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Walk through a function, without the functions defined in it."""
    pending: list[ast.AST] = [function]
    while pending:
        node = pending.pop()
        yield node
        inner = ast.iter_child_nodes(node)
        pending.extend(child for child in inner if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))


def foreign_assignments(file: File) -> Iterator[tuple[int, str]]:
    """Yield the line and the target of every assignment to an attribute of an object that the function did not make."""
    functions = [
        node for node in ast.walk(ast.parse(file.text)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    for function in functions:
        nodes = list(nodes_of(function))
        made = {
            target.id
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            for target in assigned(node)
            if isinstance(target, ast.Name)
        }
        for node in nodes:
            for target in assigned(node):
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) not in {"self", "cls", *made}:
                    yield target.lineno, ast.unparse(target)
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"setattr", "object.__setattr__"}:
                owner = ast.unparse(node.args[0])
                if owner not in {"self", "cls", *made}:
                    yield node.lineno, f"{owner}.{ast.unparse(node.args[1])}"


def allowed_by(name: str, target: str) -> int | None:
    """Return the index of the row of ALLOWED that covers the assignment, None if there is none."""
    for index, (files, targets, _) in enumerate(ALLOWED):
        if re.fullmatch(files, name) and re.fullmatch(targets, target):
            return index
    return None
