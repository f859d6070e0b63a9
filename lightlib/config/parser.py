"""LightningArgumentParser: jsonargparse's parser with our classes and safe configuration files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import glob
from typing import Any, NoReturn, TypeVar

from jsonargparse import Namespace, class_from_function  # type: ignore[attr-defined]
from torch.optim import Optimizer

from lightlib.callbacks.callback import Callback
from lightlib.config.class_paths import TAKEN_BY_TRAINER, arguments_with_class_paths, with_class_paths
from lightlib.config.compatible import CompatibleParser
from lightlib.config.errors.explain import explain
from lightlib.config.errors.invocation import Invocation, plain
from lightlib.config.errors.places import Places, key_of, places_of
from lightlib.config.help import HelpFormatter
from lightlib.config.loader import MODE, handed_over, with_unix_lines
from lightlib.config.optimizers import SCHEDULERS, Classes, LRSchedulerConfig
from lightlib.config.secrets import from_environment, masked, still_masked, variable_of
from lightlib.config.yaml.file import ConfigError, Document, Sources, dump, text_of
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.core.trainer import Trainer
from lightlib.errors import ArgumentTypeError, LightlibError, shown

T = TypeVar("T")
_KINDS = (Trainer, Module, DataModule, Callback)
_YAML = (MODE, "yaml", "omegaconf", "omegaconf+")


class LightningArgumentParser(CompatibleParser):
    """jsonargparse's ArgumentParser, with `add_lightning_class_args`, `add_optimizer_args` and `add_lr_scheduler_args`.

    Configuration files are read safely, class paths of Lightning mean ours, and errors include the fix.

    Args:
        args, kwargs: As jsonargparse's.
        description: What the help begins with.
        env_prefix: Of the environment variables that are read with `default_env`: ``PL_FIT__TRAINER__MAX_EPOCHS``.
        default_env: Whether they are read.

    Attributes:
        callback_keys: Where callbacks were added by `add_lightning_class_args`.
        sources: The configuration files read so far, with the places of their keys.
        named: Where the name of a class may stand: the group of the registry by key.
        of_others: Arguments of other sub-commands, which are ignored in a file.
    """

    def __init__(
        self,
        *args: Any,
        description: str = "Train, validate, test and predict, from configuration files and the command line.",
        env_prefix: str = "PL",
        default_env: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("formatter_class", HelpFormatter)
        kwargs.setdefault("allow_abbrev", False)  # --trainer.max_epoch is a mistake, not short for something
        self.callback_keys: list[str] = []
        self.sources = Sources()
        self.named: dict[str, str] = {"trainer.callbacks": "callbacks", **TAKEN_BY_TRAINER}
        self.optimizers: dict[str, tuple[Classes, str]] = {}
        self.lr_schedulers: dict[str, tuple[Classes, str]] = {}
        self.of_others: set[str] = set()
        self._files: list[str] = []  # that are being parsed, each included by the one before
        if kwargs.get("parser_mode", "yaml") == "yaml":
            kwargs["parser_mode"] = MODE
        super().__init__(*args, description=description, env_prefix=env_prefix, default_env=default_env, **kwargs)

    # what can be added
    def add_lightning_class_args(
        self,
        lightning_class: Callable[..., Any] | type,
        nested_key: str,
        subclass_mode: bool = False,
        required: bool = True,
    ) -> list[str]:
        """Add a group: the arguments of a Trainer, Module, DataModule or Callback, or of a function that returns one.

        Args:
            lightning_class: The class or the function, whose result must be annotated.
            nested_key: The name of the group.
            subclass_mode: Also take any subclass, by its `class_path`.
            required: Whether it has to be given; for `subclass_mode`.

        Returns:
            The names of the arguments.

        Raises:
            ArgumentTypeError: It is something else.
        """
        kind: Any = lightning_class
        if callable(kind) and not isinstance(kind, type):
            kind = class_from_function(kind)
        if not (isinstance(kind, type) and issubclass(kind, _KINDS)):
            raise ArgumentTypeError(
                f"add_lightning_class_args got {shown(lightning_class)}.",
                expected="a subclass of Trainer, Module, DataModule or Callback, or a function that is annotated so.",
                fix="parser.add_argument(…) or parser.add_class_arguments(…) for anything else.",
            )
        if issubclass(kind, Callback):
            self.callback_keys.append(nested_key)
        added: list[str]
        if subclass_mode:
            added = self.add_subclass_arguments(kind, nested_key, fail_untyped=False, required=required)
        else:
            build = not issubclass(kind, Trainer)
            added = self.add_class_arguments(kind, nested_key, fail_untyped=False, instantiate=build, sub_configs=True)
        return added

    def add_optimizer_args(
        self,
        optimizer_class: Classes = (Optimizer,),
        nested_key: str = "optimizer",
        link_to: str = "AUTOMATIC",
    ) -> None:
        """Add the arguments of an optimizer.

        Args:
            optimizer_class: A class; or a tuple of classes, of which any subclass can be chosen.
            nested_key: The name of the group.
            link_to: The argument that gets it, for instance ``"model.optimizer1"``; or ``"AUTOMATIC"``: the module's
                `configure_optimizers` returns it.
        """
        self._add_chosen(optimizer_class, nested_key, Optimizer, "params")
        self.named[nested_key] = "optimizers"
        self.optimizers[nested_key] = (optimizer_class, link_to)

    def add_lr_scheduler_args(
        self,
        lr_scheduler_class: Classes = SCHEDULERS,
        nested_key: str = "lr_scheduler",
        link_to: str = "AUTOMATIC",
    ) -> None:
        """Add the arguments of a learning-rate scheduler; the arguments are those of `add_optimizer_args`.

        If the module gets it without a link, a group such as ``lr_scheduler_config`` sets when it steps.
        """
        self._add_chosen(lr_scheduler_class, nested_key, SCHEDULERS, "optimizer")
        if link_to == "AUTOMATIC":
            self.add_class_arguments(LRSchedulerConfig, f"{nested_key}_config")
        self.named[nested_key] = "schedulers"
        self.lr_schedulers[nested_key] = (lr_scheduler_class, link_to)

    def _add_chosen(self, classes: Classes, key: str, base: Classes, first: str) -> None:
        several: Any = classes if isinstance(classes, tuple) else (classes,)
        for kind in several:
            if not (isinstance(kind, type) and issubclass(kind, base)):
                raise ArgumentTypeError(
                    f"The arguments of {shown(kind)} were to be added as {key!r}.",
                    expected=" or ".join(cls.__name__ for cls in (base if isinstance(base, tuple) else (base,)))
                    + ", or subclasses of it.",
                    fix="pass the class, not an instance; a tuple lets the configuration choose any subclass.",
                )
        options: dict[str, Any] = {"instantiate": False, "fail_untyped": False, "skip": {first}}
        if isinstance(classes, tuple):
            self.add_subclass_arguments(classes, key, **options)
        else:
            self.add_class_arguments(classes, key, sub_configs=True, **options)

    def merge_subparser(self, verb: str, parser: LightningArgumentParser) -> None:
        """Add the names of a sub-command's parser, and share the configuration files with it."""
        parser.share_sources(self.sources)
        self.named |= parser.named | {f"{verb}.{key}": group for key, group in parser.named.items()}

    def share_sources(self, sources: Sources) -> None:
        """Record configuration files together with another parser."""
        self.sources = sources

    def ignore_other_subcommands(self, arguments: Iterable[str]) -> None:
        """Ignore arguments of other sub-commands in a file, which may be the record of one of their runs."""
        self.of_others = set(arguments) - {action.dest.partition(".")[0] for action in self._actions}

    def set_defaults(self, *args: Any, **kwargs: Any) -> None:
        """Set other defaults, by their dotted keys; names and class paths of Lightning mean ours here too."""
        super().set_defaults(
            *(with_class_paths(arg, self.named) if isinstance(arg, dict) else arg for arg in args), **kwargs
        )

    # reading
    def parse_args(self, args: Sequence[str] | None = None, *rest: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Parse the command line. An error is explained, and ends the program with status 2."""
        words: Any = list(sys.argv[1:] if args is None else args)
        call = super().parse_args
        return self._checked(
            lambda: self._complete(call(list(arguments_with_class_paths(words, self.named)), *rest, **kwargs))
        )

    def parse_object(self, obj: Any, *rest: Any, **kwargs: Any) -> Any:
        """Parse a dictionary or a Namespace."""
        call = super().parse_object
        return self._checked(
            lambda: call(obj if isinstance(obj, Namespace) else with_class_paths(obj, self.named), *rest, **kwargs)
        )

    def parse_path(self, path: Any, *rest: Any, **kwargs: Any) -> Any:
        """Parse a configuration file, which is read and parsed as YAML once; its relative paths start in its folder."""
        name = str(path)
        remote = name == "-" or any("://" in file for file in (name, *self._files))
        full = name if remote else os.path.abspath(name)
        if full in self._files:
            raise ConfigError(
                f"{name} includes itself: {' → '.join(map(os.path.basename, (*self._files, full)))}.",
                expected="files that do not include each other.",
                fix="delete `config:` in one of them.",
            )
        self._files.append(full)
        try:
            if remote or self.parser_mode not in _YAML:
                return super().parse_path(path, *rest, **kwargs)
            document = self.sources.take(name)
            with _in_folder(os.path.dirname(full)):
                return self._parse_document(document, os.path.basename(name), *rest, **kwargs)
        finally:
            self._files.pop()

    def parse_string(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the text of a configuration."""
        if self.parser_mode not in _YAML:
            return super().parse_string(*args, **kwargs)
        name = next((name for name in ("content", "cfg_str") if name in kwargs), None)
        text, *rest = args if name is None else (kwargs.pop(name), *args)
        return self._parse_document(
            self.sources.document(text, self._files[-1] if self._files else None), *rest, **kwargs
        )

    def _parse_document(self, document: Document, *rest: Any, **kwargs: Any) -> Any:
        values = self._values_of(document)
        if self.parser_mode != MODE:  # the loaders of interpolation take text only
            return super().parse_string(dump(values), *rest, **kwargs)
        with handed_over({with_unix_lines(document.text): values}):
            return super().parse_string(document.text, *rest, **kwargs)

    def get_defaults(self, *args: Any, **kwargs: Any) -> Namespace:
        """Return the default values, including those of `default_config_files`."""
        values = {}
        for path in (
            path for pattern in self.default_config_files for path in sorted(glob(os.path.expanduser(pattern)))
        ):
            text = text_of(path)
            if self.parser_mode in _YAML and text.strip():
                values[with_unix_lines(text)] = self._values_of(self.sources.document(text, path), default=True)
        with handed_over(values):
            defaults: Namespace = super().get_defaults(*args, **kwargs)
        return defaults

    def _values_of(self, document: Document, *, default: bool = False) -> dict[str, Any]:
        """Return the checked values of a configuration, with our class paths."""
        value = self.sources.add(document, default=default)
        groups = self.group_names()
        self.sources.check_groups(groups)
        try:
            ours = with_class_paths(from_environment(value), self.named)
        except LightlibError as error:  # an unknown name
            raise ConfigError(f"{self.sources.place_of_name(str(error))}: {error}") from error
        return _without_empty({key: value for key, value in ours.items() if key not in self.of_others}, groups)

    def _complete(self, config: T) -> T:
        """Return a configuration that has no masked secret.

        Raises:
            ConfigError: One of them is, as in the saved configuration of another run.
        """
        for key in still_masked(config):
            invocation = Invocation(self, self.sources)
            place = invocation.location(key).text
            option = invocation.without_verb(key)
            raise ConfigError(
                f"{option!r}{place} is a secret, which is masked in a saved configuration.",
                expected=f"its value in the environment variable {variable_of(key)}, or as an option.",
                fix=f"{variable_of(key)}=… {invocation.command} …, or --{plain(option)}=…",
            )
        return config

    def dump(self, cfg: Any, *args: Any, masks: bool = True, **kwargs: Any) -> str:
        """Return a configuration as text, with ``***`` for its secrets unless `masks` is False."""
        return super().dump(masked(cfg) if masks else cfg, *args, **kwargs)

    def save(self, cfg: Any, *args: Any, **kwargs: Any) -> None:
        """Write a configuration to files, with ``***`` for its secrets."""
        super().save(masked(cfg), *args, **kwargs)

    def _checked(self, parse: Callable[[], T]) -> T:
        try:
            return parse()
        except LightlibError as error:
            self.error(str(error), error)

    def group_names(self) -> set[str]:
        """Return the keys that have keys below them, also with the sub-command in front."""
        groups = {
            dest.rpartition(".")[0]
            for action in self._actions
            if action.option_strings and "." in (dest := action.dest) and not dest.endswith(".help")
        }
        for verb, parser in (self._subcommands_action.choices if self._subcommands_action else {}).items():
            groups |= {verb, *(f"{verb}.{group}" for group in parser.group_names())}
        return groups

    # errors
    def not_built(self, namespace: Namespace, error: Exception, class_type: Any, arguments: Mapping[str, Any]) -> None:
        """Add to the error of a class the places of its arguments in files or on the command line."""
        verbs: Mapping[str, Any] = self._subcommands_action.choices if self._subcommands_action else {}
        verb = namespace.get("subcommand") if verbs else None
        parser = verbs[verb] if verb else self
        groups = {key: getattr(group, "group_class", None) for key, group in (parser.groups or {}).items()}
        config = namespace[verb] if verb else namespace
        key = key_of(class_type, arguments, config, groups)
        if key is not None:
            path = f"{getattr(class_type, '__module__', '')}.{getattr(class_type, '__qualname__', '')}"
            parser.places_of(path, key, arguments).add_to(error)

    def places_of(self, class_path: str, key: str, arguments: Mapping[str, Any]) -> Places:
        """Return the places of an object and its arguments; the key above them is such as ``"optimizer.init_args"``."""
        return places_of(class_path, key, arguments, Invocation(self, self.sources))

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the error, the expected value and the fix; end the program with status 2."""
        parser = getattr(ex, "subcommand_parser", None) or self
        ours = _cause_of_ours(ex)
        is_final = ours is not None and "sub-config file" not in message  # `explain` adds the name of that file
        text = str(ours) if is_final else explain(message, parser=parser, sources=self.sources)
        if not self.exit_on_error:
            super().error(text, ex)
        sys.stderr.write(f"{text}\n")
        self.exit(2)


def _without_empty(config: dict[str, Any], groups: Collection[str], prefix: str = "") -> dict[str, Any]:
    """Return a configuration without its empty groups."""
    return {
        key: _without_empty(value, groups, f"{prefix}{key}.") if isinstance(value, dict) else value
        for key, value in config.items()
        if not (value is None and f"{prefix}{key}" in groups)
    }


def _cause_of_ours(error: BaseException | None) -> LightlibError | None:
    """Return the error of ours that caused one of jsonargparse's; it is more specific."""
    while error is not None and not isinstance(error, LightlibError):
        error = error.__cause__ or error.__context__
    return error


@contextmanager
def _in_folder(folder: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
