"""Pickles of Lightning before 2.0, read by a program within `pl_legacy_patch`."""

from __future__ import annotations

import pickle
import sys
import zipfile

import pytest
import torch

from lightlib import compat
from lightlib.errors import MisconfigurationException
from lightlib_lightning.tools.old_pickles import pl_legacy_patch
from tests.compatibility.lightning_old import STORED


@pytest.fixture
def as_lightning():
    compat.install()
    yield
    compat.uninstall()


@pytest.mark.usefixtures("as_lightning")
class TestNames:
    @pytest.mark.parametrize("root", ["pytorch_lightning", "lightning.pytorch"])
    @pytest.mark.parametrize("module", ["argparse_utils", "argparse"])
    def test_a_function_of_1_2(self, root, module):
        text = f"c{root}.utilities.{module}\n_gpus_arg_default\n.".encode()
        from lightning.pytorch.utilities.migration import pl_legacy_patch

        with pl_legacy_patch():
            assert pickle.loads(text)(3) == 3
        with pytest.raises((AttributeError, ModuleNotFoundError)):
            pickle.loads(text)

    def test_a_setting_of_1_5(self):
        text = b"cpytorch_lightning.utilities.enums\n_FaultTolerantMode\n(S'disabled'\ntR."
        with pl_legacy_patch():
            assert pickle.loads(text).name == "DISABLED"
        with pytest.raises(AttributeError):
            pickle.loads(text)

    @pytest.mark.parametrize("version", ["1.2.10", "1.5.10", "1.9.5"])
    def test_files_that_lightning_wrote(self, version, tmp_path):
        with zipfile.ZipFile(STORED) as archive:
            names = [name for name in archive.namelist() if version in name and name.endswith(".ckpt")]
            archive.extractall(tmp_path)
        for name in names:
            with pl_legacy_patch():
                content = torch.load(tmp_path / name, weights_only=False)
            assert content["pytorch-lightning_version"] == version
        assert names

    def test_nothing_is_left_behind(self):
        with pl_legacy_patch():
            pass
        assert not [name for name in sys.modules if name.endswith("argparse_utils")]


def test_without_compat():
    if "lightning" in sys.modules:
        pytest.skip("a real Lightning is imported")
    with pytest.raises(MisconfigurationException, match="without compat") as caught, pl_legacy_patch():
        pass
    assert "Fix: " in str(caught.value)
