"""LightningArgumentParser: jsonargparse's parser, which knows our classes and reads files safely."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from glob import glob
from typing import Any, NoReturn, TypeVar

import jsonargparse
from jsonargparse import Namespace, class_from_function  # type: ignore[attr-defined]
from torch.optim import Optimizer

from lightlib.callbacks.callback import Callback
from lightlib.config import names
from lightlib.config.compatible import CompatibleParser
from lightlib.config.errors.explain import explain
from lightlib.config.errors.invocation import Invocation
from lightlib.config.errors.places import Places, key_of, places_of
from lightlib.config.help import HelpFormatter
from lightlib.config.optimizers import SCHEDULERS
from lightlib.config.yaml.file import ConfigError, Document, Sources, dump, loader, text_of
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.core.trainer import Trainer
from lightlib.errors import ArgumentTypeError, LightlibError, shown

__all__ = ["LightningArgumentParser"]

T = TypeVar("T")
Classes = type | tuple[type, ...]
_KINDS = (Trainer, Module, DataModule, Callback)
_NO_NAMES = ("null", "none", "true", "false")
# Arguments of the Trainer that take names themselves: there only names of classes are looked up, and `csv` stays `csv`.
_TAKEN_BY_TRAINER = {
    "trainer.accelerator": "accelerators",
    "trainer.logger": "loggers",
    "trainer.profiler": "profilers",
    "trainer.strategy": "strategies",
}
MODE = "lightlib"  # the `parser_mode` of our YAML loader
_YAML = (MODE, "yaml", "omegaconf", "omegaconf+")


class LightningArgumentParser(CompatibleParser):
    """jsonargparse's ArgumentParser, with `add_lightning_class_args`, `add_optimizer_args` and `add_lr_scheduler_args`.

    Configuration files are read safely, class paths of Lightning mean ours, and errors say what to write instead.

    Args:
        args, kwargs: As jsonargparse's.
        description: What the help begins with.
        env_prefix: Of the environment variables that are read with `default_env`: ``PL_FIT__TRAINER__MAX_EPOCHS``.
        default_env: Whether they are read.

    Attributes:
        callback_keys: Where callbacks were added by `add_lightning_class_args`.
        sources: The configuration files that were read, and what stands where in them.
        named: Where the name of a class may stand: the group of the registry by key.
        of_others: Arguments of other sub-commands, which are passed over in a file.
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
        self.named: dict[str, str] = {"trainer.callbacks": "callbacks", **_TAKEN_BY_TRAINER}
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
        """Add the arguments of a learning-rate scheduler; the arguments are those of `add_optimizer_args`."""
        self._add_chosen(lr_scheduler_class, nested_key, SCHEDULERS, "optimizer")
        self.named[nested_key] = "schedulers"
        self.lr_schedulers[nested_key] = (lr_scheduler_class, link_to)

    def _add_chosen(self, given: Classes, key: str, base: Classes, first: str) -> None:
        several: Any = given if isinstance(given, tuple) else (given,)
        for kind in several:
            if not (isinstance(kind, type) and issubclass(kind, base)):
                raise ArgumentTypeError(
                    f"The arguments of {shown(kind)} were to be added as {key!r}.",
                    expected=" or ".join(one.__name__ for one in (base if isinstance(base, tuple) else (base,)))
                    + ", or subclasses of it.",
                    fix="pass the class, not an instance; a tuple lets the configuration choose any subclass.",
                )
        options: dict[str, Any] = {"instantiate": False, "fail_untyped": False, "skip": {first}}
        if isinstance(given, tuple):
            self.add_subclass_arguments(given, key, **options)
        else:
            self.add_class_arguments(given, key, sub_configs=True, **options)

    def merge_subparser(self, verb: str, parser: LightningArgumentParser) -> None:
        """Know what the parser of a sub-command knows, and share the files that are read."""
        parser.sources = self.sources
        self.named |= parser.named | {f"{verb}.{key}": group for key, group in parser.named.items()}

    def ignore_other_subcommands(self, arguments: Iterable[str]) -> None:
        """Pass over arguments of other sub-commands in a file, which may be that of one of their runs."""
        self.of_others = set(arguments) - {action.dest.partition(".")[0] for action in self._actions}

    def set_defaults(self, *args: Any, **kwargs: Any) -> None:
        """Set other defaults, by their dotted keys; names and class paths of Lightning mean ours here too."""
        super().set_defaults(*(self._ours(one) if isinstance(one, dict) else one for one in args), **kwargs)

    # reading
    def parse_args(self, args: Sequence[str] | None = None, *rest: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Parse the command line. A mistake is explained, and ends the program with status 2."""
        given: Any = list(sys.argv[1:] if args is None else args)
        call = super().parse_args
        return self._checked(lambda: call(list(self._words(given)), *rest, **kwargs))

    def parse_object(self, obj: Any, *rest: Any, **kwargs: Any) -> Any:
        """Parse a dictionary or a Namespace."""
        call = super().parse_object
        return self._checked(lambda: call(obj if isinstance(obj, Namespace) else self._ours(obj), *rest, **kwargs))

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
        with _handed_over({_lines(document.text): values}):
            return super().parse_string(document.text, *rest, **kwargs)

    def get_defaults(self, *args: Any, **kwargs: Any) -> Namespace:
        """Return the default values, including those of `default_config_files`."""
        values = {}
        for path in (
            path for pattern in self.default_config_files for path in sorted(glob(os.path.expanduser(pattern)))
        ):
            text = text_of(path)
            if self.parser_mode in _YAML and text.strip():
                values[_lines(text)] = self._values_of(self.sources.document(text, path), default=True)
        with _handed_over(values):
            defaults: Namespace = super().get_defaults(*args, **kwargs)
        return defaults

    def _values_of(self, document: Document, *, default: bool = False) -> dict[str, Any]:
        """Return the checked values of a configuration, with our class paths."""
        value = self.sources.add(document, default=default)
        groups = self.group_names()
        self.sources.check_groups(groups)
        try:
            ours = self._ours(value)
        except LightlibError as error:  # an unknown name
            raise ConfigError(f"{self.sources.place_of_name(str(error))}: {error}") from error
        return _without_empty({key: one for key, one in ours.items() if key not in self.of_others}, groups)

    def _checked(self, parse: Callable[[], T]) -> T:
        try:
            return parse()
        except LightlibError as error:
            self.error(str(error), error)

    def _words(self, arguments: Iterable[str]) -> Iterator[str]:
        """Yield the words of a command line, with names and class paths of Lightning replaced by our class paths."""
        group: str | None = None
        words = True
        for word in arguments:
            option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
            if word.startswith("-"):
                name = option.lstrip("-").removesuffix("+")
                key = name.removesuffix(".class_path").removesuffix(".help")
                group, words = self.named.get(key), key != name or not _taken_by_trainer(key)
            if not word.startswith("-") or equals:
                value = _full(value, group, words)
                group = None
            yield option + equals + value

    def _ours(self, config: Any) -> Any:
        """Return a configuration with names and class paths of Lightning replaced by our class paths."""
        return _with_full_names(names.translated(config), self.named)

    def group_names(self) -> set[str]:
        """Return the keys below which there are others, also with the sub-command in front."""
        options = (action.dest for action in self._actions if action.option_strings)
        groups = {dest.rpartition(".")[0] for dest in options if "." in dest and not dest.endswith(".help")}
        for verb, parser in (self._subcommands_action.choices if self._subcommands_action else {}).items():
            groups |= {verb, *(f"{verb}.{group}" for group in parser.group_names())}
        return groups

    # errors
    def not_built(self, namespace: Namespace, error: Exception, class_type: Any, arguments: Mapping[str, Any]) -> None:
        """Add to the error of a class where in files or on the command line its arguments stand."""
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
        """Return where in files or on the command line an object and its arguments, below `key`, were given.

        Args:
            class_path: That of its class.
            key: As ``"trainer"``, or ``"optimizer.init_args"`` where the class is part of the configuration.
            arguments: What it was called with.
        """
        return places_of(class_path, key, arguments, Invocation(self, self.sources))

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong, what was expected and how to mend it; end the program with status 2."""
        parser = getattr(ex, "subcommand_parser", None) or self
        ours = _cause_of_ours(ex)
        known = ours is not None and "sub-config file" not in message  # which explain reads again, to name it
        text = str(ours) if known else explain(message, parser=parser, sources=self.sources)
        if not self.exit_on_error:
            super().error(text, ex)
        sys.stderr.write(f"{text}\n")
        self.exit(2)


def _full(name: str, group: str | None, words: bool = True) -> str:
    """Return the class path for a name that stands where an object of `group` is asked for; `words` as in `_chosen`."""
    if group is not None and name[:1] in ("[", "{"):
        with suppress(ConfigError):  # jsonargparse says what is wrong
            chosen = _chosen(names.translated(loader(name)), group, words)
            return dump(chosen, flow=True)
    is_name = all(part.isidentifier() for part in name.split(".")) and name.lower() not in _NO_NAMES
    if group is None or not is_name or not (words or "." in name or name[0].isupper()):
        translated: str = names.translated(name)
        return translated
    return names.class_path(group, name)


def _with_full_names(config: Any, named: Mapping[str, str], prefix: str = "") -> Any:
    """Return a configuration in which what stands at the keys of `named` has its full class path."""
    if not isinstance(config, dict):
        return config
    found = {}
    for key, value in config.items():
        at = f"{prefix}{key}"
        if at in named:
            found[key] = _chosen(value, named[at], not _taken_by_trainer(at))
        elif any(one.startswith(f"{at}.") for one in named):
            found[key] = _with_full_names(value, named, f"{at}.")
        else:
            found[key] = value
    return found


def _without_empty(config: dict[str, Any], groups: Collection[str], prefix: str = "") -> dict[str, Any]:
    """Return a configuration without the groups below which nothing stands."""
    return {
        key: _without_empty(value, groups, f"{prefix}{key}.") if isinstance(value, dict) else value
        for key, value in config.items()
        if not (value is None and f"{prefix}{key}" in groups)
    }


def _taken_by_trainer(key: str) -> bool:
    return key.endswith(tuple(_TAKEN_BY_TRAINER))


def _chosen(value: Any, group: str, words: bool = True) -> Any:
    """Return a value with full class paths; `words`: also for ``csv``, and not only for the names of classes."""
    if isinstance(value, str):
        return _full(value, group, words) if words or value[:1].isupper() else value
    if isinstance(value, list):
        return [_chosen(one, group, words) for one in value]
    if isinstance(value, dict):
        names.check_shape(group, value)
    if isinstance(value, dict) and isinstance(value.get("class_path"), str):
        return {**value, "class_path": _full(value["class_path"], group)}
    return value


def _cause_of_ours(error: BaseException | None) -> LightlibError | None:
    """Return our own error behind one of jsonargparse's, which says more."""
    while error is not None and not isinstance(error, LightlibError):
        error = error.__cause__ or error.__context__
    return error


def _lines(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


@contextmanager
def _handed_over(values: Mapping[str, Any]) -> Iterator[None]:
    """Let the loader return the values of these texts, which have been parsed already."""
    token = _parsed.set({**_parsed.get(), **values})
    try:
        yield
    finally:
        _parsed.reset(token)


@contextmanager
def _in_folder(folder: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _load(text: str) -> Any:
    """Load a text for jsonargparse: a value with our class paths, or a configuration that has been parsed already."""
    values = _parsed.get().get(_lines(text))
    return names.translated(loader(text)) if values is None else copy.deepcopy(values)


_parsed: ContextVar[Mapping[str, Any]] = ContextVar("parsed", default={})  # noqa: B039  it is never changed
jsonargparse.set_loader(MODE, _load, (ConfigError,))
