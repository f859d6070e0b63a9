"""Bad input: checkpoints that are missing, damaged, from another program, or of another model."""

from __future__ import annotations

import os
import pickle
import random
import re
import shutil
import zipfile
from pathlib import Path

import pytest
import torch

from lightlib.callbacks import ModelCheckpoint
from lightlib.errors import ArgumentTypeError, CheckpointError, CheckpointWriteError, MisconfigurationException
from lightlib.report import PossibleUserWarning
from tests.runs.bad_input import Net, loader, refused, trainer, with_methods
from tests.runs.plain import subclass

BROKEN = CheckpointError
WHOLE = "a complete file that Trainer.save_checkpoint or Lightning wrote."
ANOTHER = "use another checkpoint; this one is truncated, damaged, or not a checkpoint."
A_DICT = "a dict with 'state_dict', as Trainer.save_checkpoint writes it."
PLAIN = "tensors and plain values; only with compat do files also hold hyperparameters that are objects."
TRUST = (
    "if you trust the source of the file, pass trust=True to lightlib.checkpoint.load, or weights_only=False to "
    "fit and load_from_checkpoint; it may run any code."
)
SAME = "resume with the same configure_optimizers, or load the weights alone with load_from_checkpoint."


class Canary:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("canary",)


class Stranger:
    """A class that a checkpoint may not hold."""


class Other(Net):
    """Another model: one layer more, and a wider one."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.more = torch.nn.Linear(1, 1)


@pytest.fixture
def saved(tmp_path):
    """A good checkpoint, good.ckpt in the current folder."""
    run = trainer()
    run.fit(Net(), loader())
    run.save_checkpoint("good.ckpt")
    return tmp_path / "good.ckpt"


def refuses(path, what, expected, fix, kind=BROKEN, module=Net):
    """Expect the same error from a resume and from load_from_checkpoint, no training, and the file intact."""
    file = Path(path)
    before = file.read_bytes() if file.is_file() else None
    net = module()
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    with refused(kind, what, expected, fix):
        trainer().fit(net, loader(), ckpt_path=path)
    assert net.steps == 0
    assert "does not fit" in what or all(net.state_dict()[name].equal(value) for name, value in weights.items())
    with refused(kind, what, expected, fix):
        module.load_from_checkpoint(path)
    assert before is None or file.read_bytes() == before


class TestPaths:
    """Values of `ckpt_path`."""

    @pytest.mark.parametrize("given", [3, True, "", b"good.ckpt", ["good.ckpt"]])
    @pytest.mark.parametrize("call", ["fit", "validate", "test", "predict"])
    def test_another_type(self, call, given):
        module = Net()
        module.validation_step = module.test_step = module.predict_step = print
        with refused(
            ArgumentTypeError,
            f"ckpt_path is {given!r} ({type(given).__name__}).",
            "'auto', 'best', 'last', 'epoch:N', 'step:N', a path, or None to start from nothing.",
            f"trainer.{call}(module, ckpt_path='last')",
        ):
            getattr(trainer(), call)(module, loader(), ckpt_path=given)
        assert module.steps == 0

    def test_missing(self, saved):
        refuses(
            "goood.ckpt",
            "There is no checkpoint 'goood.ckpt'. Did you mean 'good.ckpt'?",
            "an existing file; in '.' there are: good.ckpt.",
            "use 'good.ckpt'.",
        )

    def test_missing_with_its_folder(self):
        refuses(
            "nowhere/a.ckpt",
            "There is no checkpoint 'nowhere/a.ckpt'.",
            "an existing file; in 'nowhere' there are: no .ckpt files.",
            "correct the path; `ckpt_path=None` starts a new run.",
        )

    def test_a_protocol_that_is_not_known(self):
        with refused(
            BROKEN,
            "'nowhere://bucket/a.ckpt' cannot be accessed: Protocol not known: nowhere",
            "a path, or a URL with a protocol that fsspec knows and whose package is installed.",
            "pip install s3fs for s3://, gcsfs for gs://, adlfs for abfs://; or use a local path.",
        ):
            trainer().fit(Net(), loader(), ckpt_path="nowhere://bucket/a.ckpt")

    def test_missing_in_a_store(self):
        with refused(
            BROKEN,
            "There is no checkpoint 'memory://bucket/a.ckpt'.",
            "an existing file.",
            "correct the address; `ckpt_path=None` starts a new run.",
        ):
            trainer().fit(Net(), loader(), ckpt_path="memory://bucket/a.ckpt")

    def test_no_best(self):
        with refused(
            BROKEN,
            "ckpt_path='best', but no best checkpoint is known to this Trainer.",
            "a ModelCheckpoint that has saved, in this Trainer or in a folder of its runs.",
            "call fit first, or pass a path.",
        ):
            trainer().fit(Net(), loader(), ckpt_path="best")

    @pytest.mark.parametrize("with_callback", [False, True])
    def test_no_last(self, with_callback):
        arguments = {"enable_checkpointing": True, "callbacks": ModelCheckpoint("empty")} if with_callback else {}
        with refused(
            BROKEN,
            "ckpt_path='last', but there is no last checkpoint***.",
            "a file last*.ckpt of a ModelCheckpoint with save_last=True.",
            "pass a path, or ckpt_path='auto' to start from nothing when there is none.",
        ):
            trainer(**arguments).fit(Net(), loader(), ckpt_path="last")

    @pytest.mark.parametrize("name", ["hpc", "registry", "registry:model"])
    def test_not_in_this_version(self, name):
        with refused(
            MisconfigurationException,
            f"ckpt_path={name!r} is not part of this version.",
            "'auto', 'best', 'last', 'epoch:N', 'step:N' or a path.",
            "trainer.fit(module, ckpt_path='last')",
        ):
            trainer().fit(Net(), loader(), ckpt_path=name)


class TestDamaged:
    """Files that are incomplete, or no checkpoints."""

    @pytest.mark.parametrize("part", range(20))
    def test_truncated(self, saved, part):
        whole = saved.read_bytes()
        size = len(whole) * part // 20
        saved.write_bytes(whole[:size])
        refuses("good.ckpt", f"'good.ckpt' ({size} bytes) could not be read as a checkpoint: ***.", WHOLE, ANOTHER)

    def test_flipped_bits(self, saved):
        """Each flipped bit raises the error, unless it is in tensor data, which torch does not check."""
        whole = saved.read_bytes()
        with zipfile.ZipFile(saved) as archive:
            places = [one.header_offset + k for one in archive.infolist() for k in (0, 2, 5)]
        places += [*range(len(whole) - 90, len(whole), 3), *random.sample(range(len(whole)), 40)]
        texts = [text for place in places if (text := self.refusal(saved, whole, place))]
        assert len(texts) > 10
        assert all(re.fullmatch(r".+\n  Expected: .+\n  Fix: .+", text) for text in texts)

    @staticmethod
    def refusal(path, whole, place):
        """Return the error for a file with one bit flipped; "" if the file can be read."""
        damaged = bytearray(whole)
        damaged[place] ^= 1 << random.randrange(8)
        path.write_bytes(damaged)
        try:
            Net.load_from_checkpoint(str(path))
        except CheckpointError as error:  # any other error fails the test
            return str(error)
        return ""

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (b"", "it is empty or ends too early"),
            (b"hello\nworld\n", "torch.save did not write it, or it is damaged"),
            (b"PK\x03\x04", "***"),
            (bytes(range(256)), "torch.save did not write it, or it is damaged"),
        ],
    )
    def test_something_else(self, tmp_path, content, reason):
        (tmp_path / "a.ckpt").write_bytes(content)
        what = f"'a.ckpt' ({len(content)} bytes) could not be read as a checkpoint: {reason}."
        refuses("a.ckpt", what, WHOLE, ANOTHER)

    def test_a_directory(self):
        os.mkdir("a.ckpt")
        refuses(
            "a.ckpt",
            "'a.ckpt' is empty.",
            "a directory that Trainer.save_checkpoint wrote, with its index.json.",
            "use another checkpoint.",
        )

    @pytest.mark.parametrize(
        ("content", "found", "fix"),
        [
            ([1, 2], "it is [1, 2] (list)", "use a file that Trainer.save_checkpoint or Lightning wrote."),
            (
                {"model": 3}, "it is a dict with the keys ['model']",
                "use a file that Trainer.save_checkpoint or Lightning wrote.",
            ),
            (
                {"state_dict": 3}, "its 'state_dict' is 3 (int)",
                "use a file that Trainer.save_checkpoint or Lightning wrote.",
            ),
            (
                {"a": torch.ones(1), "b": torch.ones(1)}, "it is a dict with the keys ['a', 'b']",
                "these are plain weights: module.load_state_dict(torch.load('a.ckpt'))",
            ),
        ],
    )  # fmt: skip
    def test_no_checkpoint(self, content, found, fix):
        torch.save(content, "a.ckpt")
        refuses("a.ckpt", f"'a.ckpt' (*** bytes) is not a checkpoint: {found}.", A_DICT, fix)


class TestCode:
    """Nothing in a file is run, unless it is trusted."""

    def test_a_command(self):
        torch.save({"state_dict": {}, "other": Canary()}, "a.ckpt")
        what = "'a.ckpt' (*** bytes) has a Python object at ['other'] that can only be loaded by running code:"
        refuses("a.ckpt", f"{what} posix.mkdir.", PLAIN, TRUST)
        assert not os.path.exists("canary")

    @pytest.mark.filterwarnings("ignore:Detected pickle protocol")
    @pytest.mark.parametrize("protocol", [2, 4])
    def test_a_plain_pickle(self, protocol):
        with open("a.ckpt", "wb") as file:
            pickle.dump({"state_dict": {}, "other": Canary()}, file, protocol)
        with pytest.raises(CheckpointError):
            trainer().fit(Net(), loader(), ckpt_path="a.ckpt")
        assert not os.path.exists("canary")

    def test_a_foreign_class(self):
        torch.save({"state_dict": Net().state_dict(), "other": Stranger()}, "a.ckpt")
        what = (
            "'a.ckpt' (*** bytes) has a Python object at ['other'] that can only be loaded by running code: "
            "tests.core.resume.restore.test_checkpoint_errors.Stranger."
        )
        refuses("a.ckpt", what, PLAIN, TRUST)

    def test_a_trusted_file(self):
        torch.save({"state_dict": Net().state_dict(), "other": Stranger()}, "a.ckpt")
        assert isinstance(Net.load_from_checkpoint("a.ckpt", weights_only=False), Net)

    def test_a_hook_that_writes_objects_is_refused(self):
        def on_save_checkpoint(self, checkpoint):
            checkpoint["mine"] = {"strange": [Stranger()]}

        run = trainer()
        run.fit(with_methods(Net, on_save_checkpoint), loader())
        text = "The checkpoint holds an object that is no plain value at ['mine']['strange'][0] (Stranger)"
        with refused(
            CheckpointWriteError,
            f"{text}: no run could be resumed from it.",
            "tensors, numbers, strings, and lists, dicts, sets, deques and SimpleNamespaces of them.",
            "return such values from state_dict(), or write them in on_save_checkpoint; ***fit(…, weights_only=False).",
        ):
            run.save_checkpoint("a.ckpt")
        assert os.listdir() == []
        with pytest.warns(UserWarning, match=re.escape(f"{text}: it can only be read")):
            run.save_checkpoint("a.ckpt", weights_only=True)  # nothing resumes from it

    def test_a_run_that_trusts_its_files_writes_objects(self):
        given = subclass(Net, on_save_checkpoint=lambda self, checkpoint: checkpoint.update(mine=Stranger()))
        run = trainer()
        run.fit(given(), loader(), weights_only=False)
        run.save_checkpoint("a.ckpt")
        trainer(max_epochs=2).fit(given(), loader(), ckpt_path="a.ckpt", weights_only=False)


class TestFit:
    """Files that are complete, but from another run."""

    def changed(self, **changes):
        content = torch.load("good.ckpt")
        for key, value in changes.items():
            if value is None:
                del content[key]
            else:
                content[key] = value
        torch.save(content, "other.ckpt")

    def resume(self, module, what, expected, fix, path="other.ckpt"):
        with refused(BROKEN, what, expected, fix):
            trainer(max_epochs=2).fit(module, loader(), ckpt_path=path)
        assert module.steps == 0

    @pytest.mark.usefixtures("saved")
    def test_another_model(self):
        what = (
            "The checkpoint does not fit Other:\n"
            '    Missing key(s) in state_dict: "more.weight", "more.bias".\n'
            "    size mismatch for layer.weight: copying a param with shape torch.Size([1, 2]) from checkpoint, the "
            "shape in current model is torch.Size([1, 3])."
        )
        fix = "build Other with the arguments of the saved one."
        refuses("good.ckpt", what, "the same parameter names and shapes.", fix, module=Other)

    @pytest.mark.usefixtures("saved")
    def test_other_names(self):
        self.changed(state_dict={"layer.weight": torch.ones(1, 2), "extra": torch.ones(1)})
        what = (
            "The checkpoint does not fit Net:\n"
            '    Missing key(s) in state_dict: "layer.bias".\n'
            '    Unexpected key(s) in state_dict: "extra".'
        )
        expected, fix = "the same parameter names and shapes.", "build Net with the arguments of the saved one, or"
        self.resume(Net(), what, expected, f"{fix} set `strict_loading = False` on it to load what fits.")
        with refused(BROKEN, what, expected, f"{fix} pass strict=False to load what fits."):
            Net.load_from_checkpoint("other.ckpt")
        left = r"Net keeps the initial values of 'layer\.bias'; 'extra' of the checkpoint are not loaded\."
        with pytest.warns(PossibleUserWarning, match=left):
            Net.load_from_checkpoint("other.ckpt", strict=False)

    def test_weights_alone(self):
        run = trainer()
        run.fit(Net(), loader())
        run.save_checkpoint("weights.ckpt", weights_only=True)
        self.resume(
            Net(),
            "The checkpoint holds weights alone: it has no 'optimizer_states' ('weights.ckpt').",
            "a checkpoint that was saved with weights_only=False.",
            "module = Net.load_from_checkpoint('weights.ckpt'), then fit without ckpt_path; or "
            "fit(…, resume='weights').",
            path="weights.ckpt",
        )
        assert isinstance(Net.load_from_checkpoint("weights.ckpt"), Net)

    @pytest.mark.usefixtures("saved")
    def test_a_newer_format(self):
        self.changed(lightlib={**torch.load("good.ckpt")["lightlib"], "format": 99})
        refuses(
            "other.ckpt",
            "'other.ckpt' has format 99, which is newer than this version of lightlib.",
            "a format of at most 3.",
            "pip install --upgrade lightlib",
        )

    @pytest.mark.usefixtures("saved")
    @pytest.mark.parametrize(
        ("changes", "what"),
        [
            ({"lightlib": 3}, "'other.ckpt' is damaged or from another program: its 'lightlib' is 3 (int)."),
            (
                {"lightlib": {"format": "x"}},
                "'other.ckpt' is damaged or from another program: its 'lightlib' is {***} (dict).",
            ),
            (
                {"optimizer_states": 3},
                "'other.ckpt' is damaged or from another program: its 'optimizer_states' is 3 (int).",
            ),
            ({"callbacks": [1]}, "'other.ckpt' is damaged or from another program: its 'callbacks' is [1] (list)."),
        ],
    )
    def test_other_contents(self, changes, what):
        self.changed(**changes)
        self.resume(Net(), what, "a file that Trainer.save_checkpoint or Lightning wrote.", "use another checkpoint.")

    @pytest.mark.usefixtures("saved")
    @pytest.mark.parametrize(
        ("changes", "what"),
        [
            ({"lightlib": {"format": 1}}, "The checkpoint's position cannot be restored: KeyError: 'progress'"),
            ({"optimizer_states": [3]}, "The checkpoint's state of SGD cannot be restored: TypeError: ***"),
            (
                {"optimizer_states": [{}]},
                "The checkpoint's state of SGD cannot be restored: KeyError: 'param_groups'",
            ),
        ],
    )
    def test_parts_that_are_missing(self, changes, what):
        self.changed(**changes)
        expected = "the state of the same run, as Trainer.save_checkpoint writes it."
        fix = "resume with the same program, or load the weights alone with load_from_checkpoint."
        self.resume(Net(), what, expected, fix)

    @pytest.mark.usefixtures("saved")
    @pytest.mark.parametrize(
        ("configure", "what", "expected"),
        [
            (
                lambda self: [torch.optim.SGD([self.layer.weight], 0.1), torch.optim.SGD([self.layer.bias], 0.1)],
                "The checkpoint holds 1 optimizers, but configure_optimizers returned 2.",
                "the same optimizers in the same order.",
            ),
            (
                lambda self: ([o := torch.optim.SGD(self.parameters(), 0.1)], [torch.optim.lr_scheduler.StepLR(o, 1)]),
                "The checkpoint holds 0 schedulers, but configure_optimizers returned 1.",
                "the same schedulers in the same order.",
            ),
            (
                lambda self: torch.optim.Adam(self.parameters()),
                "The checkpoint's optimizer is no Adam: it has 'dampening', 'momentum', 'nesterov', but no ***.",
                "the optimizer of the saved run.",
            ),
            (
                lambda self: torch.optim.SGD([{"params": [self.layer.weight]}, {"params": [self.layer.bias]}], 0.1),
                "The checkpoint's state of SGD cannot be restored: ValueError: loaded state dict has ***",
                "the state of the same run, as Trainer.save_checkpoint writes it.",
            ),
        ],
    )
    def test_another_optimization(self, configure, what, expected):
        module = type("Given", (Net,), {"configure_optimizers": configure})()
        fix = SAME if "cannot be restored" not in what else SAME.replace("configure_optimizers", "program")
        self.resume(module, what, expected, fix, path="good.ckpt")


def test_nothing_is_removed(saved):
    shutil.copy(saved, "copy.ckpt")
    with pytest.raises(CheckpointError):
        trainer().fit(Other(), loader(), ckpt_path="good.ckpt")
    assert saved.read_bytes() == Path("copy.ckpt").read_bytes()
