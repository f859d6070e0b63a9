"""Signatures of hooks: other arguments than those of the call are refused before the run."""

from __future__ import annotations

import functools
import inspect

import pytest
import torch

from lightlib import Fabric, registry
from lightlib.callbacks import Callback, LambdaCallback
from lightlib.conventions import following
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.core.setup.signatures import LOGGER_METHODS, _hooks_of, check_signatures
from lightlib.errors import MisconfigurationException
from lightlib.loggers.logger import Logger
from lightlib.report import rank_zero_only
from lightlib_lightning.order import LIGHTNING
from tests.runs.bad_input import Validated, loader, refused, trainer, with_methods
from tests.runs.plain import Rows

WRONG = MisconfigurationException
TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
BASES = {Callback: (Callback,), Module: (Validated,), DataModule: (DataModule,)}


def with_hooks(base, **hooks):
    return type("Mine", BASES[base], hooks)()


def counts(base, name):
    """Return the numbers of arguments that a hook gets."""
    parameters = list(inspect.signature(getattr(base, name)).parameters.values())[1:]
    fixed = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    optional = bool(fixed) and fixed[-1].name == "dataloader_idx" and fixed[-1].default == 0
    return {len(fixed)} | ({len(fixed) - 1} if optional else set())


class TestRefused:
    """A hook that cannot be called, and the arguments that Lightning 2.0 removed."""

    @pytest.mark.parametrize(
        ("name", "old", "new", "removed", "hint"),
        [
            (
                "on_train_batch_end",
                "trainer, pl_module, outputs, batch, batch_idx, dataloader_idx",
                "trainer, pl_module, outputs, batch, batch_idx", "dataloader_idx", "",
            ),
            (
                "on_train_batch_start", "trainer, pl_module, batch, batch_idx, dataloader_idx",
                "trainer, pl_module, batch, batch_idx", "dataloader_idx", "",
            ),
            (
                "on_validation_epoch_end", "trainer, pl_module, outputs", "trainer, pl_module", "outputs",
                "  # collect the outputs in on_validation_batch_end",
            ),
            (
                "on_before_optimizer_step", "trainer, pl_module, optimizer, optimizer_idx",
                "trainer, pl_module, optimizer", "optimizer_idx", "",
            ),
        ],
    )  # fmt: skip
    def test_a_callback_of_lightning_1(self, name, old, new, removed, hint):
        function = eval(f"lambda self, {old}: None")
        with refused(
            WRONG,
            f"Mine.{name} has the arguments (self, {old}), but it is called with (self, {new}): "
            f"missing a required argument: '{removed}'. Lightning 2.0 removed `{removed}`.",
            f"a method that can be called with (self, {new}).",
            f"def {name}(self, {new}):{hint}",
        ):
            trainer(callbacks=[with_hooks(Callback, **{name: function})])

    @pytest.mark.parametrize(
        ("name", "old", "new"),
        [
            ("on_train_epoch_end", "outputs", ""),
            ("on_train_batch_start", "batch, batch_idx, unused", "batch, batch_idx"),
            ("backward", "loss, optimizer, optimizer_idx", "loss"),
            ("optimizer_zero_grad", "epoch, batch_idx, optimizer, optimizer_idx", "epoch, batch_idx, optimizer"),
            ("lr_scheduler_step", "scheduler, optimizer_idx, metric", "scheduler, metric"),
            ("setup", "", "stage"),
            (
                "configure_gradient_clipping",
                "optimizer, optimizer_idx, gradient_clip_val, gradient_clip_algorithm",
                "optimizer, gradient_clip_val, gradient_clip_algorithm",
            ),
            (
                "optimizer_step",
                "epoch, batch_idx, optimizer, optimizer_idx, optimizer_closure, on_tpu, using_lbfgs",
                "epoch, batch_idx, optimizer, optimizer_closure",
            ),
        ],
    )
    @pytest.mark.parametrize("verb", ["fit", "validate"])
    def test_a_module_before_its_first_batch(self, name, old, new, verb):
        old, new = f"self, {old}".rstrip(", "), f"self, {new}".rstrip(", ")
        module = with_methods(Validated, **{name: eval(f"lambda {old}: 0")})
        with refused(
            WRONG, f"Given.{name} has the arguments ({old}), but it is called with ({new}): ***",
            f"a method that can be called with ({new}).", f"def {name}({new}):***",
        ):  # fmt: skip
            getattr(trainer(), verb)(module, loader())
        assert module.steps == 0

    def test_a_data_module_before_it_prepares_anything(self):
        prepared = []
        data = with_hooks(
            DataModule, setup=lambda self: None, prepare_data=lambda self: prepared.append(1),
            train_dataloader=lambda self: loader(),
        )  # fmt: skip
        with refused(
            WRONG,
            "Mine.setup has the arguments (self), but it is called with (self, stage): too many positional arguments.",
            "a method that can be called with (self, stage).", "def setup(self, stage):",
        ):  # fmt: skip
            trainer().fit(with_methods(), datamodule=data)
        assert not prepared

    def test_a_function_of_a_lambda_callback(self):
        with refused(
            WRONG,
            "LambdaCallback.on_train_start has the arguments (trainer), but it is called with (trainer, pl_module): "
            "too many positional arguments.",
            "a function that can be called with (trainer, pl_module).",
            "on_train_start=lambda trainer, pl_module: …",
        ):
            trainer(callbacks=[LambdaCallback(on_train_start=lambda trainer: None)])

    @pytest.mark.parametrize("decorators", [[rank_zero_only], [torch.no_grad()], [torch.no_grad(), rank_zero_only]])
    def test_through_decorators_that_pass_arguments_on(self, decorators):
        def hook(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx):
            raise AssertionError

        def right(self, trainer, pl_module, outputs, batch, batch_idx):
            seen.append(torch.is_grad_enabled())

        seen = []
        for decorator in decorators:
            hook, right = decorator(hook), decorator(right)
        with pytest.raises(WRONG, match=r"Lightning 2\.0 removed `dataloader_idx`"):
            trainer(callbacks=[with_hooks(Callback, on_train_batch_end=hook)])
        trainer(callbacks=[with_hooks(Callback, on_train_batch_end=right)]).fit(with_methods(), loader(3))
        assert len(seen) == 3

    def test_callbacks_of_the_module(self):
        late = with_hooks(Callback, on_train_start=lambda self: None)
        module = with_methods(configure_callbacks=lambda self: [late])
        with pytest.raises(WRONG, match=r"Mine.on_train_start has the arguments \(self\)"):
            trainer().fit(module, loader())
        assert module.steps == 0

    @pytest.mark.parametrize(
        ("name", "old", "new"),
        [
            ("log_metrics", "metrics", "metrics, step"),
            ("log_hyperparams", "", "params"),
            ("log_graph", "model", "model, input_array"),
            ("finalize", "", "status"),
        ],
    )
    @pytest.mark.parametrize("of", [lambda logger: trainer(logger=logger), lambda logger: Fabric(loggers=logger)])
    def test_a_logger(self, of, name, old, new):
        old, new = f"self, {old}".rstrip(", "), f"self, {new}"
        with refused(
            WRONG, f"Mine.{name} has the arguments ({old}), but it is called with ({new}): ***",
            f"a method that can be called with ({new}).", f"def {name}({new}):",
        ):  # fmt: skip
            of(type("Mine", (Rows,), {name: eval(f"lambda {old}: None")})())

    def test_under_lightnings_conventions_it_is_a_warning(self):
        callback = with_hooks(Callback, on_test_start=lambda self: None)
        with following(LIGHTNING), pytest.warns(UserWarning, match=r"Mine.on_test_start has the arguments \(self\)"):
            trainer(callbacks=[callback])

    @pytest.mark.parametrize("base", BASES)
    def test_every_hook_with_one_argument_more_or_less(self, base):
        names = _hooks_of(base)
        for name in names:
            most = max(counts(base, name)) + 1
            more = eval(f"lambda self{''.join(f', a{n}' for n in range(most))}: None")
            with pytest.raises(WRONG, match=f"Mine.{name} has the arguments"):
                check_signatures(with_hooks(base, **{name: more}), base)
            if min(counts(base, name)):
                with pytest.raises(WRONG, match=f"Mine.{name} has the arguments"):
                    check_signatures(with_hooks(base, **{name: lambda self: None}), base)
        assert {"setup", "teardown"} <= set(names)
        assert len(names) > 10


class TestAccepted:
    """Signatures that can be called."""

    @pytest.mark.parametrize("name", registry.names("loggers"))
    def test_the_loggers_of_lightlib(self, name):
        logger = registry.get("loggers", name)
        if isinstance(logger, type):
            check_signatures(object.__new__(logger), Logger, LOGGER_METHODS)

    @pytest.mark.parametrize("base", BASES)
    def test_the_signatures_of_the_base_class_and_open_ones(self, base):
        for name in _hooks_of(base):
            check_signatures(with_hooks(base, **{name: getattr(base, name)}), base)
            check_signatures(with_hooks(base, **{name: lambda self, *args: None}), base)
            check_signatures(with_hooks(base, **{name: staticmethod(lambda *args, more=1: None)}), base)
            check_signatures(with_hooks(base, **{name: max}), base)  # a builtin has no signature

    @pytest.mark.parametrize(
        "arguments",
        [
            "t, m, outputs, batch, i", "t, m, outputs, batch, i, loader=None",
            "t, m, outputs, batch, i, dataloader_idx", "t, m, *rest",
            "t, m, outputs, batch, i, *, dataloader_idx", "t, m, outputs, batch, i, dataloader_idx=0, more=1",
        ],
    )  # fmt: skip
    def test_with_and_without_the_index_of_the_loader(self, arguments):
        seen = []
        function = eval(f"lambda self, {arguments}: seen.append(1)", {"seen": seen})
        callback = with_hooks(Callback, on_validation_batch_end=function)
        trainer(callbacks=[callback]).validate(Validated(), loader(3), verbose=False)
        assert seen == [1, 1, 1]

    def test_a_decorator_that_adds_an_argument(self):
        def with_text(method):
            @functools.wraps(method)
            def wrapper(self, trainer, pl_module):
                return method(self, trainer, pl_module, "text")

            return wrapper

        seen = []

        class Mine(Callback):
            @with_text
            def on_train_start(self, trainer, pl_module, text):
                seen.append(text)

        trainer(callbacks=[Mine()]).fit(with_methods(), loader())
        assert seen == ["text"]

    def test_a_hook_that_is_none_is_not_defined(self):
        module = with_methods(Validated, on_train_epoch_end=lambda self, outputs: None)
        module.on_train_epoch_end = None
        trainer(limit_val_batches=0).fit(module, loader())
        assert module.steps == 4


@pytest.mark.parametrize("loaders", [1, 2])
def test_runs_call_hooks_with_these_numbers_of_arguments(loaders, tmp_path):
    """The signatures of the base classes, by which hooks are refused, are those of the calls."""
    seen: dict[tuple[type, str], set[int]] = {}

    def note(base, name, original):
        def hook(self, *args):
            seen.setdefault((base, name), set()).add(len(args))
            return original(self, *args)

        return hook

    def recording(base, without=()):
        names = [name for name in _hooks_of(base) if name not in without]
        original = BASES[base][0]
        return {name: note(base, name, getattr(original, name)) for name in names}

    def step(self, batch, batch_idx, dataloader_idx=0):
        return batch[0]

    def logged(self, batch, batch_idx, dataloader_idx=0):
        self.log("x", 1.0)

    steps = {"validation_step": logged, "test_step": step, "predict_step": step}
    optimizers = {
        "configure_optimizers": lambda self: (
            [optimizer := torch.optim.SGD(self.parameters(), 0.1)], [torch.optim.lr_scheduler.StepLR(optimizer, 1)],
        )
    }  # fmt: skip
    sources = [f"{stage}_dataloader" for stage in ("train", "val", "test", "predict")]
    evaluated = [loader(2) for _ in range(loaders)]
    module = with_methods(Validated, **(recording(Module, [*sources, *TRANSFERS]) | steps | optimizers))
    data = with_hooks(
        DataModule, **recording(DataModule, sources), train_dataloader=lambda self: loader(),
        **dict.fromkeys(sources[1:], lambda self: evaluated),
    )  # fmt: skip
    saved = note(Callback, "state_dict", lambda self: {"a": 1})
    callback = with_hooks(Callback, **(recording(Callback) | {"state_dict": saved}))
    run = trainer(callbacks=[callback], gradient_clip_val=1.0, max_epochs=1, logger=True, default_root_dir=tmp_path)
    run.fit(module, datamodule=data)
    run.save_checkpoint(tmp_path / "a.ckpt")
    again = trainer(callbacks=[callback], gradient_clip_val=1.0, max_epochs=2, default_root_dir=tmp_path)
    again.fit(module, datamodule=data, ckpt_path=tmp_path / "a.ckpt")
    for verb in ("validate", "test", "predict"):
        getattr(again, verb)(module, datamodule=data)
    for (base, name), numbers in seen.items():
        assert numbers <= counts(base, name), name
    called = {name for base, name in seen if base is Callback}
    missing = set(_hooks_of(Callback)) - called
    assert missing <= {"on_exception", "on_checkpoint_uploaded", "load_sharded_state", "on_substep_end"}
