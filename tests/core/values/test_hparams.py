"""save_hyperparameters in all its forms, the stored values, and the values that loggers get."""

from __future__ import annotations

import copy
import json
import pickle
from argparse import Namespace
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy
import pytest
import torch
import yaml

from lightlib.conventions import following
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.core.values.hparams import AttributeDict, plain_hparams
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.loggers import CSVLogger, Logger
from lightlib_lightning.order import LIGHTNING
from tests.runs.modules import Regression
from tests.runs.plain import Net, batches, quiet_trainer


class All(Module):
    def __init__(self, width, /, depth=2, *rest, lr=0.1, **more):
        super().__init__()
        self.save_hyperparameters()


class TestArguments:
    def test_all_with_defaults_and_keywords(self):
        assert All(8, lr=1.0, extra="x").hparams == {"width": 8, "depth": 2, "lr": 1.0, "extra": "x"}

    def test_some_by_name(self):
        class Some(Module):
            def __init__(self, a, b=2, c=3):
                super().__init__()
                self.save_hyperparameters("a", "c")

        assert Some(1).hparams == {"a": 1, "c": 3}

    @pytest.mark.parametrize("ignore", ["b", ["b"], ("b", "nothing"), {"b"}])
    def test_ignored(self, ignore):
        class Some(Module):
            def __init__(self, a, b=2):
                super().__init__()
                self.save_hyperparameters(ignore=ignore)

        assert Some(1).hparams == {"a": 1}

    def test_before_super_init(self):
        class Early(Module):
            def __init__(self, a):
                self.save_hyperparameters()
                super().__init__()

        assert Early(3).hparams == {"a": 3}

    def test_a_value_changed_before_the_call_is_the_changed_one(self):
        class Doubles(Module):
            def __init__(self, a):
                super().__init__()
                a = 2 * a
                self.save_hyperparameters()

        assert Doubles(3).hparams.a == 6

    def test_self_may_have_another_name(self):
        class Other(Module):
            def __init__(this, a):  # noqa: N805  a user may do so
                super().__init__()
                this.save_hyperparameters()

        assert Other(3).hparams == {"a": 3}

    def test_elsewhere_than_in_init(self):
        class Late(Module):
            def __init__(self, width=1):
                super().__init__()

            def setup(self, stage):
                self.save_hyperparameters()

        with pytest.raises(MisconfigurationException, match=r"called in `setup`[\s\S]*move it to Late.__init__"):
            Late().setup("fit")
        with pytest.raises(MisconfigurationException, match="called in `test_elsewhere_than_in_init`"):
            Late().save_hyperparameters()
        late = Late()
        late.save_hyperparameters({"width": 3})  # one object can be given anywhere
        assert late.hparams == {"width": 3}

    @pytest.mark.parametrize("given", [(3,), ({"a": 1}, {"b": 2}), ("a", 3), ([1],)])
    def test_something_else(self, given):
        class Wrong(Module):
            def __init__(self, a=1):
                super().__init__()
                self.save_hyperparameters(*given)

        with pytest.raises(ArgumentTypeError, match="save_hyperparameters got"):
            Wrong()

    def test_in_a_data_module(self):
        class Data(DataModule):
            def __init__(self, size=3):
                super().__init__()
                self.save_hyperparameters()

        assert Data(4).hparams == {"size": 4}


class TestInheritance:
    class Base(Module):
        def __init__(self, a=1, b=2):
            super().__init__()
            self.save_hyperparameters()

    def test_called_in_the_base_class(self):
        class Sub(self.Base):
            def __init__(self, c, a=10):
                super().__init__(a=a)

        assert Sub(3).hparams == {"a": 10, "b": 2, "c": 3}

    def test_called_in_both(self):
        class Sub(self.Base):
            def __init__(self, c=3, **more):
                super().__init__(**more)
                self.save_hyperparameters()

        assert Sub(b=5).hparams == {"a": 1, "b": 5, "c": 3}

    def test_a_subclass_leaves_out_what_the_base_kept(self):
        class Sub(self.Base):
            def __init__(self, a=1, c=3):
                super().__init__(a)
                self.save_hyperparameters(ignore=["a", "b"])

        assert Sub().hparams == {"c": 3}
        assert Sub().hparams_initial == {"c": 3}

    def test_the_outermost_class_wins(self):
        class Sub(self.Base):
            def __init__(self, a=7):
                super().__init__(a=a * 2)

        assert Sub().hparams == {"a": 7, "b": 2}

    def test_a_base_that_is_another_object_is_none_of_ours(self):
        class Outer(Module):
            def __init__(self, outer=1):
                super().__init__()
                self.inner = TestInheritance.Base()

        assert Outer().inner.hparams == {"a": 1, "b": 2}
        assert Outer().hparams == {}


@dataclass
class Config:
    width: int = 8
    names: list[str] = field(default_factory=lambda: ["a"])


class Configured(Module):
    def __init__(self, config, lr=0.1):
        super().__init__()
        self.save_hyperparameters(config)


@dataclass(eq=False)
class AsDataclass(Module):
    width: int = 3
    secret: str = "x"

    def __post_init__(self):
        super().__init__()
        self.save_hyperparameters(ignore="secret")


class TestObjects:
    @pytest.mark.parametrize(
        "config",
        [Config(), {"width": 8, "names": ["a"]}, Namespace(width=8, names=["a"]), AttributeDict(width=8, names=["a"])],
    )
    def test_one_object(self, config):
        module = Configured(config)
        assert module.hparams == {"width": 8, "names": ["a"]}
        assert module._hparams_name == "config"

    def test_one_made_on_the_spot(self):
        class Made(Module):
            def __init__(self):
                super().__init__()
                self.save_hyperparameters({"a": 1})

        module = Made()
        assert module.hparams == {"a": 1}
        assert module._hparams_name == "kwargs"

    def test_an_object_without_some(self):
        class Ignores(Module):
            def __init__(self, config):
                super().__init__()
                self.save_hyperparameters(config, ignore="names")

        assert Ignores(Config()).hparams == {"width": 8}

    def test_the_object_itself_is_not_changed(self):
        config = {"width": 8}
        module = Configured(config)
        module.hparams.width = 9
        assert config == {"width": 8}

    def test_a_module_that_is_a_dataclass(self):
        assert AsDataclass(width=5).hparams == {"width": 5}


class Optimized(Net):
    def __init__(self, opt):
        super().__init__()
        self.save_hyperparameters()


class TestAttributeDict:
    def test_reads_and_writes_as_attributes(self):
        hparams = AttributeDict(a=1)
        hparams.b = 2
        del hparams.a
        assert hparams == {"b": 2}
        assert (hparams.b, hparams["b"]) == (2, 2)

    def test_a_name_that_is_not_there(self):
        with pytest.raises(AttributeError, match="No hyperparameter is named 'c'; there are: 'a'"):
            AttributeDict(a=1).c  # noqa: B018  the property raises
        assert not hasattr(AttributeDict(), "anything")

    def test_dicts_in_it(self, tmp_path):
        """Nested dicts are read and written as attributes, and stored as plain dicts."""
        path = tmp_path / "a.ckpt"
        module = Optimized(opt={"a": {"b": 0.5}, "names": ["x"]})
        assert module.hparams.opt.a.b == module.hparams["opt"]["a"]["b"] == 0.5
        module.hparams.opt.a.b = 0.25
        assert module.hparams["opt"] == {"a": {"b": 0.25}, "names": ["x"]}
        with pytest.raises(AttributeError, match=r"No hyperparameter is named 'c'; there are: 'b'\."):
            module.hparams.opt.a.c  # noqa: B018  the property raises
        trainer = quiet_trainer()
        trainer.fit(module, batches(2))
        trainer.save_checkpoint(path)
        stored = torch.load(path, weights_only=True)["hyper_parameters"]["opt"]
        assert (type(stored), type(stored["a"])) == (dict, dict)
        assert Optimized.load_from_checkpoint(path).hparams.opt.a.b == 0.25

    def test_printed(self):
        assert str(AttributeDict(a=1, width=2)) == '"a":     1\n"width": 2'
        assert str(AttributeDict()) == ""

    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
    def test_copies(self, copied):
        made = copied(AttributeDict(a=[1]))
        assert made == {"a": [1]}
        assert type(made) is AttributeDict


class TestDictsAsAttributes:
    """Reading one as an attribute gives a view; the stored object is the one that was given."""

    def given(self):
        opt = {"lr": 0.1, "more": {"names": ["a"], "deep": {"x": 1}}}
        return opt, Optimized(opt=opt)

    def test_the_given_object_stays(self):
        opt, module = self.given()
        assert module.hparams.opt.more.deep.x == 1
        assert module.hparams["opt"] is opt
        assert (type(opt["more"]), type(opt["more"]["deep"])) == (dict, dict)
        assert yaml.safe_load(yaml.safe_dump(dict(module.hparams))) == {"opt": opt}

    def test_loggers_get_plain_dicts(self):
        class Records(Logger):
            name, version, got = "a", "0", ()

            def log_metrics(self, metrics, step=None):
                pass

            def log_hyperparams(self, params, *args):
                self.got = (*self.got, params)

        _, module = self.given()
        assert module.hparams.opt.lr == 0.1
        logger = Records()
        quiet_trainer(logger=logger).fit(module, batches(1))
        assert type(logger.got[0]["opt"]) is dict
        assert type(logger.got[0]["opt"]["more"]) is dict

    def test_a_change_through_the_view_is_one_of_the_dict(self):
        opt, module = self.given()
        view = module.hparams.opt
        view.lr = 1
        view["more"] = {"names": []}
        view.more.names.append("b")
        view.update(momentum=0.9)
        view |= {"nesterov": True}
        assert view.setdefault("decay", 0.5) == 0.5
        assert view.pop("nesterov") is True
        del view.decay
        assert opt == {"lr": 1, "more": {"names": ["b"]}, "momentum": 0.9} == view
        opt["lr"] = 2
        assert (view.lr, view["lr"], view.get("lr"), dict(view)["lr"], {**view}["lr"]) == (2, 2, 2, 2, 2)
        view.clear()
        assert opt == {}
        assert not view

    def test_the_view_is_a_dict_for_other_code(self):
        opt, module = self.given()
        view = module.hparams.opt
        assert isinstance(view, dict)
        assert json.loads(json.dumps(view)) == opt == view
        assert yaml.safe_load(yaml.safe_dump(view)) == opt
        assert list(view) == list(view.keys()) == ["lr", "more"]
        assert (len(view), "lr" in view, "x" in view) == (2, True, False)
        assert view | {"lr": 3} == {**opt, "lr": 3}
        assert str(view.more) == str(AttributeDict(opt["more"]))
        with pytest.raises(AttributeError, match="No hyperparameter is named 'x'"):
            view.x  # noqa: B018  the property raises

    @pytest.mark.parametrize(
        "copied", [copy.copy, copy.deepcopy, lambda view: view.copy(), lambda view: pickle.loads(pickle.dumps(view))]
    )
    def test_a_copy_is_no_view(self, copied):
        opt, module = self.given()
        made = copied(module.hparams.opt)
        assert made == opt
        made.lr = 7
        assert opt["lr"] == 0.1
        assert type(made) is AttributeDict

    def test_under_compat_it_is_the_object_itself(self):
        opt, module = self.given()
        with following(LIGHTNING):
            assert module.hparams.opt is opt


class TestInitial:
    def test_stays_as_it_was(self):
        module = All(8, names=["a"])
        module.hparams.width = 9
        module.hparams.names.append("b")
        assert module.hparams_initial == {"width": 8, "depth": 2, "lr": 0.1, "names": ["a"]}
        module.hparams_initial["width"] = 0
        assert module.hparams_initial["width"] == 8

    def test_what_cannot_be_copied_is_kept_as_it_is(self):
        generator = (i for i in range(3))
        assert All(generator).hparams.width is generator


class Colour(Enum):
    RED = "red"


class Name(str, Enum):
    BLUE = "blue"


class TestPlain:
    def test_everything_that_has_a_plain_value(self):
        stored, left = plain_hparams(
            {
                "plain": [1, 2.5, "x", True, None, b"y", 1j],
                "path": Path("a/b"),
                "enum": Colour.RED,
                "numpy": numpy.float32(0.5),
                "integer": numpy.int64(3),
                "dtype": torch.float16,
                "device": torch.device("cpu"),
                "tuple": (1, {"deep": Path("c")}),
                "set": {1},
                "namespace": Namespace(a=Path("d")),
                "dataclass": Config(),
                "tensor": torch.ones(1, requires_grad=True),
                "keys": {Colour.RED: 1, 3: 4},
                "names": [numpy.str_("name"), Name.BLUE],
                "truth": numpy.bool_(True),
            }
        )
        assert left == []
        tensor = stored.pop("tensor")
        assert (tensor.item(), tensor.requires_grad) == (1.0, False)
        assert stored == {
            "plain": [1, 2.5, "x", True, None, b"y", 1j],
            "path": str(Path("a/b")),
            "enum": "red",
            "numpy": 0.5,
            "integer": 3,
            "dtype": "torch.float16",
            "device": "cpu",
            "tuple": (1, {"deep": "c"}),
            "set": [1],
            "namespace": {"a": "d"},
            "dataclass": {"width": 8, "names": ["a"]},
            "keys": {"red": 1, 3: 4},
            "names": ["name", "blue"],
            "truth": True,
        }
        assert type(stored["truth"]) is bool
        assert {type(name) for name in stored["names"]} == {str}
        assert type(stored["numpy"]) is float
        assert type(stored["integer"]) is int

    def test_the_rest_is_named(self):
        stored, left = plain_hparams({"a": 1, "f": print, "nested": [object()], "array": numpy.ones(2)})
        assert stored == {"a": 1}
        assert left == ["f", "nested", "array"]

    def test_containers_of_omegaconf_are_stored_as_what_they_hold(self):
        omegaconf = pytest.importorskip("omegaconf")
        given = omegaconf.OmegaConf.create(
            {"width": 8, "layers": [1, "${width}"], "model": {"lr": 0.1, "gone": "${nothing}"}, "api_key": "abc"}
        )
        stored, left = plain_hparams({**given, "betas": omegaconf.ListConfig([0.9, 0.99])})
        assert stored == {
            "width": 8,
            "layers": [1, 8],
            "model": {"lr": 0.1, "gone": "${nothing}"},
            "betas": [0.9, 0.99],
        }
        assert left == ["api_key"]

    def test_a_checkpoint_says_what_it_leaves_out(self, tmp_path):
        class Holds(Net):
            def __init__(self, width=1, activation=print, api_key="abc"):
                super().__init__()
                self.save_hyperparameters()

        module, trainer = Holds(), quiet_trainer()
        trainer.fit(module, batches(1))
        with pytest.warns(UserWarning) as caught:  # noqa: PT030  the texts are compared below
            trainer.save_checkpoint(tmp_path / "a.ckpt")
        end = "are not stored in the checkpoint; pass them again: Holds.load_from_checkpoint(path, {}=…)."
        assert [str(one.message) for one in caught] == [
            f"The hyperparameters 'activation' of Holds are no plain values, and {end.format('activation')}",
            f"The hyperparameters 'api_key' of Holds look like secrets, and {end.format('api_key')}",
        ]
        content = torch.load(tmp_path / "a.ckpt", weights_only=True)
        assert content["hyper_parameters"] == {"width": 1}


class Keeps(Logger):
    """Remembers the hyperparameters it was given."""

    name, version = "keeps", 0

    def __init__(self):
        self.given = []

    def log_metrics(self, metrics, step=None):
        pass

    def log_hyperparams(self, params, *args, **kwargs):
        self.given.append(dict(params))


class Logged(Net):
    def __init__(self, lr=0.1, batch_size=4, log=True):
        super().__init__()
        self.save_hyperparameters("lr", "batch_size", logger=log)


class Data(DataModule):
    def __init__(self, batch_size=4, folder="x", log=True):
        super().__init__()
        self.save_hyperparameters("batch_size", "folder", logger=log)

    def train_dataloader(self):
        return batches(2)


class TestLoggers:
    def given(self, module, data, **arguments):
        loggers = [Keeps(), Keeps()]
        quiet_trainer(max_epochs=2, logger=loggers, **arguments).fit(module, datamodule=data)
        assert loggers[0].given == loggers[1].given
        return loggers[0].given

    def test_once_per_run_and_both_together(self):
        assert self.given(Logged(), Data()) == [{"lr": 0.1, "batch_size": 4, "folder": "x"}]

    def test_not_when_it_is_not_wanted(self):
        assert self.given(Logged(log=False), Data()) == [{"batch_size": 4, "folder": "x"}]
        assert self.given(Logged(log=False), Data(log=False)) == []
        assert self.given(Logged(), Data(), enable_autolog_hparams=False) == []

    def test_none_at_all(self):
        assert self.given(Net(), Data(log=False)) == []

    def test_a_change_before_the_run_is_logged(self):
        module = Logged()
        module.hparams.lr = 0.5
        assert self.given(module, Data())[0]["lr"] == 0.5

    def test_one_name_with_two_values(self):
        with pytest.raises(
            MisconfigurationException,
            match=r"'batch_size' is 8 in the data module and 4 in the module[\s\S]*ignore='batch_size'",
        ):
            self.given(Logged(), Data(batch_size=8))

    def test_values_that_cannot_be_compared(self):
        class Arrays(Logged):
            def __init__(self, table):
                Net.__init__(self)
                self.save_hyperparameters("table")

        class ArrayData(Data):
            def __init__(self, table):
                DataModule.__init__(self)
                self.save_hyperparameters()

        table = numpy.ones(3)
        assert list(self.given(Arrays(table), ArrayData(table))[0]) == ["table"]


class OfOneDictionary(Regression):
    """Keeps a copy of its only argument."""

    def __init__(self, config):
        super().__init__(config["width"])
        self.config = config
        self.save_hyperparameters(dict(config))


def test_a_copy_of_an_argument_builds_the_module_again(tmp_path):
    trainer = quiet_trainer(max_epochs=1)
    trainer.fit(OfOneDictionary({"width": 3, "layers": [1, 2]}), [torch.ones(2, 3)])
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    loaded = OfOneDictionary.load_from_checkpoint(tmp_path / "a.ckpt")
    assert (loaded.config, loaded.net.in_features) == ({"width": 3, "layers": [1, 2]}, 3)


def test_values_that_cannot_be_compared_are_no_copies():
    class Compared(Module):
        def __init__(self, tensors, other):
            super().__init__()
            self.save_hyperparameters(dict(other))

    assert Compared({"a": torch.ones(2)}, {"a": torch.zeros(2)}).hparams["a"].sum() == 0


class TestPasswordsInUrls:
    URL = "postgres://me:hunter2@host/db"

    def module(self):
        class Stores(Net):
            def __init__(self, db="", more=None, mirrors=()):
                super().__init__()
                self.save_hyperparameters()

        return Stores(self.URL, {"deep": {"url": self.URL}, "port": 1}, ["a", self.URL])

    def test_are_not_stored(self, tmp_path):
        module = self.module()
        stored, left = plain_hparams(module.hparams)
        assert stored == {"more": {"deep": {}, "port": 1}}
        assert left == ["db", "more.deep.url", "mirrors"]
        trainer = quiet_trainer()
        trainer.fit(module, batches(1))
        path = tmp_path / "a.ckpt"
        with pytest.warns(UserWarning, match=r"'db', 'more.deep.url', 'mirrors' of Stores look like secrets"):
            trainer.save_checkpoint(path)
        assert b"hunter2" not in path.read_bytes()
        assert type(module).load_from_checkpoint(path, db=self.URL).hparams.db == self.URL
        assert module.hparams.db == self.URL

    def test_are_masked_by_loggers(self, tmp_path):
        logger = CSVLogger(tmp_path)
        logger.log_hyperparams(self.module().hparams)
        logger.save()
        text = "".join(file.read_text() for file in tmp_path.rglob("hparams.yaml"))
        assert "hunter2" not in text
        assert "postgres://me:***@host/db" in text

    @pytest.mark.parametrize(("name", "value"), [("api_key", "key"), ("link", URL), ("hf_token", "abc")])
    def test_changed_attributes_are_not_saved(self, name, value, tmp_path):
        class Refreshes(Net):
            def __init__(self):
                super().__init__()
                setattr(self, name, "")
                self.count = 0

            def on_train_batch_end(self, *args):
                setattr(self, name, f"{value}{self.count or ''}" if name != "link" else value)
                self.count += 1

        trainer = quiet_trainer()
        trainer.fit(Refreshes(), batches(2))
        with pytest.warns(UserWarning, match="looks like a secret"):
            trainer.save_checkpoint(tmp_path / "a.ckpt")
        assert value.encode() + b"1" not in (tmp_path / "a.ckpt").read_bytes()
        assert b"hunter2" not in (tmp_path / "a.ckpt").read_bytes()


def test_hyperparameters_are_added_under_the_name_that_projects_call():  # graphium, NeMo
    module = Net()
    module.save_hyperparameters({"width": 3})
    module._set_hparams({"depth": {"a": 1}})
    module._set_hparams(Namespace(width=4))
    assert module.hparams == {"width": 4, "depth": {"a": 1}}
    assert module.hparams_initial == {"width": 3}
    with pytest.raises(ArgumentTypeError):
        module._set_hparams(3)
