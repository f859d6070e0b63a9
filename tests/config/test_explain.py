"""What jsonargparse says, told again: what happened, where, what was expected, what to write."""

from __future__ import annotations

import sys
import textwrap
from typing import Any

import jsonargparse
import pytest

from lightlib.config.errors.explain import explain
from lightlib.config.errors.invocation import Invocation, plain
from lightlib.config.errors.parser_message import taken_apart
from lightlib.config.yaml.file import Sources

ZOO = '''
from __future__ import annotations
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

class Coat(Enum):
    FUR = 1
    WOOL = 2

class Animal:
    """Of which there are several."""

@dataclass
class Size:
    width: int = 1

@dataclass
class House:
    size: Size = field(default_factory=Size)

class Cat(Animal):
    def __init__(self, lives: int, name: str = "Tom", friends: list[Animal] | None = None):
        pass

class Dog(Animal):
    def __init__(self, loud: bool = True, mode: Literal["bark", "howl"] = "bark"):
        pass

class Bird(Animal):
    def __init__(self, coat: Coat | None = None, sort: type[Animal] | None = None, house: House | None = None):
        pass

class Fish(Animal, ABC):
    @abstractmethod
    def swim(self): ...

class Stone:
    pass

def feed(): ...

NUMBER = 3

class Keeper:
    def __init__(self, *, hours: int | None = None, pay: float = 1.0, animals: list[Animal] | Animal | None = None,
                 kind: Literal["day", "night"] | None = None, days: list[int] | None = None,
                 pair: tuple[int, float] = (1, 2.0), strict: int | bool = True, label: str = "x",
                 table: dict[str, float] | None = None, size: Size | None = None,
                 call: Callable[[int], int] | None = None):
        pass
'''
FILES = {
    "top.yaml": "# keepers\nkeepr:\n  hours: 3\n",
    "nested.yaml": "keeper:\n  hors: 3\n",
    "level.yaml": "hours: 3\n",
    "nothing.yaml": "keeper:\n  zzz: 3\n",
    "type.yaml": "keeper:\n  label: x\n  hours: ten\n",
    "text.yaml": "keeper:\n  label: 3\n",
    "before.yaml": "keeper:\n  hours: 3\n",
    "below.yaml": "feed:\n  keeper:\n    hours: ten\n",
    "animal.yaml": "animal:\n  class_path: zoo.Cat\n  init_args:\n    lifes: 9\n",
    "beside.yaml": "animal:\n  class_path: zoo.Cat\n  lives: 9\n",
    "no_class.yaml": "animal:\n  init_args:\n    lives: 9\n",
    "missing.yaml": "animal:\n  class_path: zoo.Cat\n",
    "list.yaml": "keeper:\n  animals:\n  - zoo.Dog\n"
    "  - class_path: zoo.Cat\n    init_args:\n      lives: 9\n      nam: x\n",
    "item.yaml": "keeper:\n  animals:\n  - class_path: zoo.Dog\n"
    "  - class_path: zoo.Cat\n    init_args:\n      lives: nine\n",
    "cot.yaml": "keeper:\n  animals:\n  - class_path: zoo.Dog\n  - class_path: zoo.Cot\n",
    "number.yaml": "keeper:\n  animals: 3\n",
    "days.yaml": "keeper:\n  days: 3\n",
    "mapping.yaml": "keeper:\n  days: {a: 3}\n",
    "part.yaml": "class_path: zoo.Cat\ninit_args:\n  lifes: 9\n",
    "broken.yaml": "class_path: zoo.Cat: x\n",
    "call.yaml": "keeper:\n  call: zoo.fed\n",
    "uses.yaml": "animal: part.yaml\n",
}
CASES = {
    # keys and options
    "feed -c top.yaml": """
        'keepr' (top.yaml, line 2) is not a key of `zoo feed`. Did you mean 'keeper'?
          Expected: one of animal, config, food, keeper.
          Fix: keeper:""",
    "feed -c nested.yaml": """
        'keeper.hors' (nested.yaml, line 2) is not an argument of keeper. Did you mean 'hours'?
          Expected: one of animals, call, days, hours, kind, label, pair, pay, size, strict, table.
          Fix: hours: 3""",
    "feed -c level.yaml": """
        'hours' (level.yaml, line 1) is not a key of `zoo feed`. Did you mean 'keeper.hours'?
          Expected: one of animal, config, food, keeper.
          Fix: write
            keeper:
              hours: 3""",
    "feed -c nothing.yaml": """
        'keeper.zzz' (nothing.yaml, line 2) is not an argument of keeper.
          Expected: one of animals, call, days, hours, kind, label, pair, pay, size, strict, table.
          Fix: delete it; `zoo feed --help` lists what there is.""",
    "feed --keeper.hors 3": """
        --keeper.hors is not an option of `zoo feed`. Did you mean --keeper.hours?
          Expected: an option that `zoo feed --help` lists.
          Fix: --keeper.hours=3""",
    "feed --keepr.hours=3": """
        --keepr.hours is not an option of `zoo feed`. Did you mean --keeper.hours?
          Expected: an option that `zoo feed --help` lists.
          Fix: --keeper.hours=3""",
    "feed --zzz": """
        --zzz is not an option of `zoo feed`.
          Expected: an option that `zoo feed --help` lists.
          Fix: delete it.""",
    "feed one two": """
        'one', 'two' belong to no option.
          Expected: `--option value` or `--option=value`; a value with spaces in quotes.
          Fix: delete them, or write the option before.""",
    "feed keeper.hours=3": """
        'keeper.hours=3' belongs to no option.
          Expected: `--option value` or `--option=value`; a value with spaces in quotes.
          Fix: --keeper.hours=3""",
    "feed --keeper.hours": """
        --keeper.hours has no value.
          Expected: `--keeper.hours VALUE` or `--keeper.hours=VALUE`.
          Fix: write the value behind it, or delete --keeper.hours.""",
    "feed --keeper.hours -x": """
        --keeper.hours has no value.
          Expected: `--keeper.hours VALUE` or `--keeper.hours=VALUE`.
          Fix: --keeper.hours=-x""",
    # sub-commands
    "--keeper.hours=3": """
        --keeper.hours has no sub-command.
          Expected: the sub-command first: feed, clean.
          Fix: put the sub-command first: zoo feed --keeper.hours=3""",
    "--keeper.hours=3 clean": """
        --keeper.hours stands before the sub-command.
          Expected: the sub-command first: feed, clean.
          Fix: put the sub-command first: zoo clean --keeper.hours=3""",
    "fed --keeper.hours=3": """
        'fed' is not a sub-command. Did you mean 'feed'?
          Expected: one of feed, clean.
          Fix: zoo feed --keeper.hours=3""",
    "": """
        The sub-command is missing.
          Expected: one of feed, clean.
          Fix: zoo feed""",
    "feed --keeper.hours=3 clean": """
        'clean' is a second sub-command.
          Expected: one sub-command in a command line.
          Fix: zoo feed …, and then zoo clean …""",
    "-c before.yaml feed": """
        'keeper.hours' (before.yaml, line 2) is a key of the sub-command, but the file was given before it.
          Expected: --config after feed; or, in a file before it, all keys below `feed:`.
          Fix: zoo feed --config before.yaml""",
    # values
    "feed --keeper.hours=ten": """
        keeper.hours got 'ten' (on the command line).
          Expected: a whole number or null.
          Fix: --keeper.hours=10""",
    "feed -c type.yaml": """
        keeper.hours got 'ten' (type.yaml, line 3).
          Expected: a whole number or null.
          Fix: hours: 10""",
    "feed -c before.yaml --keeper.hours ten": """
        keeper.hours got 'ten' (on the command line).
          Expected: a whole number or null.
          Fix: --keeper.hours=10""",
    "-c below.yaml feed": """
        keeper.hours got 'ten' (below.yaml, line 3).
          Expected: a whole number or null.
          Fix: hours: 10""",
    "feed -c text.yaml": """
        keeper.label got 3 (text.yaml, line 2).
          Expected: text.
          Fix: label: "3\"""",
    "feed --keeper.pay much": """
        keeper.pay got 'much' (on the command line).
          Expected: a number.
          Fix: --keeper.pay=0.1""",
    "feed --keeper.strict maybe": """
        keeper.strict got 'maybe' (on the command line).
          Expected: a whole number, true or false.
          Fix: --keeper.strict=true""",
    "feed -c days.yaml": """
        keeper.days got 3 (days.yaml, line 2).
          Expected: a list of whole numbers or null.
          Fix: days: [3]""",
    "feed --keeper.days x": """
        keeper.days got 'x' (on the command line).
          Expected: a list of whole numbers or null.
          Fix: --keeper.days=[10]""",
    "feed -c mapping.yaml": """
        keeper.days got the mapping {'a': 3} (mapping.yaml, line 2).
          Expected: a list of whole numbers or null.
          Fix: days: [10]""",
    "feed --keeper.table 3": """
        keeper.table got '3' (on the command line).
          Expected: a mapping of texts to numbers or null.
          Fix: --keeper.table={name: …}""",
    "feed -c number.yaml": """
        keeper.animals got 3 (number.yaml, line 2).
          Expected: a list of Animal (class_path and init_args), an Animal (class_path and init_args) or null.
          Fix: write
            animals:
            - class_path: …""",
    "feed --keeper.label.x 3": """
        keeper.label has no argument 'x', which was given (on the command line).
          Expected: text for keeper.label.
          Fix: --keeper.label=…""",
    "feed --keeper 3": """
        keeper got '3' (on the command line), but it is a group of arguments.
          Expected: a mapping of the arguments of keeper, or the path of a YAML file that holds one.
          Fix: --keeper.animals=…""",
    "feed --food meet": """
        food got 'meet' (on the command line). Did you mean 'meat'?
          Expected: one of meat, hay.
          Fix: --food=meat""",
    # files
    "feed -c nowhere.yaml": "The configuration 'nowhere.yaml' does not exist.",
    "feed -c lists.yaml": "The configuration 'lists.yaml' does not exist. Did you mean 'list.yaml'?",
    "feed -c .": "The configuration '.' is a folder.",
    "feed -c {a": """
        --config, line 1, column 3: did not find expected ',' or '}'.
          1 | {a
            |   ^
          Expected: YAML.
          Fix: close the bracket, or put a comma before this.""",
    "feed --print_config=skip_defaults": """
        --print_config got 'skip_defaults'. Did you mean 'skip_default'?
          Expected: nothing, or some of skip_default, skip_null (skip_unset) and comments, with commas between.
          Fix: --print_config=skip_default""",
    # classes
    "feed --animal aquarium.Eel": "animal got 'aquarium.Eel' (on the command line), which cannot be imported: "
    "No module named 'aquarium'",
    "feed --animal zo.Cat": """
        animal got 'zo.Cat' (on the command line), which cannot be imported: No module named 'zo'
          Expected: a module in FOLDER or in an installed package.
          Fix: --animal=zoo.Cat""",
    "feed --animal zoo.Cot": """
        animal got 'zoo.Cot' (on the command line), which cannot be imported: module 'zoo' has no attribute 'Cot'. Did you mean 'Cat'?
          Expected: one of Cat, Dog, Bird, Fish, which are in zoo.
          Fix: --animal=zoo.Cat""",  # noqa: E501
    "feed -c cot.yaml": """
        keeper.animals got 'zoo.Cot' (cot.yaml, line 4), which cannot be imported: module 'zoo' has no attribute 'Cot'. Did you mean 'Cat'?
          Expected: one of Cat, Dog, Bird, Fish, which are in zoo.
          Fix: class_path: zoo.Cat""",  # noqa: E501
    "feed --animal lacking.Cat": """
        animal got 'lacking.Cat' (on the command line), which cannot be imported: No module named 'nowhere_to_be_found'
          Expected: a module that can be imported.
          Fix: python -c "import lacking" shows where it fails; install what it misses, or mend it.""",
    "feed --animal raising.Cat": """
        animal got 'raising.Cat' (on the command line), which cannot be imported: it rains
          Expected: a module that can be imported.
          Fix: python -c "import raising" shows where it fails; install what it misses, or mend it.""",
    "feed --animal zoo.Stone": """
        animal got 'zoo.Stone' (on the command line), which is not a subclass of zoo.Animal.
          Expected: the path of a subclass of zoo.Animal.
          Fix: --animal=zoo.Cat""",
    "feed --animal zoo.feed": """
        animal got 'zoo.feed' (on the command line), which is a function, and not annotated to return a zoo.Animal.
          Expected: the path of a subclass of zoo.Animal.
          Fix: --animal=zoo.Cat""",
    "feed --animal zoo.NUMBER": """
        animal got 'zoo.NUMBER' (on the command line), which is of type int.
          Expected: the path of a subclass of zoo.Animal.
          Fix: --animal=zoo.Cat""",
    "feed --animal zoo": """
        animal got 'zoo' (on the command line), which is a module, not a class.
          Expected: the path of a class in it.
          Fix: --animal=zoo.Cat""",
    "feed --animal Cta": """
        animal got 'Cta' (on the command line), which is no known name and no class path. Did you mean 'Cat'?
          Expected: the path of a class, `module.Class`, or one of Bird, Cat, Dog.
          Fix: --animal=zoo.Cat""",
    "feed --animal Cat": """
        zoo.Cat (on the command line) is missing its argument 'lives'.
          Expected: a value for it, for it has no default.
          Fix: --animal.lives=… on the command line, or in a file, below `animal`:
            init_args:
              lives: …""",
    "feed -c missing.yaml": """
        zoo.Cat (missing.yaml, line 2) is missing its argument 'lives'.
          Expected: a value for it, for it has no default.
          Fix: --animal.lives=… on the command line, or in a file, below `animal`:
            init_args:
              lives: …""",
    "feed --animal Cat --animal.lifes 9": """
        zoo.Cat has no argument 'lifes' (on the command line). Did you mean 'lives'?
          Expected: accepted are: friends, lives, name.
          Fix: --animal.lives=9""",
    "feed -c animal.yaml": """
        zoo.Cat has no argument 'lifes' (animal.yaml, line 4). Did you mean 'lives'?
          Expected: accepted are: friends, lives, name.
          Fix: lives: 9""",
    "feed -c list.yaml": """
        zoo.Cat has no argument 'nam' (list.yaml, line 7). Did you mean 'name'?
          Expected: accepted are: friends, lives, name.
          Fix: name: x""",
    "feed --animal part.yaml": """
        zoo.Cat has no argument 'lifes' (part.yaml, line 3). Did you mean 'lives'?
          Expected: accepted are: friends, lives, name.
          Fix: lives: 9""",
    "feed -c uses.yaml": """
        zoo.Cat has no argument 'lifes' (part.yaml, line 3). Did you mean 'lives'?
          Expected: accepted are: friends, lives, name.
          Fix: lives: 9""",
    "feed --animal broken.yaml": "broken.yaml, line 1, column 20: mapping values are not allowed in this context.",
    "feed --animal nowhere.yaml": "The configuration 'nowhere.yaml' does not exist.",
    "feed --animal Cat --animal.lives nine": """
        lives of zoo.Cat got 'nine' (on the command line).
          Expected: a whole number.
          Fix: --animal.lives=10""",
    "feed -c item.yaml": """
        lives of zoo.Cat got 'nine' (item.yaml, line 6).
          Expected: a whole number.
          Fix: lives: 10""",
    "feed -c beside.yaml": """
        'lives' of animal stands beside `class_path` (beside.yaml, line 3).
          Expected: the arguments of the class below `init_args`.
          Fix: below `class_path: zoo.Cat`:
            init_args:
              lives: 9""",
    "feed -c no_class.yaml": """
        animal has the argument 'lives' (no_class.yaml, line 3), but which class it is was not said before.
          Expected: its class first, then its arguments.
          Fix: `class_path: zoo.Cat`, and beside it `init_args:`, with lives below.""",
    "feed --animal.lives 9": """
        animal has the argument 'lives' (on the command line), but which class it is was not said before.
          Expected: its class first, then its arguments.
          Fix: --animal=zoo.Cat --animal.lives=9""",
    "feed --animal.lives 9 --animal zoo.Cat": """
        animal has the argument 'lives' (on the command line), but which class it is was not said before.
          Expected: its class first, then its arguments.
          Fix: put --animal=zoo.Cat before --animal.lives.""",
    "clean": """
        animal is missing.
          Expected: a value on the command line or in a configuration file.
          Fix: zoo clean --animal=my_module.MyClass
          or, in a file for --config:
            animal:
              class_path: my_module.MyClass""",
}
CASES |= {
    "feed --keeper.call zoo.fed": """
        keeper.call got 'zoo.fed' (on the command line), which cannot be imported: module 'zoo' has no attribute 'fed'. Did you mean 'feed'?
          Expected: a function or a class in zoo.
          Fix: --keeper.call=zoo.feed""",  # noqa: E501
    "feed -c call.yaml": """
        keeper.call got 'zoo.fed' (call.yaml, line 2), which cannot be imported: module 'zoo' has no attribute 'fed'. Did you mean 'feed'?
          Expected: a function or a class in zoo.
          Fix: call: zoo.feed""",  # noqa: E501
    "feed --keeper.call zoo.Stone": """
        keeper.call got 'zoo.Stone' (on the command line), a class whose objects cannot be called.
          Expected: the path of a function, or of a class with `__call__`.
          Fix: name a function; or define __call__ in the class.""",
    "feed --animal Bird --animal.coat WOLL": """
        coat of zoo.Bird got 'WOLL' (on the command line). Did you mean 'WOOL'?
          Expected: 'FUR', 'WOOL' or null.
          Fix: --animal.coat=WOOL""",
    "feed --animal Bird --animal.sort Cat": """
        animal.sort got 'Cat' (on the command line), which is no known name and no class path. Did you mean 'zoo.Cat'?
          Expected: the path of a class, `module.Class`, or one of Bird, Cat, Dog.
          Fix: --animal.sort=zoo.Cat""",
    "feed --animal Bird --animal.sort textwrap.dedent": """
        animal.sort got 'textwrap.dedent' (on the command line), which is a function, and not annotated to return a zoo.Animal.
          Expected: the path of a subclass of zoo.Animal.
          Fix: one of Bird, Cat, Dog, or the path of a subclass of your own.""",  # noqa: E501
    "feed --animal Bird --animal.house.size.height 3": """
        zoo.House has no argument 'size.height' (on the command line).
          Expected: accepted are: size.
          Fix: delete it.""",
    # given in a file, overridden on the command line
    "feed -c missing.yaml --animal aquarium.Cat": "animal got 'aquarium.Cat' (on the command line), which cannot be "
    "imported: No module named 'aquarium'",
}
NEWER = {  # texts that jsonargparse 4.39 does not have, or has no typing for
    "feed --keeper.kind dya": """
        keeper.kind got 'dya' (on the command line). Did you mean 'day'?
          Expected: 'day', 'night' or null.
          Fix: --keeper.kind=day""",
    "feed --animal Dog --animal.mode hwol": """
        mode of zoo.Dog got 'hwol' (on the command line). Did you mean 'howl'?
          Expected: 'bark' or 'howl'.
          Fix: --animal.mode=howl""",
    "feed --animal zoo.Fish": """
        animal got 'zoo.Fish' (on the command line), which is abstract: swim is left to subclasses.
          Expected: a class that can be built.
          Fix: name a subclass that defines every method, or define them.""",
    "feed --keeper.pair [1]": """
        keeper.pair got '[1]' (on the command line).
          Expected: a tuple with 2 elements.
          Fix: --keeper.pair=…""",
}


class Told(Exception):
    """What a parser would have said."""


class Parser(jsonargparse.ArgumentParser):
    """As LightningArgumentParser: remembers what was read, and explains."""

    sources: Sources
    file: str | None = None

    def parse_path(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        self.file = str(path)
        return super().parse_path(path, *args, **kwargs)

    def parse_string(self, *args: Any, **kwargs: Any) -> Any:
        self.sources.read(args[0] if args else kwargs.get("content", kwargs.get("cfg_str")), self.file)
        return super().parse_string(*args, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> Any:
        if not self.exit_on_error:
            super().error(message, ex)
        raise Told(explain(message, parser=getattr(ex, "subcommand_parser", None) or self, sources=self.sources))


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    (tmp_path / "zoo.py").write_text(ZOO)
    (tmp_path / "lacking.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "raising.py").write_text("raise RuntimeError('it rains')\n")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "zoo", raising=False)
    import zoo

    yield zoo
    sys.modules.pop("zoo")


def parser_of(zoo: Any) -> Parser:
    parser = Parser(prog="zoo", allow_abbrev=False)
    parser.sources = Sources(["feed", "clean"])
    parser.add_argument("-c", "--config", action="config")
    verbs = parser.add_subcommands()
    for verb in ("feed", "clean"):
        part = Parser(allow_abbrev=False)
        part.sources = parser.sources
        part.add_argument("-c", "--config", action="config")
        part.add_class_arguments(zoo.Keeper, "keeper", instantiate=False, sub_configs=True)
        part.add_subclass_arguments(zoo.Animal, "animal", required=verb == "clean")
        part.add_argument("--food", choices=["meat", "hay"])
        verbs.add_subcommand(verb, part)
    return parser


def told(zoo: Any, line: str) -> str:
    with pytest.raises((Told, ValueError)) as caught:
        parser_of(zoo).parse_args(line.split())
    return str(caught.value)


@pytest.mark.parametrize("line", CASES)
def test_a_mistake_is_told_with_its_place_and_what_to_write(zoo, line, tmp_path) -> None:
    expected = textwrap.dedent(CASES[line].strip("\n")).replace("FOLDER", str(tmp_path)).strip()
    text = told(zoo, line)
    assert text == expected if "\n" in expected else text.splitlines()[0] == expected, text
    assert "\n  Expected: " in text
    assert "\n  Fix: " in text


@pytest.mark.parametrize("line", NEWER)
def test_a_mistake_that_only_newer_versions_tell(zoo, line) -> None:
    if tuple(map(int, jsonargparse.__version__.split(".")[:2])) < (4, 53):
        pytest.skip("jsonargparse says it in another way")
    assert told(zoo, line) == textwrap.dedent(NEWER[line].strip("\n")).strip()


@pytest.mark.parametrize(
    ("path", "entry", "expected", "fix"),
    [
        (
            "zoo.Cat",
            "*",
            "a class of a package that --allow names.",
            "--allow zoo, if you trust it and this configuration.",
        ),
        (
            "subprocess.Popen",
            "subprocess",
            "no path of subprocess: what is in it can run commands or other code.",
            "do what is needed in a class of your own, and name that.",
        ),
    ],
)
def test_a_class_path_that_is_not_allowed(zoo, path, entry, expected, fix) -> None:
    message = (
        f"Parser key \"animal\":\n  Problem with given class_path '{path}':\n    Importing '{path}' is not allowed, "
        f"denied by the '{entry}' entry of the import path denylist. Add the import path to import_path_allowlist in …"
    )
    assert explain(message, parser=parser_of(zoo), argv=["feed", "--animal", path]) == (
        f"animal got {path!r} (on the command line), and importing {path.partition('.')[0]} is not allowed.\n"
        f"  Expected: {expected}\n  Fix: {fix}"
    )


def test_two_classes_of_one_name(zoo) -> None:
    message = (
        'Parser key "animal":\n  Multiple subclasses with name Cat. Give the full class path to '
        "avoid ambiguity: a.Cat, b.Cat."
    )
    text = explain(message, parser=parser_of(zoo), argv=["feed", "--animal", "Cat"])
    assert text.startswith("animal got 'Cat' (on the command line), which is the name of several classes.\n")
    assert text.endswith("Expected: one of a.Cat, b.Cat.\n  Fix: --animal=a.Cat")


def test_an_environment_variable_is_named(zoo, monkeypatch) -> None:
    monkeypatch.setenv("ZOO_FEED__KEEPER__HOURS", "ten")
    parser = parser_of(zoo)
    parser.default_env = True
    with pytest.raises(Told, match=r"keeper.hours got 'ten' \(in the environment variable ZOO_FEED__KEEPER__HOURS\)"):
        parser.parse_args(["feed"])


UNKNOWN = [
    "something that no version says today",
    'Parser key "keeper.hours":\n  something else\n    with more lines',
    "Config file loop detected: a.yaml -> b.yaml -> a.yaml",
    'Parser key "x":\n  Does not validate against any of the Union subtypes',
    "Does not validate against any of the Union subtypes\nSubtypes: [\nErrors:\n- x",
    "",
    "\n\n",
    "%s {} 'x",
]


@pytest.mark.parametrize("message", UNKNOWN)
def test_a_text_that_is_not_known_stays_whole(zoo, message) -> None:
    parser = parser_of(zoo)
    assert explain(message, parser=parser, argv=[]) == message
    assert explain(message, parser=parser._subcommands_action.choices["feed"], argv=["feed"]) == message


def test_one_of_our_own_errors_within_a_text_comes_through_as_it_is(zoo) -> None:
    ours = "'Sophia' is a class of the package Sophia.\n  Expected: it is installed.\n  Fix: pip install Sophia"
    message = f'Parser key "animal":\n{textwrap.indent(ours, "  ")}'
    assert explain(message, parser=parser_of(zoo), argv=[]) == ours


def test_comments_need_their_package(zoo) -> None:
    message = 'Invalid option "comments" for --print_config'
    text = explain(message, parser=parser_of(zoo), argv=["--print_config=comments"])
    assert text.startswith("--print_config got 'comments', but ruamel.yaml, which writes them, is not installed.\n")


def test_a_parser_of_one_class_leaves_the_text_to_the_parser_around_it(zoo) -> None:
    parser = parser_of(zoo)
    parser._inner_parser = True
    assert explain("Option 'x' is not accepted", parser=parser) == "Option 'x' is not accepted"


OF_CAT = "Parser key \"animal\":\n  Problem with given class_path 'zoo.Cat':\n    Validation failed: "
MISSING = "is required but not included in config object or its value is None."
OLDER = {  # what jsonargparse 4.39 says → what is made of it
    "Unrecognized arguments: --keeper.hors 3": (
        "--keeper.hors is not an option of `zoo feed`. Did you mean --keeper.hours?"
    ),
    "Validation failed: Subcommand 'feed' does not accept nested key 'keeper.hors'": (
        "'keeper.hors' is not an argument of keeper. Did you mean 'hours'?"
    ),
    f'Validation failed: Key "feed.animal" {MISSING}': "animal is missing.",
    f"{OF_CAT}Key 'lifes' is not expected": "zoo.Cat has no argument 'lifes'. Did you mean 'lives'?",
    f'{OF_CAT}Key "lives" {MISSING}': "zoo.Cat is missing its argument 'lives'.",
    textwrap.dedent("""\
        Validation failed: Parser key "animal":
          Does not validate against any of the Union subtypes
          Subtypes: [<class 'NoneType'>, <class 'zoo.Animal'>]
          Errors:
            - Expected a <class 'NoneType'>
            - Not a valid subclass of Animal
          Given value type: <class 'ValueError'>
          Given value: Expected a dot import path string: Cta"""): "animal got 'Cta', which is no known name",
}


@pytest.mark.parametrize("message", OLDER)
def test_the_texts_of_older_versions_are_known_too(zoo, message) -> None:
    part = parser_of(zoo)._subcommands_action.choices["feed"]
    assert explain(message, parser=part, argv=["feed"]).startswith(OLDER[message])


def test_a_text_is_taken_apart_down_to_the_innermost_reason() -> None:
    said = taken_apart(
        textwrap.dedent("""\
        Parser key "model":
          Does not validate against any of the Union subtypes
          Subtypes: [<class 'a.Model'>, <class 'NoneType'>]
          Errors:
            - Problem with given class_path 'b.Net':
                Parser key "act":

                  - Expected a path but ReLUU either not accessible or invalid
                  - Does not validate against any of the Union subtypes
                  Subtypes: [<class 'torch.nn.modules.module.Module'>, <class 'NoneType'>]
                  Errors:
                    - Expected a dot import path string: ReLUU
                    - Expected a <class 'NoneType'>
                  Given value type: <class 'str'>
                  Given value: ReLUU
            - Expected a <class 'NoneType'>
          Given value type: <class 'jsonargparse._util.NestedArg'>
          Given value: NestedArg(key='act', val='ReLUU')""")
    )
    assert said.reason == "Expected a dot import path string: ReLUU"
    assert said.key == "model.init_args.act"
    assert (said.class_path, said.owner, said.base) == ("b.Net", "model", "torch.nn.modules.module.Module")
    assert (said.value, said.value_type) == ("ReLUU", "str")


def test_flags_are_read_as_the_parser_reads_them(zoo) -> None:
    words = ["-c", "x.yaml", "feed", "--keeper.animals+=zoo.Cat", "--animal.class_path", "zoo.Cat", "--food", "--x=-1"]
    asked = Invocation(parser_of(zoo), argv=words)
    assert [(flag.key, flag.value) for flag in asked.flags] == [
        ("config", "x.yaml"),
        ("keeper.animals", "zoo.Cat"),
        ("animal", "zoo.Cat"),
        ("food", None),
        ("x", "-1"),
    ]
    assert asked.command == "zoo feed"
    assert plain("a.0.init_args.b") == "a.b"
