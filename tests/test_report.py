"""Messages and warnings: on rank zero, once, filtered and redirected."""

from __future__ import annotations

import linecache
import logging
import sys
import threading
import warnings

import pytest

from lightlib import report
from lightlib.core.trainer import Trainer
from lightlib.report import LightlibWarning, PossibleUserWarning, info, rank_zero_only, warn
from tests.processes import programs


@pytest.fixture
def rank(monkeypatch):
    return lambda number: monkeypatch.setattr(rank_zero_only, "rank", number)


def python(code, **environment):
    """Run code in a new interpreter; return its stdout and stderr."""
    done = programs.interpreter("-c", code, env={"PYTHONPATH": ":".join(sys.path), **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


class TestOnce:
    def test_a_key_is_used_once_whatever_the_text(self, caplog):
        once = report.Once()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for key, loss in (("nan", "nan"), ("nan", "inf"), ("inf", "inf")):
                once.warn(key, f"The loss is {loss}.", PossibleUserWarning)
        assert [str(warning.message) for warning in caught] == ["The loss is nan.", "The loss is inf."]
        assert {warning.category for warning in caught} == {PossibleUserWarning}
        with caplog.at_level(logging.INFO, logger="lightlib"):
            for message in ("one", "one", "two"):
                once.info(message)
            once.info("three", key="one")
        assert caplog.messages == ["one", "two"]

    def test_each_object_and_the_process_have_their_own_keys(self, caplog):
        report.once.clear()
        with caplog.at_level(logging.INFO, logger="lightlib"):
            for log in (report.Once().info, report.Once().info, report.info_once, report.info_once):
                log("hello")
            report.once.clear()
            report.info_once("hello")
        assert caplog.messages == ["hello"] * 4


class TestInfo:
    def test_goes_through_the_logger_of_the_package(self, caplog):
        with caplog.at_level(logging.INFO, logger="lightlib"):
            info("training begins")
        assert [(record.name, record.message) for record in caplog.records] == [("lightlib", "training begins")]

    def test_only_rank_zero_speaks(self, caplog, rank):
        rank(1)
        with caplog.at_level(logging.INFO, logger="lightlib"):
            info("training begins")
        assert not caplog.records

    @pytest.mark.processes
    def test_a_plain_program_sees_it_on_stderr(self):
        assert python("from lightlib import report; report.info('hello')") == ("", "hello\n")

    @pytest.mark.processes
    def test_stderr_is_looked_up_at_every_message(self):
        code = (
            "import io, sys; from lightlib import report; sys.stderr = other = io.StringIO(); "
            "report.info('hello'); print(repr(other.getvalue()))"
        )
        assert python(code) == ("'hello\\n'\n", "")

    @pytest.mark.processes
    def test_a_program_that_configured_logging_is_obeyed(self):
        code = (
            "import logging, sys; "
            "logging.basicConfig(level='INFO', stream=sys.stdout, format='%(name)s: %(message)s'); "
            "from lightlib import report; report.info('hello')"
        )
        assert python(code) == ("lightlib: hello\n", "")

    @pytest.mark.processes
    def test_can_be_silenced(self):
        silence = "import logging; logging.getLogger('lightlib').setLevel('ERROR')"
        use = "from lightlib import report"
        for lines in ((silence, use), (use, silence)):
            assert python("\n".join([*lines, "report.info('x')"])) == ("", "")


class TestWarn:
    def test_category_and_text(self):
        with pytest.warns(PossibleUserWarning, match="^odd$"):
            warn("odd", PossibleUserWarning)
        with pytest.warns(LightlibWarning, match="^odd$"):
            warn("odd")

    def test_all_are_user_warnings_of_one_family(self):
        assert issubclass(PossibleUserWarning, LightlibWarning)
        assert issubclass(LightlibWarning, UserWarning)

    def test_only_rank_zero_speaks(self, rank):
        rank(2)
        warn("odd")  # an error when it warned: pytest.ini_options

    def test_points_at_the_line_of_the_user_however_deep_below_it_the_cause_was_found(self):
        with pytest.warns(LightlibWarning) as caught:
            Trainer(accelerator="cpu", logger=False, max_epochs=1, gradient_clip_algorithm="norm")  # here
        assert caught[0].filename == __file__
        assert linecache.getline(__file__, caught[0].lineno).endswith("# here\n")

    def test_shows_no_line_where_there_is_none_of_the_user(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            thread = threading.Thread(target=warn, args=("odd",))
            thread.start()
            thread.join()
        (one,) = caught
        text = warnings.formatwarning(one.message, one.category, one.filename, one.lineno)
        assert text == "lightlib:0: LightlibWarning: odd\n"

    def test_shown_once(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(3):
                warn("odd")
        assert len(caught) == 1

    def test_a_family_can_be_filtered(self):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=PossibleUserWarning)
            warn("odd", PossibleUserWarning)


@pytest.mark.processes
@pytest.mark.parametrize(("switch", "shown"), [("off", False), ("0", False), ("on", True)])
def test_possible_mistakes_can_be_switched_off(switch, shown):
    code = "from lightlib.report import PossibleUserWarning, warn; warn('odd', PossibleUserWarning); warn('wrong')"
    _, err = python(code, POSSIBLE_USER_WARNINGS=switch)
    assert ("odd" in err, "wrong" in err) == (shown, True)


class TestRankZeroOnly:
    def test_runs_on_rank_zero_alone(self, rank):
        @rank_zero_only
        def double(x):
            """Twice."""
            return 2 * x

        assert double(3) == 6
        assert (double.__name__, double.__doc__) == ("double", "Twice.")
        rank(1)
        assert double(3) is None

    @pytest.mark.parametrize(
        ("variables", "rank"),
        [
            ({}, 0),
            ({"RANK": "3"}, 3),
            ({"RANK": "3", "LOCAL_RANK": "1"}, 3),
            ({"LOCAL_RANK": "1"}, 1),
            ({"SLURM_PROCID": "5"}, 5),
            ({"RANK": "nonsense", "SLURM_PROCID": "5"}, 5),
        ],
    )
    def test_the_rank_is_known_from_the_environment(self, monkeypatch, variables, rank):
        for name in report._RANK_VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert report._rank_from_environment() == rank


class TestTheRankOfLightningUtilities:
    @pytest.fixture
    def theirs(self, monkeypatch):
        rank_zero = pytest.importorskip("lightning_utilities.core.rank_zero")
        monkeypatch.setattr(rank_zero.rank_zero_only, "rank", None, raising=False)
        return rank_zero.rank_zero_only

    def test_is_set_before_any_run(self, theirs):
        called = theirs(lambda: "called")
        with pytest.raises(RuntimeError, match="needs to be set before use"):
            called()
        report.share_rank()
        assert called() == "called"

    def test_is_left_as_it_is_when_it_is_set(self, theirs):
        theirs.rank = 3
        report.share_rank()
        assert theirs.rank == 3

    def test_follows_that_of_a_run(self, theirs, rank):
        rank(2)
        assert theirs.rank == 2
        assert theirs(lambda: "called")() is None

    def test_is_no_error_without_the_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "lightning_utilities", None)
        monkeypatch.setitem(sys.modules, "lightning_utilities.core", None)
        report.share_rank()

    @pytest.mark.processes
    def test_a_program_that_uses_it_after_importing_lightlib_runs(self):
        code = (
            "from lightlib import LightningModule\n"
            "from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_only\n"
            "rank_zero_info('x')\n"
            "print(rank_zero_only.rank)\n"
        )
        assert python(code, RANK="1")[0] == "1\n"


@pytest.mark.processes
def test_the_handler_of_messages_suits_python_3_10(monkeypatch):
    monkeypatch.delattr(logging.StreamHandler, "__class_getitem__", raising=False)
    code = "import logging; del logging.StreamHandler.__class_getitem__; import lightlib.report"
    if sys.version_info < (3, 11):
        code = "import lightlib.report"
    done = programs.interpreter("-c", code)
    assert done.returncode == 0, done.stderr
