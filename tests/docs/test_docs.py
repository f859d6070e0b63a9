"""The pages: every block of Python runs, every link works, and every deviation is documented."""

from __future__ import annotations

import pathlib
import re
import tempfile
import warnings

import pytest
import tqdm

from lightlib import Trainer, optional, registry
from tests.processes import programs

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
GUIDES = ("peft", "timm", "torchvision", "transformers")  # pages with the name of a package of the extra guides
# Pages that run as a program: they start a second process, which runs the page again, or import what changes a process.
SCRIPTS = ("strategies", "launching", "tensor", "compile", "notebooks", "operating-systems", *GUIDES)
FILES = ("experiments", "sweep", "streams")  # pages of which each block is a file
STREAMS = re.compile(
    r"^(?:import|from) (datasets|litdata|torchao|webdataset)\b", flags=re.MULTILINE
)  # of optional packages
OF_TORCHDATA = "UserWarning: 'set_vital' is deprecated"
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)]*)?\)")
# Deviations that the pages must explain to users of Lightning, each with words that its row must contain.
DEVIATIONS = {
    "gradients are zeroed first": ["zeroed", "`training_step`"],
    "loaders before optimizers, once": ["`configure_optimizers`", "once per `fit`"],
    "schedules per epoch": ["`on_train_epoch_end`", "plateau"],
    "x-axis": ["`global_step`", "49", "50"],
    "outputs": ['`outputs["loss"]`', "as it was returned"],
    "detached": ["detached", "`enable_graph`"],
    "None": ["None", "no step"],
    "global_step": ["batches in which an optimizer stepped"],
    "saves in hooks": ["a file which a hook saved", "the rest of the hook"],
    "choice of checkpoints": ["`ModelCheckpoint`", "after the validation"],
    "last window": ["last", "true size"],
    "token weights": ['`{"loss": sum, "weight": n}`'],
    "several optimizers": ["Several optimizers", "automatic"],
    "loaders are not rebuilt": ["rebuil", "`DataLoader`"],
    "teardown": ["`teardown`", "exception"],
    "signals": ["`interrupted.ckpt`", "130", "143", "second"],
    "validation without data": ["`limit_val_batches=0`", "error"],
    "safe loading": ["`weights_only=False`"],
    "second fit": ["another module", "epoch 0"],
    "start line": ["one line", "schedules"],
    "uneven evaluation": ["`DistributedSampler`", "every sample once"],
    "metrics over processes": ["Means over an epoch", "`sync_dist=True`"],
    "uneven batches": ["different numbers of batches", "before the epoch"],
    "hangs": ["named"],
    "pipelines": ["`training_step`", "pipeline"],
    "untested devices": ["CUDA", "MPS"],
}


@pytest.mark.processes
@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated")  # raised within torch.onnx
@pytest.mark.parametrize("page", [p for p in PAGES if CODE.search(p.read_text(encoding="utf-8"))], ids=lambda p: p.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, monkeypatch):
    if page.stem in GUIDES and not optional.is_installed(page.stem):
        pytest.skip(f"needs {page.stem}, of the extra guides")
    blocks = CODE.findall(page.read_text(encoding="utf-8"))
    blocks = [block for block in blocks if all(map(optional.is_installed, STREAMS.findall(block)))]
    monkeypatch.setenv("LIGHTLIB_ACCELERATOR", "cpu")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # bars of torch.onnx would leave a thread
    if page.stem in SCRIPTS:
        runs_as_scripts(["\n\n".join(blocks)])
        return
    names = {"__name__": f"page_{page.stem}"}
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)  # where the locks of slots are: no experiment of this machine holds them
        if page.stem in FILES:
            runs_as_scripts(blocks)
            return
        for number, block in enumerate(blocks, 1):
            exec(compile(block, f"{page.name}, block {number}", "exec"), names)
        for test in [value for name, value in names.items() if name.startswith("test_")]:
            test()


def runs_as_scripts(files):
    for number, text in enumerate(files):
        pathlib.Path(f"part{number}.py").write_text(text, encoding="utf-8")
        done = programs.run(f"part{number}.py", starts=1)
        assert done.returncode == 0, done.stderr[-4000:]
        assert "Warning" not in done.stderr.replace(OF_TORCHDATA, ""), done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    links = [found for found in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in found[0]]
    assert [link for link, _ in links if not (page.parent / link).exists()] == []
    assert [link + anchor for link, anchor in links if anchor and anchor not in anchors_of(page.parent / link)] == []


def anchors_of(page):
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_pages_name_no_machine(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(home|root|tmp|Users|work)/", text)


@pytest.mark.parametrize("name", ["run", "killed"])
def test_the_picture_names_no_machine_and_loads_nothing(name):
    picture = (ROOT / "docs" / "images" / f"{name}.svg").read_text(encoding="utf-8")
    assert "lightlib" in picture
    assert not re.search(r"/(home|root|tmp|Users|work)/|@font-face|<image", picture)


@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_every_deviation_has_a_row(deviation):
    rows = re.split(r"\n(?=[|#-])", (ROOT / "docs" / "differences.md").read_text(encoding="utf-8"))
    assert any(all(words in row for words in DEVIATIONS[deviation]) for row in rows), DEVIATIONS[deviation]


def test_callbacks_that_the_page_lists_exist():
    from lightlib import callbacks, evaluation

    page = (ROOT / "docs" / "callbacks.md").read_text(encoding="utf-8")
    rows = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    shown = {name for name in callbacks.__all__ if name[0].isupper()}
    shown |= {
        name
        for name in evaluation.__all__
        if isinstance(kind := getattr(evaluation, name), type) and issubclass(kind, callbacks.Callback)
    }
    bases = {"Callback", "Checkpoint", "ProgressBar", "TimedProgressBar", "RichProgressBarTheme"}
    assert named == shown - bases


def test_the_page_lists_each_logger_with_its_name():
    page = (ROOT / "docs" / "logging.md").read_text(encoding="utf-8")
    listed = {name: kind for kind, name in re.findall(r'^\| `(\w+)` \| `"(\w+)"` \|', page, flags=re.MULTILINE)}
    assert listed == {name: path.partition(":")[2] for name, path in registry.BUILT_IN["loggers"].items()}


def test_arguments_that_pages_write_exist():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = set(Trainer.__init__.__wrapped__.__kwdefaults__)
    for page in PAGES:
        for call in re.findall(r"Trainer\(([a-z_]+)=", page.read_text(encoding="utf-8")):
            assert call in known, (page.name, call)
