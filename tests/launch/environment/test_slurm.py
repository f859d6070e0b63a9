"""SLURMEnvironment: the events that requeue a job, with a stand-in for scontrol."""

from __future__ import annotations

import signal
import sys

import pytest

from lightlib.callbacks import Callback, ModelCheckpoint
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.launch import SLURMEnvironment
from lightlib.report import LightlibWarning
from tests.runs.plain import Net, batches, quiet_trainer, same_weights

SLURM = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """A command of this name that records its arguments, and ends with a code that may be set."""
    for name in SLURM:
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "bin" / "scontrol"
    path.parent.mkdir()

    def make(code=0, error="", wait=0):
        path.write_text(
            f"#!{sys.executable}\nimport sys, time\n"
            f"open({str(tmp_path / 'said')!r}, 'a').write(' '.join(sys.argv[1:]))\n"
            f"time.sleep({wait})\nsys.stderr.write({error!r})\nsys.exit({code})\n"
        )
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(path.parent))
        return tmp_path / "said"

    return make


@pytest.mark.processes
def test_asks_for_the_job(scontrol, monkeypatch, caplog):
    said = scontrol()
    monkeypatch.setenv("SLURM_JOB_ID", "71")
    with caplog.at_level("INFO", logger="lightlib"):
        assert SLURMEnvironment().requeue("interrupted.ckpt")
    assert said.read_text() == "requeue 71"
    assert "SLURM job 71 is requeued." in caplog.text


@pytest.mark.processes
def test_a_job_of_an_array(scontrol, monkeypatch):
    said = scontrol()
    for name, value in zip(SLURM, ("71", "70", "1"), strict=True):
        monkeypatch.setenv(name, value)
    assert SLURMEnvironment().requeue("interrupted.ckpt")
    assert said.read_text() == "requeue 70_1"


@pytest.mark.processes
def test_what_goes_wrong_is_a_warning(scontrol, monkeypatch):
    monkeypatch.setenv("PATH", "")
    plugin = SLURMEnvironment()
    with pytest.warns(LightlibWarning, match="SIGUSR1 requested that this job be requeued, but it is not a SLURM job"):
        assert not plugin.requeue("a.ckpt")
    monkeypatch.setenv("SLURM_JOB_ID", "71")
    with pytest.warns(
        LightlibWarning, match="the command `scontrol` is not on this machine. Call: scontrol requeue 71"
    ):
        assert not plugin.requeue("a.ckpt")
    said = scontrol(code=1, error="slurm_requeue error: Requested operation is presently disabled")
    with pytest.warns(LightlibWarning, match="`scontrol requeue 71` failed: slurm_requeue error: Requested operation"):
        assert not plugin.requeue("a.ckpt")
    said.unlink()
    with pytest.warns(
        LightlibWarning, match="there is no checkpoint from which it could resume. Add a ModelCheckpoint"
    ):
        assert not plugin.requeue(None)
    assert not said.exists()


@pytest.mark.processes
def test_one_that_never_answers(scontrol, monkeypatch):
    scontrol(wait=1e5)
    monkeypatch.setenv("SLURM_JOB_ID", "71")
    with pytest.warns(LightlibWarning, match="failed: Command .* timed out"):
        assert not SLURMEnvironment().requeue("a.ckpt", patience=0.3)


def test_arguments(monkeypatch):
    plugin = SLURMEnvironment(auto_requeue=False, requeue_signal=signal.SIGUSR2)
    assert (plugin.auto_requeue, plugin.requeue_signal) == (False, signal.SIGUSR2)
    for given in ({"auto_requeue": 1}, {"requeue_signal": 10}, {"requeue_signal": "USR1"}):
        with pytest.raises(ArgumentTypeError, match=rf"SLURMEnvironment\({next(iter(given))}="):
            SLURMEnvironment(**given)
    for name in ("SIGTERM", "SIGINT", "SIGKILL"):
        with pytest.raises(
            MisconfigurationException, match=rf"requeue_signal=signal.{name}\).\n.*without another meaning"
        ):
            SLURMEnvironment(requeue_signal=getattr(signal, name))
    monkeypatch.delattr(signal, "SIGUSR1")
    with pytest.raises(MisconfigurationException, match="a system without SIGUSR1"):
        SLURMEnvironment()


class TestInARun:
    @pytest.fixture(autouse=True)
    def no_other_handler(self):
        """As in a program that has set none."""
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)}
        for number in before:
            signal.signal(number, signal.SIG_DFL)
        yield
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL, "the handler of before has come back"
        for number, handler in before.items():
            signal.signal(number, handler)

    def stopped(self, folder, number, **arguments):
        """Return the exit code of a run that gets a signal in its third batch."""

        class Sends(Callback):
            def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
                if batch_idx == 2:
                    signal.raise_signal(number)

        callbacks = [Sends(), *([ModelCheckpoint(folder)] if folder is not None else [])]
        trainer = quiet_trainer(enable_checkpointing=folder is not None, callbacks=callbacks, **arguments)
        with pytest.raises(SystemExit) as caught:
            trainer.fit(Net(), batches(8))
        assert trainer.progress.batch == 4
        return caught.value.code

    @pytest.mark.processes
    def test_saves_asks_and_goes_on(self, scontrol, monkeypatch, tmp_path):
        said = scontrol()
        monkeypatch.setenv("SLURM_JOB_ID", "71")
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            plugin = SLURMEnvironment(requeue_signal=number)
            assert self.stopped(tmp_path / number.name, number, plugins=plugin, accumulate_grad_batches=2) == 143
            assert said.read_text() == "requeue 71"
            said.unlink()
            resumed, whole = Net(), Net()
            checkpoint = ModelCheckpoint(tmp_path / number.name)
            again = {"enable_checkpointing": True, "callbacks": [checkpoint], "accumulate_grad_batches": 2}
            trainer = quiet_trainer(plugins=[plugin], **again)
            trainer.fit(resumed, batches(8), ckpt_path="auto")
            assert trainer.continues
            quiet_trainer(accumulate_grad_batches=2).fit(whole, batches(8))
            assert same_weights(resumed, whole)

    def test_sigterm_asks_for_nothing(self, scontrol, monkeypatch, tmp_path):
        said = scontrol()
        monkeypatch.setenv("SLURM_JOB_ID", "71")
        plugin = SLURMEnvironment()
        assert self.stopped(tmp_path, signal.SIGTERM, plugins=plugin, accumulate_grad_batches=2) == 143
        assert not said.exists()

    def test_without_a_checkpoint_it_is_not_queued_again(self, scontrol, monkeypatch):
        said = scontrol()
        monkeypatch.setenv("SLURM_JOB_ID", "71")
        with pytest.warns(LightlibWarning, match="there is no checkpoint from which it could resume"):
            self.stopped(None, signal.SIGUSR1, plugins=SLURMEnvironment(), accumulate_grad_batches=2)
        assert not said.exists()

    @pytest.mark.parametrize("plugins", [None, SLURMEnvironment(auto_requeue=False)], ids=["none", "off"])
    def test_it_is_opt_in(self, plugins):
        seen = []

        class Looks(Callback):
            def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
                seen.append(signal.getsignal(signal.SIGUSR1))

        quiet_trainer(plugins=plugins, callbacks=[Looks()]).fit(Net(), batches(1))
        assert seen == [signal.SIG_DFL]


def test_a_task_of_a_job_is_detected(monkeypatch):
    assert not SLURMEnvironment.detect()
    for name, value in {"SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "7"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_NODEID", "0")
    assert SLURMEnvironment.detect()
