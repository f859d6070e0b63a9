"""Files besides the Trainer's checkpoints: damage, names that follow the weights, half files."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch

import lightlib as L
from lightlib.callbacks import ModelCheckpoint
from lightlib.checkpoint import export, load, publish
from lightlib.errors import CheckpointError, LightlibError
from lightlib.evaluation import PredictionDump, evaluate_offline
from tests.evaluation.modules import Losses, Predicts
from tests.evaluation.modules import loader as samples
from tests.runs.plain import Net, loader, quiet_trainer


def saved(folder, **arguments):
    """The newest checkpoint of a run; each run has another name."""
    torch.manual_seed(1)
    saver = ModelCheckpoint(folder, "{epoch}", **arguments)
    quiet_trainer(enable_checkpointing=True, callbacks=[saver]).fit(Net(), loader(8))
    return saver.best_model_path


def damaged(data, seed):
    """`data` with one flipped bit, or cut off."""
    chance = random.Random(seed)
    place = chance.randrange(len(data))
    if seed % 4 == 0:
        return data[:place]
    changed = bytearray(data)
    changed[place] ^= 1 << chance.randrange(8)
    return bytes(changed)


class TestPublished:
    def test_the_name_is_a_function_of_the_weights(self, tmp_path):
        paths = [saved(tmp_path / name) for name in ("a", "b")]
        one, other = (publish(path, tmp_path / "w") for path in paths)
        assert one == other
        assert torch.load(one)["state_dict"].keys() == Net().state_dict().keys()

    def test_other_weights_have_another(self, tmp_path):
        file = publish(saved(tmp_path / "a"), tmp_path / "w")
        content = torch.load(file)
        content["state_dict"]["net.0.bias"][0] += 1
        torch.save(content, tmp_path / "other.ckpt")
        assert publish(tmp_path / "other.ckpt", tmp_path / "w") != file


class TestSafetensors:
    @pytest.fixture
    def file(self, tmp_path):
        pytest.importorskip("safetensors")
        path = tmp_path / "w.safetensors"
        export(saved(tmp_path / "a"), path)
        return path

    @pytest.mark.parametrize("seed", range(40))
    def test_damage_is_found(self, file, seed):
        before, good = load(file), file.read_bytes()
        file.write_bytes(damaged(good, seed))
        try:
            after = load(file)
        except CheckpointError:
            return
        assert before.keys() == after.keys()
        assert all(torch.equal(value, after["state_dict"][name]) for name, value in before["state_dict"].items())

    def test_a_flipped_bit_of_a_weight_is_an_error(self, file):
        data = bytearray(file.read_bytes())
        data[-3] ^= 1
        file.write_bytes(data)
        with pytest.raises(CheckpointError, match="its tensors differ from its checksum"):
            load(file)

    def test_a_file_of_another_program_has_none(self, tmp_path):
        safetensors = pytest.importorskip("safetensors.torch")
        safetensors.save_file({"weight": torch.ones(2)}, tmp_path / "w.safetensors")
        assert torch.equal(load(tmp_path / "w.safetensors")["state_dict"]["weight"], torch.ones(2))

    def test_every_kind_of_tensor(self, tmp_path):
        pytest.importorskip("safetensors")
        kinds = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.int64, torch.bool]
        weights = {str(kind): torch.ones(2, 3).to(kind) for kind in kinds}
        weights |= {"none": torch.empty(0, 3), "one": torch.tensor(2.0), "turned": torch.arange(6.0).reshape(2, 3).T}
        torch.save({"state_dict": weights}, tmp_path / "a.ckpt")
        export(tmp_path / "a.ckpt", tmp_path / "w.safetensors")
        back = load(tmp_path / "w.safetensors")["state_dict"]
        assert all(
            torch.equal(back[name], value) and back[name].dtype == value.dtype for name, value in weights.items()
        )


class TestDumps:
    @pytest.mark.parametrize("name", ["index.json", "loader0.batch000001.rank0.pt"])
    def test_damage_is_an_error(self, tmp_path, name):
        quiet_trainer(callbacks=[PredictionDump(tmp_path, stages="test")]).test(Predicts(), samples(7), verbose=False)
        right, path = evaluate_offline(tmp_path, Losses()), tmp_path / "test" / name
        good, found = path.read_bytes(), 0
        for seed in range(30):
            path.write_bytes(damaged(good, seed))
            try:
                assert evaluate_offline(tmp_path, Losses()) == right  # white space of the index, for instance
            except LightlibError:
                found += 1
        assert found > 20
        path.unlink()
        with pytest.raises(LightlibError, match=f"{name}"):
            evaluate_offline(tmp_path, Losses())


class TestFabric:
    def test_half_files_of_a_killed_save_are_removed(self, tmp_path):
        """Those of the same name, by processes that do not live any more."""
        dead = 2**22 - 3
        with pytest.raises(ProcessLookupError):
            os.kill(dead, 0)
        half, other = (f".{name}.{dead}-0a1b2c3d.part" for name in ("state.ckpt", "other.ckpt"))
        for name in (half, other, f".state.ckpt.{os.getppid()}-0a1b2c3d.part"):
            (tmp_path / name).write_bytes(b"half")
        L.Fabric(accelerator="cpu", devices=1).save(tmp_path / "state.ckpt", {"step": 3})
        assert sorted(os.listdir(tmp_path)) == sorted(
            [other, f".state.ckpt.{os.getppid()}-0a1b2c3d.part", "state.ckpt"]
        )
        assert Path(tmp_path / "state.ckpt").stat().st_size > 0
