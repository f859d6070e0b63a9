"""The loader of jsonargparse: words, files that options name, and class paths in them."""

from __future__ import annotations

from pathlib import Path

import pytest

import lightlib
from lightlib.cli import LightningCLI
from lightlib.config.loader import _load
from lightlib.config.yaml.file import loader
from lightlib_lightning import demos

BORING = "lightning.pytorch.demos.boring_classes.BoringModel"
WORDS = "auto null Null NULL none true True TRUE false yes Yes no on On off y n Y N inf nan NaN Infinity e E x2 ~"
TIMER = "class_path: lightning.pytorch.callbacks.Timer\n"


@pytest.mark.parametrize("word", WORDS.split())
def test_a_word_is_read_as_yaml_reads_it(word):
    value, ours = loader(word), _load(word)
    assert (type(ours), repr(ours)) == (type(value), repr(value))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"model.yaml": f"class_path: {BORING}\n"}, ["--model", "model.yaml"]),
        ({"callbacks.yaml": f"- {TIMER}"}, ["--model", BORING, "--trainer.callbacks", "callbacks.yaml"]),
        ({"timer.yaml": TIMER}, ["--model", BORING, "--trainer.callbacks+=timer.yaml"]),
        ({"trainer.yaml": f"max_epochs: 1\ncallbacks:\n- {TIMER}"}, ["--model", BORING, "--trainer", "trainer.yaml"]),
    ],
)
def test_a_file_that_an_option_names_may_have_class_paths_of_lightning(files, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        Path(name).write_text(text)
    made = LightningCLI(lightlib.Module, subclass_mode_model=True, run=False, save_config_callback=None, args=[*words])
    assert type(made.model) is demos.BoringModel
    timers = [one for one in made.trainer.callbacks if isinstance(one, lightlib.callbacks.Timer)]
    assert len(timers) == ("timer" in str(files).lower())
