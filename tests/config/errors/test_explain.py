"""Errors of jsonargparse: unknown keys, wrong values and missing arguments have a place and a fix."""

from __future__ import annotations

import sys
import textwrap
from typing import Any

import jsonargparse
import pytest

from lightlib.config.errors.explain import explain
from lightlib.config.errors.invocation import Invocation, plain
from lightlib.config.errors.parser_message import parse_message
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

class Sheep(Animal):
    def __init__(self, age: int = 1, breed: str = "", color: str = "", ears: int = 2, farm: str = "", hair: int = 1,
                 height: int = 1, horns: int = 0, length: int = 1, milk: bool = True, name: str = "", tail: int = 1,
                 weight: int = 1, wool: bool = True):
        pass

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
    "extra_keys.yaml": "animal:\n  class_path: zoo.Cat\n  lives: 9\n",
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
    # unknown keys and options
    "feed -c top.yaml": """
        'keepr.hours' (top.yaml, line 3) is not a key of `zoo feed`. Did you mean 'keeper.hours'?
          Expected: one of animal, config, food, keeper.
          Fix: write
            keeper:
              hours: 3""",
    "feed -c nested.yaml": """
        'keeper.hors' (nested.yaml, line 2) is not an argument of keeper. Did you mean 'keeper.hours'?
          Expected: one of animals, call, days, hours, kind, label, pair, pay, size, strict, table.
          Fix: write
            keeper:
              hours: 3""",
    "feed -c level.yaml": """
        'hours' (level.yaml, line 1) is not a key of `zoo feed`. Did you mean 'keeper.hours'?
          Expected: one of animal, config, food, keeper.
          Fix: write
            keeper:
              hours: 3""",
    "feed -c nothing.yaml": """
        'keeper.zzz' (nothing.yaml, line 2) is not an argument of keeper.
          Expected: one of animals, call, days, hours, kind, label, pair, pay, size, strict, table.
          Fix: delete it; `zoo feed --help` lists the keys.""",
    "feed --keeper.hors 3": """
        'keeper.hors' (on the command line) is not an argument of keeper. Did you mean 'keeper.hours'?
          Expected: one of animals, call, days, hours, kind, label, pair, pay, size, strict, table.
          Fix: --keeper.hours=3""",
    "feed --keepr.hours=3": """
        'keepr.hours' (on the command line) is not a key of `zoo feed`. Did you mean 'keeper.hours'?
          Expected: one of animal, config, food, keeper.
          Fix: --keeper.hours=3""",
    "feed --zzz": """
        'zzz' (on the command line) is not a key of `zoo feed`.
          Expected: one of animal, config, food, keeper.
          Fix: delete it; `zoo feed --help` lists the keys.""",
    "--keeper.hours=3 clean": """
        'keeper.hours' (on the command line) is on the wrong side of the sub-command.
          Expected: options after the sub-command; --config before it for a file with its section, after it for another.
          Fix: zoo clean --keeper.hours=3""",
    "--keeper.hours=3": """
        'keeper.hours' (on the command line) is on the wrong side of the sub-command.
          Expected: options after the sub-command; --config before it for a file with its section, after it for another.
          Fix: zoo feed --keeper.hours=3""",
    "-c before.yaml feed": """
        'keeper.hours' (before.yaml, line 2) is on the wrong side of the sub-command.
          Expected: options after the sub-command; --config before it for a file with its section, after it for another.
          Fix: zoo feed --config before.yaml""",
    "feed --keeper.label.x 3": """
        keeper.label has no argument 'x' (on the command line).
          Expected: str for keeper.label.
          Fix: --keeper.label=…""",
    "feed --animal Cat --animal.lifes 9": """
        zoo.Cat has no argument 'lifes' (on the command line). Did you mean 'lives'?
          Expected: one of friends, lives, name.
          Fix: --animal.lives=9""",
    "feed -c animal.yaml": """
        zoo.Cat has no argument 'lifes' (animal.yaml, line 4). Did you mean 'lives'?
          Expected: one of friends, lives, name.
          Fix: lives: 9""",
    "feed -c list.yaml": """
        zoo.Cat has no argument 'nam' (list.yaml, line 7). Did you mean 'name'?
          Expected: one of friends, lives, name.
          Fix: name: x""",
    "feed --animal part.yaml": """
        zoo.Cat has no argument 'lifes' (part.yaml, line 3). Did you mean 'lives'?
          Expected: one of friends, lives, name.
          Fix: lives: 9""",
    "feed -c uses.yaml": """
        zoo.Cat has no argument 'lifes' (part.yaml, line 3). Did you mean 'lives'?
          Expected: one of friends, lives, name.
          Fix: lives: 9""",
    "feed --animal Sheep --animal.lengths 9": """
        zoo.Sheep has no argument 'lengths' (on the command line). Did you mean 'length'?
          Expected: one of age, breed, color, ears, farm, hair, height, horns, length, milk, name, tail, weight, wool.
          Fix: --animal.length=9""",
    "feed -c extra_keys.yaml": """
        animal (extra_keys.yaml, line 1) has other keys next to `class_path`.
          Expected: class_path, init_args and dict_kwargs.
          Fix: indent the arguments of the class below `init_args:`.""",
    "feed -c no_class.yaml": """
        zoo.Animal has no argument 'lives' (no_class.yaml, line 3).
          Expected: no arguments.
          Fix: delete it; or name the class that has it first: class_path: my_module.MyClass""",
    "feed --animal.lives 9": """
        zoo.Animal has no argument 'lives' (on the command line).
          Expected: no arguments.
          Fix: delete it; or name the class that has it first: --animal=my_module.MyClass""",
    "feed --animal Bird --animal.house.size.height 3": """
        zoo.House has no argument 'size.height' (on the command line).
          Expected: one of size.
          Fix: delete it; or name the class that has it first: --animal.house=my_module.MyClass""",
    # wrong values
    "feed --keeper.hours=ten": """
        keeper.hours got 'ten' (on the command line).
          Expected: int or null.
          Fix: --keeper.hours=10""",
    "feed -c type.yaml": """
        keeper.hours got 'ten' (type.yaml, line 3).
          Expected: int or null.
          Fix: hours: 10""",
    "feed -c before.yaml --keeper.hours ten": """
        keeper.hours got 'ten' (on the command line).
          Expected: int or null.
          Fix: --keeper.hours=10""",
    "-c below.yaml feed": """
        keeper.hours got 'ten' (below.yaml, line 3).
          Expected: int or null.
          Fix: hours: 10""",
    "feed -c text.yaml": """
        keeper.label got 3 (text.yaml, line 2).
          Expected: str.
          Fix: label: "3\"""",
    "feed --keeper.pay no.yaml": """
        keeper.pay got 'no.yaml' (on the command line).
          Expected: float.
          Fix: --keeper.pay=0.1""",
    "feed --keeper.pay much": """
        keeper.pay got 'much' (on the command line).
          Expected: float.
          Fix: --keeper.pay=0.1""",
    "feed --keeper.strict maybe": """
        keeper.strict got 'maybe' (on the command line).
          Expected: int or bool.
          Fix: --keeper.strict=true""",
    "feed -c days.yaml": """
        keeper.days got 3 (days.yaml, line 2).
          Expected: list[int] or null.
          Fix: days: [10]""",
    "feed -c number.yaml": """
        keeper.animals got 3 (number.yaml, line 2).
          Expected: list[zoo.Animal], zoo.Animal or null.
          Fix: animals: [my_module.MyClass]""",
    "feed --animal aquarium.Eel": """
        animal got 'aquarium.Eel' (on the command line): No module named 'aquarium'.
          Expected: zoo.Animal or null.
          Fix: --animal=my_module.MyClass""",
    "feed --animal zoo.Cot": """
        animal got 'zoo.Cot' (on the command line): module 'zoo' has no attribute 'Cot'. Did you mean 'zoo.Cat'?
          Expected: zoo.Animal or null.
          Fix: --animal=zoo.Cat""",
    "feed -c cot.yaml": """
        keeper.animals got 'zoo.Cot' (cot.yaml, line 4): module 'zoo' has no attribute 'Cot'. Did you mean 'zoo.Cat'?
          Expected: list[zoo.Animal], zoo.Animal or null.
          Fix: class_path: zoo.Cat""",
    "feed --animal raising.Cat": """
        animal got 'raising.Cat' (on the command line): it rains.
          Expected: zoo.Animal or null.
          Fix: --animal=my_module.MyClass""",
    "feed --animal zoo.Stone": """
        animal got 'zoo.Stone' (on the command line): Import path does not correspond to a subclass of Animal.
          Expected: zoo.Animal or null.
          Fix: --animal=my_module.MyClass""",
    "feed --animal zoo.feed": """
        animal got 'zoo.feed' (on the command line): Import path does not correspond to a subclass of Animal.
          Expected: zoo.Animal or null.
          Fix: --animal=my_module.MyClass""",
    "feed --animal Cta": """
        animal got 'Cta' (on the command line): Expected a dot import path string: Cta.
          Expected: zoo.Animal or null.
          Fix: --animal=my_module.MyClass""",
    "feed --animal Cat --animal.lives nine": """
        lives of zoo.Cat got 'nine' (on the command line).
          Expected: int.
          Fix: --animal.lives=10""",
    "feed -c item.yaml": """
        lives of zoo.Cat got 'nine' (item.yaml, line 6).
          Expected: int.
          Fix: lives: 10""",
    "feed --keeper.call zoo.fed": """
        keeper.call got 'zoo.fed' (on the command line): module 'zoo' has no attribute 'fed'. Did you mean 'zoo.feed'?
          Expected: collections.abc.Callable[[int], int] or null.
          Fix: --keeper.call=zoo.feed""",
    "feed -c call.yaml": """
        keeper.call got 'zoo.fed' (call.yaml, line 2): module 'zoo' has no attribute 'fed'. Did you mean 'zoo.feed'?
          Expected: collections.abc.Callable[[int], int] or null.
          Fix: call: zoo.feed""",
    "feed --keeper.call zoo.Stone": """
        keeper.call got 'zoo.Stone' (on the command line): Expected 'zoo.Stone' to be a class that instantiates into callable or a subclass of <class 'int'>.
          Expected: collections.abc.Callable[[int], int] or null.
          Fix: --keeper.call=my_module.MyClass""",  # noqa: E501
    "feed --animal Bird --animal.coat WOLL": """
        coat of zoo.Bird got 'WOLL' (on the command line). Did you mean 'WOOL'?
          Expected: 'FUR', 'WOOL' or null.
          Fix: --animal.coat=WOOL""",
    "feed -c missing.yaml --animal aquarium.Cat": """
        animal got 'aquarium.Cat' (on the command line): No module named 'aquarium'.
          Expected: zoo.Animal or null.
          Fix: --animal=my_module.MyClass""",
    "feed --animal pytorch_lightning.Trainer": """
        animal got 'pytorch_lightning.Trainer' (on the command line): No module named 'pytorch_lightning'.
          Expected: zoo.Animal or null.
          Fix: start it by `lightlib compat run -m lightlib …`, or import lightlib: `import lightlib as L`.""",
    # missing arguments
    "feed --animal Cat": """
        zoo.Cat (on the command line) is missing 'lives'.
          Expected: a value on the command line or in a configuration file.
          Fix: zoo feed --animal.lives=…
          or, in a file for --config:
            animal:
              init_args:
                lives: …""",
    "feed -c missing.yaml": """
        zoo.Cat (missing.yaml, line 2) is missing 'lives'.
          Expected: a value on the command line or in a configuration file.
          Fix: zoo feed --animal.lives=…
          or, in a file for --config:
            animal:
              init_args:
                lives: …""",
    "clean": """
        animal is missing.
          Expected: a value on the command line or in a configuration file.
          Fix: zoo clean --animal=…
          or, in a file for --config:
            animal: …""",
    # files that cannot be read
    "feed -c nowhere.yaml": "The configuration 'nowhere.yaml' does not exist.",
    "feed -c lists.yaml": "The configuration 'lists.yaml' does not exist. Did you mean 'list.yaml'?",
    "feed -c .": "The configuration '.' is a folder.",
    "feed --animal broken.yaml": "broken.yaml, line 1, column 20: mapping values are not allowed in this context.",
    "feed --animal nowhere.yaml": "The configuration 'nowhere.yaml' does not exist.",
}
PASSED_ON = {  # jsonargparse's own text, with the place where it is known
    "feed one two": """
        unrecognized arguments: one two""",
    "feed --keeper.hours": """
        argument --keeper.hours: expected one argument""",
    "fed --keeper.hours=3": """
        argument subcommand: invalid choice: 'fed' (choose from 'feed', 'clean')""",
    "": """
        expected "subcommand" to be one of {feed,clean}, but it was not provided.""",
    "feed --keeper.hours=3 clean": """
        unrecognized arguments: clean""",
    "feed --keeper 3": """
        Parser key "keeper":
        Unable to load config '3'
          - Parser key "keeper": Unable to load config "3"
          Configured: keeper (on the command line).""",
    "feed --food meet": """
        argument --food: invalid choice: 'meet' (choose from 'meat', 'hay')""",
    "feed -c {a": """
        Parser key "config": while parsing a flow mapping
          in "<unicode string>", line 1, column 1
        did not find expected ',' or '}'
          in "<unicode string>", line 2, column 1
          Configured: config (on the command line).""",
    "feed --print_config=skip_defaults": """
        Invalid option "skip_defaults" for --print_config""",
}
NEWER = {  # texts that jsonargparse 4.42 does not have, or has no typing for
    "feed --keeper.kind dya": """
        keeper.kind got 'dya' (on the command line). Did you mean 'day'?
          Expected: 'day', 'night' or null.
          Fix: --keeper.kind=day""",
    "feed --keeper.pair [1]": """
        keeper.pair got '[1]' (on the command line): Expected a tuple with 2 elements.
          Expected: tuple with 2 elements.
          Fix: --keeper.pair=…""",
    "feed --animal Dog --animal.mode hwol": """
        mode of zoo.Dog got 'hwol' (on the command line). Did you mean 'howl'?
          Expected: 'bark' or 'howl'.
          Fix: --animal.mode=howl""",
    "feed --animal zoo.Fish": """
        animal got 'zoo.Fish' (on the command line): Expected an instantiatable class, but is abstract.
          Expected: zoo.Animal or null.
          Fix: --animal=my_module.MyClass""",
}


class ParserError(Exception):
    """The text that a parser would have printed."""


class Parser(jsonargparse.ArgumentParser):
    """Like LightningArgumentParser: remembers the values that it reads, and explains errors."""

    sources: Sources
    file: str | None = None

    def parse_path(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        self.file = str(path)
        return super().parse_path(path, *args, **kwargs)

    def parse_string(self, *args: Any, **kwargs: Any) -> Any:
        text = args[0] if args else kwargs.get("content", kwargs.get("cfg_str"))
        self.sources.add(self.sources.document(text, self.file))
        return super().parse_string(*args, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> Any:
        if not self.exit_on_error:
            super().error(message, ex)
        raise ParserError(explain(message, parser=getattr(ex, "subcommand_parser", None) or self, sources=self.sources))


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


def error_of(zoo: Any, line: str) -> str:
    with pytest.raises((ParserError, ValueError)) as caught:
        parser_of(zoo).parse_args(line.split())
    return str(caught.value)


@pytest.mark.parametrize("line", CASES)
def test_a_mistake_has_its_place_and_a_fix(zoo, line, tmp_path) -> None:
    expected = textwrap.dedent(CASES[line].strip("\n")).replace("FOLDER", str(tmp_path)).strip()
    text = error_of(zoo, line)
    assert text == expected if "\n" in expected else text.splitlines()[0] == expected, text
    assert "\n  Expected: " in text
    assert "\n  Fix: " in text


@pytest.mark.parametrize("line", PASSED_ON)
def test_any_other_error_keeps_its_text(zoo, line) -> None:
    assert error_of(zoo, line) == textwrap.dedent(PASSED_ON[line].strip("\n")).strip()


@pytest.mark.parametrize("line", NEWER)
def test_a_mistake_that_only_newer_versions_report(zoo, line) -> None:
    if tuple(map(int, jsonargparse.__version__.split(".")[:2])) < (4, 53):
        pytest.skip("jsonargparse has another text")
    assert error_of(zoo, line) == textwrap.dedent(NEWER[line].strip("\n")).strip()


@pytest.mark.parametrize(
    ("path", "entry", "fix"),
    [
        ("zoo.Cat", "*", "--allow zoo, if you trust it and this configuration."),
        ("subprocess.Popen", "subprocess", "name a class of a package that is allowed."),
    ],
)
def test_a_class_path_that_is_not_allowed(zoo, path, entry, fix) -> None:
    reason = f"Importing '{path}' is not allowed, denied by the '{entry}' entry of the import path denylist. Add the …"
    text = (
        'Parser key "animal":\n  Does not validate against any of the Union subtypes\n'
        "  Subtypes: [<class 'zoo.Animal'>, <class 'NoneType'>]\n  Errors:\n"
        f"    - Problem with given class_path '{path}':\n        {reason}\n    - Expected a <class 'NoneType'>\n"
        f"  Given value type: <class 'str'>\n  Given value: {path}"
    )
    assert explain(text, parser=parser_of(zoo), argv=["feed", "--animal", path]) == (
        f"animal got {path!r} (on the command line): {reason}.\n  Expected: zoo.Animal or null.\n  Fix: {fix}"
    )


def test_an_environment_variable_is_named(zoo, monkeypatch) -> None:
    monkeypatch.setenv("ZOO_FEED__KEEPER__HOURS", "ten")
    parser = parser_of(zoo)
    parser.default_env = True
    with pytest.raises(
        ParserError, match=r"keeper.hours got 'ten' \(in the environment variable ZOO_FEED__KEEPER__HOURS\)"
    ):
        parser.parse_args(["feed"])


UNKNOWN = [
    "something that no version prints today",
    'Parser key "keeper.hours":\n  something else\n    with more lines',
    "Config file loop detected: a.yaml -> b.yaml -> a.yaml",
    'Parser key "x":\n  Does not validate against any of the Union subtypes',
    "Does not validate against any of the Union subtypes\nSubtypes: [\nErrors:\n- x",
    "",
    "\n\n",
    "%s {} 'x",
]


@pytest.mark.parametrize("message", UNKNOWN)
def test_an_unknown_text_is_unchanged(zoo, message) -> None:
    parser = parser_of(zoo)
    assert explain(message, parser=parser, argv=[]) == message
    assert explain(message, parser=parser._subcommands_action.choices["feed"], argv=["feed"]) == message


def test_an_error_of_ours_within_a_text_is_unchanged(zoo) -> None:
    ours = "'Sophia' is a class of the package Sophia.\n  Expected: it is installed.\n  Fix: pip install Sophia"
    message = f'Parser key "animal":\n{textwrap.indent(ours, "  ")}'
    assert explain(message, parser=parser_of(zoo), argv=[]) == ours


def test_the_parser_of_one_class_leaves_the_text_to_the_outer_parser(zoo) -> None:
    parser = parser_of(zoo)
    parser._inner_parser = True
    assert explain("Option 'x' is not accepted", parser=parser) == "Option 'x' is not accepted"


UNION = "Does not validate against any of the Union subtypes"
OF_CAT = "Parser key \"animal\":\n  Problem with given class_path 'zoo.Cat':\n    Validation failed: "
MISSING = "is required but not included in config object or its value is None."
OLDER = {  # texts of jsonargparse 4.39 → our errors
    "Unrecognized arguments: --keeper.hors 3": (
        "'keeper.hors' is not an argument of keeper. Did you mean 'keeper.hours'?"
    ),
    "Validation failed: Subcommand 'feed' does not accept nested key 'keeper.hors'": (
        "'keeper.hors' is not an argument of keeper. Did you mean 'keeper.hours'?"
    ),
    f'Validation failed: Key "feed.animal" {MISSING}': "animal is missing.",
    f"{OF_CAT}Key 'lifes' is not expected": "zoo.Cat has no argument 'lifes'. Did you mean 'lives'?",
    f'{OF_CAT}Key "lives" {MISSING}': "zoo.Cat is missing 'lives'.",
}


@pytest.mark.parametrize("message", OLDER)
def test_the_texts_of_older_versions_are_explained(zoo, message) -> None:
    part = parser_of(zoo)._subcommands_action.choices["feed"]
    assert explain(message, parser=part, argv=["feed"]).startswith(OLDER[message])


def test_a_text_is_parsed_down_to_the_innermost_reason() -> None:
    message = parse_message(
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
    assert message.reason == "Expected a dot import path string: ReLUU"
    assert message.key == "model.init_args.act"
    assert (message.class_path, message.owner) == ("b.Net", "model")
    assert (message.value, message.value_type) == ("ReLUU", "str")


def test_none_is_the_least_useful_reason_in_any_order_and_a_value_may_have_lines() -> None:
    inner = "Subtypes: [<class 'NoneType'>, <class 'int'>]\nErrors:\n  - Expected a <class 'NoneType'>\n"
    inner = f"{UNION}\n{inner}  - Expected a <class 'int'>\nGiven value type: <class 'str'>\nGiven value: ten\n  x"
    text = 'Parser key "animal":\n  Problem with given class_path \'zoo.Cat\':\n    Parser key "lives":\n'
    message = parse_message(f"{text}{textwrap.indent(inner, '      ')}")
    assert (message.reason, message.types) == ("Expected a <class 'int'>", ("NoneType", "int"))
    assert (message.key, message.value) == ("animal.init_args.lives", "ten\n  x")


def test_flags_are_read_as_the_parser_reads_them(zoo) -> None:
    words = ["-c", "x.yaml", "feed", "--keeper.animals+=zoo.Cat", "--animal.class_path", "zoo.Cat", "--food", "--x=-1"]
    invocation = Invocation(parser_of(zoo), argv=words)
    assert [(flag.key, flag.value) for flag in invocation.flags] == [
        ("config", "x.yaml"),
        ("keeper.animals", "zoo.Cat"),
        ("animal", "zoo.Cat"),
        ("food", None),
        ("x", "-1"),
    ]
    assert invocation.command == "zoo feed"
    assert plain("a.0.init_args.b") == "a.b"
