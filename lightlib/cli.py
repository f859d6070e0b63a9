"""LightningCLI: a module, its data and a Trainer, built from files and the command line."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import yaml
from jsonargparse import ActionConfigFile, Namespace, class_from_function  # type: ignore[attr-defined]
from torch.optim import Optimizer

from lightlib import lazy, report
from lightlib.config.from_checkpoint import with_hyperparameters
from lightlib.config.hyperparameters import RecordingInstantiator, instantiate_module
from lightlib.config.model_optimizers import configured_method
from lightlib.config.optimizers import (
    SCHEDULERS,
    LRSchedulerCallable,
    OptimizerCallable,
    ReduceLROnPlateau,
    instantiate_class,
    with_class_path,
)
from lightlib.config.parser import LightningArgumentParser
from lightlib.config.save_config import SaveConfigCallback
from lightlib.config.trainer_arguments import build_callbacks, is_object, with_callbacks, with_objects
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.core.trainer import Trainer
from lightlib.data.seed import choose_seed, seed_everything
from lightlib.errors import MisconfigurationException
from lightlib.version import __version__

__all__ = [
    "ArgsType",
    "LRSchedulerCallable",
    "LightningArgumentParser",
    "LightningCLI",
    "OptimizerCallable",
    "ReduceLROnPlateau",
    "SaveConfigCallback",
    "instantiate_class",
    "instantiate_module",
]

ArgsType = list[str] | dict[str, Any] | Namespace | None


class LightningCLI:
    """Makes a program from a module and a data module: ``python main.py fit --config run.yaml --trainer.max_epochs 5``.

    Everything in its constructor happens in this order: the parser is made, the arguments are parsed, the seed is
    set, the classes are built, the sub-command is run. Each step is a method that a subclass can override, and
    ``before_fit``, ``after_fit`` (and so on for each sub-command) are called where a subclass defines them. The private
    methods that subclasses for Lightning override or call have Lightning's names: `_add_instantiators`,
    `_add_configure_optimizers_method_to_model`, `_instantiate_trainer`, `_parser` and `_prepare_subcommand_kwargs`.

    Args:
        model_class: A Module class, or a function annotated to return a Module. Default: any, by its class path.
        datamodule_class: Likewise for a DataModule. Default: any, or none.
        save_config_callback: Writes the configuration next to the logs of a run. None: it is not saved.
        save_config_kwargs: Its arguments.
        trainer_class: A Trainer class, or a function annotated to return one.
        trainer_defaults: Other defaults for the Trainer; ``"callbacks"`` are always added: objects, or dictionaries
            with a ``class_path`` and ``init_args``. An object, such as a profiler, is used wherever the configuration
            leaves the Trainer's own default.
        seed_everything_default: A seed; True (default) chooses one, which the saved configuration holds; False: none.
        parser_kwargs: Arguments of every parser, or of those of sub-commands: ``{"fit": {"default_env": True}}``.
        parser_class: Of the parser.
        subclass_mode_model: Take subclasses of `model_class` as well, by their class path.
        subclass_mode_data: Likewise.
        args: What to parse instead of the command line: words, or a dictionary.
        run: Whether there are sub-commands. False only builds: ``cli.model``, ``cli.datamodule``, ``cli.trainer``.
        auto_configure_optimizers: Add ``--optimizer`` and ``--lr_scheduler`` where the parser has none.
        load_from_checkpoint_support: Let `save_hyperparameters` keep the configuration instead of the built objects.

    Attributes:
        parser, subcommand: The main parser, and the name of the sub-command or None.
        config, config_init: The parsed configuration, and the same with objects.
        model, datamodule, trainer: The objects that were built.

    Example:
        >>> from lightlib.testing import BoringModule
        >>> cli = LightningCLI(BoringModule, args=["--trainer.max_epochs=2", "--seed_everything=1"], run=False)
        >>> cli.trainer.max_epochs, type(cli.model).__name__
        (2, 'BoringModule')
    """

    def __init__(
        self,
        model_class: type[Module] | Callable[..., Module] | None = None,
        datamodule_class: type[DataModule] | Callable[..., DataModule] | None = None,
        save_config_callback: type[SaveConfigCallback] | None = SaveConfigCallback,
        save_config_kwargs: dict[str, Any] | None = None,
        trainer_class: type[Trainer] | Callable[..., Trainer] = Trainer,
        trainer_defaults: dict[str, Any] | None = None,
        seed_everything_default: bool | int = True,
        parser_kwargs: dict[str, Any] | dict[str, dict[str, Any]] | None = None,
        parser_class: type[LightningArgumentParser] = LightningArgumentParser,
        subclass_mode_model: bool = False,
        subclass_mode_data: bool = False,
        args: ArgsType = None,
        run: bool = True,
        auto_configure_optimizers: bool = True,
        load_from_checkpoint_support: bool = True,
    ) -> None:
        super().__init__()
        self.model_class = model_class
        self.datamodule_class = datamodule_class
        self._model_class, self._datamodule_class = model_class or Module, datamodule_class or DataModule
        self.save_config_callback = save_config_callback
        self.save_config_kwargs = save_config_kwargs or {}
        self.trainer_class = trainer_class
        self.trainer_defaults = trainer_defaults or {}
        self.seed_everything_default = seed_everything_default
        self.parser_kwargs = parser_kwargs or {}
        self.parser_class = parser_class
        self.subclass_mode_model = model_class is None or subclass_mode_model
        self.subclass_mode_data = datamodule_class is None or subclass_mode_data
        self.auto_configure_optimizers = auto_configure_optimizers
        self._given = args
        self._objects: dict[str, Any] = {}
        self._subcommand_parsers: dict[str, LightningArgumentParser] = {}
        self._subcommand_method_arguments: dict[str, list[str]] = {}

        verbs = self.subcommands()
        main_kwargs = {name: value for name, value in self.parser_kwargs.items() if name not in verbs}
        self.setup_parser(run, main_kwargs, {n: v for n, v in self.parser_kwargs.items() if n in verbs})
        self.parse_arguments(self.parser, args)
        self.subcommand: str | None = self.config["subcommand"] if run else None
        self._set_seed()
        if load_from_checkpoint_support:
            self._add_instantiators()
        self.before_instantiate_classes()
        self.instantiate_classes()
        self.after_instantiate_classes()
        if self.subcommand is not None:
            self._run_subcommand(self.subcommand)

    # the parser
    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Return a parser with the option ``--config``."""
        kwargs.setdefault("dump_header", [f"lightlib=={__version__}"])
        parser = self.parser_class(**kwargs)
        parser.add_argument(
            "-c",
            "--config",
            action=ActionConfigFile,
            help="A configuration file (YAML or JSON); of several the last wins.",
        )
        return parser

    def setup_parser(
        self, add_subcommands: bool, main_kwargs: dict[str, Any], subparser_kwargs: dict[str, Any]
    ) -> None:
        """Make ``self.parser``, with sub-commands or without.

        If the first word is a sub-command, the rest of them get only the arguments of their method: making all four
        takes three times as long, and they would not be used.
        """
        self.parser = self.init_parser(**main_kwargs)
        if not add_subcommands:
            self._add_arguments(self.parser)
            return
        trainer_class: Any = self.trainer_class
        if not isinstance(trainer_class, type):
            trainer_class = class_from_function(trainer_class)
        added = self.parser.add_subcommands()
        requested = self._requested_verbs()
        for verb, skipped in self.subcommands().items():
            about = inspect.getdoc(getattr(trainer_class, verb)) or ""
            options = {"description": about.partition("\n")[0].replace("`", ""), **subparser_kwargs.get(verb, {})}
            parser = self.init_parser(**options)
            if verb in requested:
                self._add_arguments(parser)
            self._subcommand_method_arguments[verb] = parser.add_method_arguments(
                trainer_class, verb, skip=set(skipped)
            )
            self._subcommand_parsers[verb] = parser
            self.parser.merge_subparser(verb, parser)
            added.add_subcommand(verb, parser, help=options["description"])
        for parser in self._subcommand_parsers.values():
            parser.ignore_other_subcommands(
                name for names in self._subcommand_method_arguments.values() for name in names
            )

    def _requested_verbs(self) -> Collection[str]:
        """Return the sub-commands that may be requested: one, if the first word is its name."""
        verbs = self.subcommands()
        if type(self).parse_arguments is not LightningCLI.parse_arguments:
            return verbs  # an override may parse other words
        arguments: Any = sys.argv[1:] if self._given is None else self._given
        first = (
            arguments.get("subcommand") if isinstance(arguments, (Mapping, Namespace)) else next(iter(arguments), None)
        )
        return [first] if isinstance(first, str) and first in verbs else verbs

    def _add_arguments(self, parser: LightningArgumentParser) -> None:
        self.add_default_arguments_to_parser(parser)
        self.add_core_arguments_to_parser(parser)
        self.add_arguments_to_parser(parser)
        if self.auto_configure_optimizers:
            if not parser.optimizers:
                parser.add_optimizer_args((Optimizer,))
            if not parser.lr_schedulers:
                parser.add_lr_scheduler_args(SCHEDULERS)
        self.link_optimizers_and_lr_schedulers(parser)

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add ``--seed_everything``."""
        parser.add_argument(
            "--seed_everything",
            type=bool | int,
            default=self.seed_everything_default,
            help="The seed of all random numbers. true chooses one, which the saved configuration holds; false: none.",
        )

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the groups ``trainer``, ``model`` and ``data``."""
        parser.add_lightning_class_args(self.trainer_class, "trainer")
        defaults = {f"trainer.{name}": value for name, value in self.trainer_defaults.items() if name != "callbacks"}
        parser.set_defaults({key: value for key, value in defaults.items() if not is_object(value)})
        self._objects = {key: parser.get_default(key) for key, value in defaults.items() if is_object(value)}
        parser.add_lightning_class_args(self._model_class, "model", self.subclass_mode_model)
        parser.add_lightning_class_args(
            self._datamodule_class,
            "data",
            self.subclass_mode_data,
            required=self.datamodule_class is not None,  # a module may have loaders of its own
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Override to add arguments, or links: ``parser.link_arguments("data.batch_size", "model.batch_size")``."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the Trainer's methods that are sub-commands, each with those of its arguments that are no options."""
        data = {"model", "dataloaders", "datamodule"}
        return {
            "fit": {"model", "train_dataloaders", "val_dataloaders", "datamodule"},
            "validate": data,
            "test": data,
            "predict": data,
        }

    @staticmethod
    def link_optimizers_and_lr_schedulers(parser: LightningArgumentParser) -> None:
        """Link the optimizers and schedulers that were added with ``link_to="model.…"``."""
        for key, (kind, target) in {**parser.optimizers, **parser.lr_schedulers}.items():
            if target != "AUTOMATIC":
                one_class: dict[str, Any] = (
                    {} if isinstance(kind, tuple) else {"compute_fn": partial(with_class_path, kind)}
                )
                parser.link_arguments(key, target, **one_class)

    # parsing
    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse, and keep the result as ``self.config``."""
        if args is not None and len(sys.argv) > 1 and self._subcommand_parsers:
            report.warn(
                f"LightningCLI got args={args!r:.80}, and the program was called with {sys.argv[1:]}, which is not "
                "read. Leave out args to read the command line.",
                report.PossibleUserWarning,
            )
        self.config: Any
        if args is None or isinstance(args, (list, tuple)):
            self._parse_words(parser, sys.argv[1:] if args is None else args)
        else:
            self.config = parser.parse_object(args)

    def _parse_words(self, parser: LightningArgumentParser, words: Sequence[str]) -> None:
        model = self._model_class
        extended = with_hyperparameters(words, parser, model, self.subclass_mode_model, parser.sources)
        parser.sources.name_texts({word.partition("=")[2]: "--ckpt_path" for word in extended if word not in words})
        self.config = parser.parse_args(extended)

    def _set_seed(self) -> None:
        asked = self._get(self.config, "seed_everything")
        if asked is not False:
            try:
                seed = seed_everything(choose_seed() if asked is True else asked, workers=True)
            except MisconfigurationException as error:
                self._parser(self.subcommand).places_of("", "", {"seed_everything": asked}).add_to(error)
                raise
            self._part(self.config)["seed_everything"] = seed

    # building
    def _add_instantiators(self) -> None:
        for key, target, subclasses in (
            ("model", self._model_class, self.subclass_mode_model),
            ("data", self._datamodule_class, self.subclass_mode_data),
        ):
            kind = target if isinstance(target, type) else inspect.signature(target, eval_str=True).return_annotation
            self.parser.add_instantiator(self._instantiator(key), kind, subclasses=subclasses)

    def _instantiator(self, key: str) -> Any:
        return RecordingInstantiator(partial(self._configured, key), key)

    def _configured(self, key: str) -> dict[str, Any]:
        """Return the configuration of the model or the data, as plain values."""
        if not hasattr(self, "config_dump"):
            text = self.parser.dump(self.config, skip_link_targets=False, skip_none=False, format="yaml", masks=False)
            self.config_dump = yaml.safe_load(text)
            if self.subcommand is not None:
                self.config_dump = self.config_dump[self.subcommand]
        return self.config_dump.get(key) or {}

    def before_instantiate_classes(self) -> None:
        """Override to do something before the classes are built."""

    def instantiate_classes(self) -> None:
        """Build the data module, the model and the Trainer."""
        self.config_init = self.parser.instantiate(self.config)
        self.datamodule = self._get(self.config_init, "data")
        self.model = self._get(self.config_init, "model")
        self._add_configure_optimizers_method_to_model(self.subcommand)
        self.trainer = self.instantiate_trainer()

    def after_instantiate_classes(self) -> None:
        """Override to do something after the classes are built."""

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Return the Trainer.

        Args:
            kwargs: Arguments that take the place of configured ones.
        """
        arguments = {**self._get(self.config_init, "trainer", {}), **kwargs}
        callbacks = [self._get(self.config_init, key) for key in self._parser(self.subcommand).callback_keys]
        return self._instantiate_trainer(arguments, callbacks)

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Any]) -> Trainer:
        """Return the Trainer with these arguments, and with these callbacks as well as those of the defaults."""
        parser, arguments = self._parser(self.subcommand), with_objects(config, self._objects, self.trainer_defaults)
        added = [*callbacks, *build_callbacks(self.trainer_defaults.get("callbacks"), self.parser_class)]
        if self.save_config_callback is not None and not arguments.get("fast_dev_run"):
            added.append(self.save_config_callback(parser, self._part(self.config), **self.save_config_kwargs))
        arguments = with_callbacks(arguments, added, self.trainer_class)
        try:
            return self.trainer_class(**arguments)
        except Exception as error:
            parser.places_of("", "trainer", arguments).add_to(error)
            raise

    @staticmethod
    def configure_optimizers(
        lightning_module: Module,  # noqa: ARG004  for those who override it
        optimizer: Optimizer,
        lr_scheduler: Any = None,
    ) -> Any:
        """Return the result of the module's `configure_optimizers`. Override to combine the two differently.

        Args:
            lightning_module: The model.
            optimizer: Built from ``optimizer``.
            lr_scheduler: Built from ``lr_scheduler``, or None.
        """
        if lr_scheduler is None:
            return optimizer
        if isinstance(lr_scheduler, ReduceLROnPlateau):
            entry = {"scheduler": lr_scheduler, "monitor": lr_scheduler.monitor}
            return {"optimizer": optimizer, "lr_scheduler": entry}
        return [optimizer], [lr_scheduler]

    def _add_configure_optimizers_method_to_model(self, subcommand: str | None) -> None:
        if not self.auto_configure_optimizers:
            return
        kind, config = type(self), self._part(self.config_init)
        combine = kind.configure_optimizers
        overrides = combine is not LightningCLI.configure_optimizers
        method = configured_method(self.model, self._parser(subcommand), config, kind.__name__, combine, overrides)
        if method is not None:
            self.model.configure_optimizers = method

    # running
    def _run_subcommand(self, verb: str) -> None:
        for name in (f"before_{verb}", verb, f"after_{verb}"):
            method = getattr(self, name, None)
            if name == verb:
                (method or getattr(self.trainer, verb))(**self._prepare_subcommand_kwargs(verb))
            elif callable(method):
                method()

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        config, names = self.config_init[subcommand], self._subcommand_method_arguments[subcommand]
        arguments = {name: config[name] for name in names if name in config}
        if self.datamodule is not None:
            arguments["datamodule"] = self.datamodule
        return {**arguments, "model": self.model}

    # sections of the configuration
    def _parser(self, subcommand: str | None) -> LightningArgumentParser:
        return self.parser if subcommand is None else self._subcommand_parsers[subcommand]

    def _part(self, config: Any) -> Any:
        return config if self.subcommand is None else config[self.subcommand]

    def _get(self, config: Any, key: str, default: Any = None) -> Any:
        return self._part(config).get(key, default)


if not TYPE_CHECKING:
    __getattr__ = lazy.translated_names(__name__)
