"""The log of an attempt: lines and ranks, full files, full disks, log policies, and reading."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import threading
import time

import pytest

from lightlib.experiment.file.log_policies import DEFAULTS, LogPolicy
from lightlib.experiment.work import logs
from lightlib.experiment.work.logs import Line, LogFile, as_text, read
from tests.processes.programs import HANGS_AFTER

NAN = LogPolicy(name="NaN", pattern=r"loss is (nan|inf)")
TIME = "2026-11-28T03:10:00.123Z"


class Trial:
    """A log and the end of the pipe into which a trial prints."""

    def __init__(self, folder, policies=(), **options):
        self.folder = folder
        end, self._begin = os.pipe()
        self.log = LogFile(end, folder / "log.txt", policies, **options)
        self.log.start()

    def prints(self, *texts):
        for text in texts:
            os.write(self._begin, text if isinstance(text, bytes) else text.encode())
        return self

    def ends(self):
        os.close(self._begin)
        self.log.join(HANGS_AFTER)
        assert not self.log.is_alive()
        return self.log

    def lines(self):
        return [(line.rank, line.text) for line in read(self.folder)]


def until(condition):
    limit = time.monotonic() + HANGS_AFTER
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.005)


def write(folder, *texts, name="log.txt"):
    (folder / name).write_bytes(b"".join(f"{TIME} 0 {text}\n".encode() for text in texts))


class TestLines:
    @pytest.mark.parametrize(
        ("printed", "expected"),
        [
            ("a\nb\n\nc\n", [(0, "a"), (0, "b"), (0, ""), (0, "c")]),
            ("no end", [(0, "no end")]),
            ("[rank 1] a\nb\n[rank 12] c\n[rank 1] \n", [(1, "a"), (0, "b"), (12, "c"), (1, "")]),
            ("see [rank 1] a\n", [(0, "see [rank 1] a")]),
            ("[rank 1] [rank 2] a\n", [(1, "[rank 2] a")]),
            ("\r 1%\r50%\r100%\nafter\n", [(0, "100%"), (0, "after")]),
            ("\r10%\r20%", [(0, "20%")]),
            ("[rank 1] \r[rank 1] 7%\n", [(1, "7%")]),
            ("[rank0]: ValueError\n", [(0, "ValueError")]),  # torch's tag of tracebacks
            ("\x1b[1mbold\x1b[0m\ttab\x0b\x85\u2028\n", [(0, "\x1b[1mbold\x1b[0m\ttab\x0b\x85\u2028")]),
            (b"\xff\x00\xfe\n", [(0, "\ufffd\x00\ufffd")]),
        ],
    )
    def test_are_written_in_order_with_their_rank(self, printed, expected, tmp_path):
        trial = Trial(tmp_path).prints(printed)
        assert trial.ends().lost == 0
        assert trial.lines() == expected

    def test_are_time_rank_and_text(self, tmp_path):
        Trial(tmp_path).prints("[rank 3] loss=0.3\n").ends()
        text = (tmp_path / "log.txt").read_text()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z 3 loss=0\.3\n", text)

    def test_come_from_a_connection_as_well(self, tmp_path):
        here, there = multiprocessing.Pipe(duplex=False)
        log = LogFile(here, tmp_path / "log.txt")
        log.start()
        os.write(there.fileno(), b"a\n")
        there.close()
        log.join(HANGS_AFTER)
        assert here.closed
        assert [line.text for line in read(tmp_path)] == ["a"]

    def test_one_without_an_end_is_written_after_a_while(self, tmp_path, monkeypatch):
        monkeypatch.setattr(logs, "_SETTLED", 0.02)
        trial = Trial(tmp_path).prints("waits")
        until(lambda: trial.lines() == [(0, "waits")])
        trial.prints(" on\n").ends()
        assert trial.lines() == [(0, "waits"), (0, " on")]

    def test_one_that_never_ends_is_cut(self, tmp_path, monkeypatch):
        monkeypatch.setattr(LogFile, "longest", 1000)
        trial = Trial(tmp_path)
        for _ in range(30):
            trial.prints(b"\xff" * 4000)
        trial.ends()
        texts = [text for _, text in trial.lines()]
        assert len(texts) > 1
        assert "".join(texts) == "\ufffd" * 120_000

    def test_the_tail_is_the_last_200(self, tmp_path):
        trial = Trial(tmp_path)
        assert trial.log.tail() == []
        trial.prints(*(f"[rank 1] {number}\n" for number in range(300)))
        assert trial.ends().tail() == [f"[rank 1] {number}" for number in range(100, 300)]


class TestFiles:
    def test_a_full_one_is_renamed(self, tmp_path):
        trial = Trial(tmp_path, limit=300)
        for number in range(40):
            trial.prints(f"{number}\n")
            until(lambda number=number: trial.log.tail()[-1:] == [str(number)])
        assert trial.ends().lost == 0
        files = [tmp_path / "log.txt", *(tmp_path / f"log.{number}.txt" for number in range(1, 4))]
        assert sorted(tmp_path.iterdir()) == sorted(files)
        assert all(250 < file.stat().st_size <= 300 for file in files[1:])
        assert (tmp_path / "log.1.txt").read_text().splitlines()[0].endswith(" 0 0")
        assert trial.lines() == [(0, str(number)) for number in range(40)]

    def test_there_may_be_more_than_nine(self, tmp_path):
        for number in range(12):
            trial = Trial(tmp_path, limit=1).prints(f"{number}\n")
            trial.ends()
        assert trial.lines() == [(0, str(number)) for number in range(12)]
        assert (tmp_path / "log.11.txt").exists()

    def test_one_that_cannot_be_renamed_becomes_too_large(self, tmp_path, monkeypatch):
        def refused(self, target):
            raise PermissionError(errno.EACCES, "refused")

        monkeypatch.setattr(logs.Path, "rename", refused)
        for number in range(3):
            trial = Trial(tmp_path, limit=1).prints(f"{number}\n")
            assert trial.ends().lost == 0
        assert trial.lines() == [(0, "0"), (0, "1"), (0, "2")]

    def test_one_with_a_torn_line_is_continued(self, tmp_path):
        (tmp_path / "log.txt").write_text(f"{TIME} 0 a\n{TIME} 0 kill")
        trial = Trial(tmp_path).prints("b\n")
        trial.ends()
        assert trial.lines() == [(0, "a"), (0, "kill"), (0, "b")]


class Disk:
    """Files that take so many bytes more, and then refuse the rest."""

    def __init__(self, monkeypatch, room):
        self.room, self._opened = room, logs._opened
        monkeypatch.setattr(logs, "_opened", self.opened)

    def opened(self, path):
        file, size = self._opened(path)
        return FileOn(self, file), size


class FileOn:
    def __init__(self, disk, file):
        self._disk, self._file, self.close = disk, file, file.close

    def write(self, data):
        if self._disk.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = self._file.write(data[: self._disk.room])
        self._disk.room -= count
        return count


class TestFullDisk:
    def test_the_trial_continues_and_lost_lines_are_counted(self, tmp_path, monkeypatch):
        disk = Disk(monkeypatch, room=0)
        trial = Trial(tmp_path, [NAN])
        for _ in range(50):
            trial.prints(b"x" * 4095 + b"\n")  # more than a pipe has room for
        trial.prints("loss is nan\n")
        until(lambda: trial.log.lost == 51)
        assert trial.log.matched() == [NAN]
        assert trial.log.tail()[-1] == "loss is nan"
        disk.room = 1000
        trial.prints("there is room again\n").ends()
        assert trial.lines() == [(0, "there is room again")]
        assert trial.log.lost == 51

    def test_a_line_that_is_written_in_part_is_ended_later(self, tmp_path, monkeypatch):
        disk = Disk(monkeypatch, room=len(f"{TIME} 0 a\n{TIME} 0 bbb"))
        trial = Trial(tmp_path).prints("a\nbbbbbb\nc\n")
        until(lambda: trial.log.lost == 2)
        disk.room = 1000
        trial.prints("d\n").ends()
        assert trial.lines() == [(0, "a"), (0, "bbb"), (0, "d")]

    def test_so_does_it_without_the_folder(self, tmp_path):
        trial = Trial(tmp_path / "missing").prints("a\nb\n")
        assert trial.ends().lost == 2
        assert trial.log.tail() == ["a", "b"]


class TestPolicies:
    def test_each_once_in_the_order_of_their_first_match(self, tmp_path):
        policies = (LogPolicy(name="never", pattern="never"), *DEFAULTS, NAN, LogPolicy(name="off", pattern=None))
        trial = Trial(tmp_path, policies)
        trial.prints("loss is fine\n")
        until(trial.log.tail)
        assert trial.log.matched() == []
        trial.prints("epoch 3: loss is nan\n")
        until(lambda: trial.log.matched() == [NAN])
        trial.prints("loss is inf\nRuntimeError: CUDA out of memory. Tried\nloss is nan\n")
        assert trial.ends().matched() == [NAN, DEFAULTS[0]]

    @pytest.mark.parametrize(
        ("pattern", "printed", "found"),
        [
            ("^loss", "[rank 1] loss\n", True),  # the tag is no part of the line
            ("^loss", "a loss\n", False),
            ("a.*b", "a\nb\n", False),
            ("loss$", "loss\nx\n", True),
            (".*?loss", "a loss\n", True),
            (".*.*loss", "a loss\n", True),
            (".*", "a\n", True),
            ("50%", "\r50%\r100%\n", False),
            ("done", "not done yet", True),
            (r"\.\*", "a.*b\n", True),
            ("x|.*y", "y\n", True),
        ],
    )
    def test_are_searched_in_each_line(self, pattern, printed, found, tmp_path):
        policy = LogPolicy(name="policy", pattern=pattern)
        assert Trial(tmp_path, [policy]).prints(printed).ends().matched() == [policy] * found

    def test_a_long_line_does_not_take_the_square_of_its_length(self, tmp_path):
        trial = Trial(tmp_path, DEFAULTS)
        for _ in range(200):
            trial.prints(b"x" * 4096)
        assert trial.prints("\n").ends().matched() == []


class TestReading:
    def test_an_attempt_without_a_log(self, tmp_path):
        assert list(read(tmp_path)) == []

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (f"{TIME} 1 a".encode(), [Line(TIME, 1, "a")]),
            (f"{TIME} 1 a\n2026-11".encode(), [Line(TIME, 1, "a"), Line("", 0, "2026-11")]),
            (f"garbage\n{TIME} 2 b\n".encode(), [Line("", 0, "garbage"), Line(TIME, 2, "b")]),
            (b"\xff\n", [Line("", 0, "\ufffd")]),
            (f"{TIME} 0 \n".encode(), [Line(TIME, 0, "")]),
            (f"{TIME} 0 a\rb\x0b\u2028c\n".encode(), [Line(TIME, 0, "a\rb\x0b\u2028c")]),
        ],
    )
    def test_a_damaged_line_is_as_it_is(self, content, expected, tmp_path):
        (tmp_path / "log.txt").write_bytes(content)
        assert list(read(tmp_path)) == expected

    def test_lines_longer_than_a_chunk(self, tmp_path, monkeypatch):
        monkeypatch.setattr(logs, "_CHUNK", 7)
        write(tmp_path, "a" * 50, "b")
        assert [line.text for line in read(tmp_path)] == ["a" * 50, "b"]

    def test_the_oldest_files_may_have_been_removed(self, tmp_path):
        for number in (4, 5):
            write(tmp_path, str(number), name=f"log.{number}.txt")
        write(tmp_path, "last")
        assert [line.text for line in read(tmp_path)] == ["4", "5", "last"]

    @pytest.mark.parametrize("moment", ["before it", "after it"])
    def test_a_file_that_is_renamed_when_it_is_opened(self, moment, tmp_path, monkeypatch):
        path, opened, renamed = tmp_path / "log.txt", logs.Path.open, []
        write(tmp_path, "a")

        def slow(self, *arguments):
            file = opened(self, *arguments) if self != path or moment == "after it" else None
            if self == path and not renamed:
                renamed.append(path.rename(tmp_path / "log.1.txt"))
                with opened(path, "wb") as new:
                    new.write(f"{TIME} 0 b\n".encode())
            return file or opened(self, *arguments)

        monkeypatch.setattr(logs.Path, "open", slow)
        answers = iter([True, False])
        assert [line.text for line in read(tmp_path, lambda: next(answers))] == ["a", "b"]
        assert renamed

    def test_follows_until_the_attempt_has_ended(self, tmp_path, monkeypatch):
        monkeypatch.setattr(logs, "_POLL", 0.001)
        found, running = [], True

        def follow():
            found.extend(read(tmp_path, lambda: running))

        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        trial = Trial(tmp_path, limit=400)
        for number in range(60):  # over several files
            trial.prints(f"{number}\n")
            until(lambda number=number: [line.text for line in found][-1:] == [str(number)])
        trial.prints("the last").ends()
        running = False
        reader.join(HANGS_AFTER)
        assert [line.text for line in found] == [*map(str, range(60)), "the last"]
        assert (tmp_path / "log.4.txt").exists()

    def test_all_that_was_written_before_the_end_is_yielded(self, tmp_path):
        def ends():
            write(tmp_path, "a", "b")
            return False

        assert [line.text for line in read(tmp_path, ends)] == ["a", "b"]


class TestText:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("loss\t0.3 ü€ 👍", "loss\t0.3 ü€ 👍"),
            ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
            ("a\rb\x00\x7f\x9b2J", r"a\rb\x00\x7f\x9b2J"),
            ("\u202ereversed\u2066", r"\u202ereversed\u2066"),
            (r"\x1b", r"\x1b"),
        ],
    )
    def test_control_characters_are_escaped(self, text, shown):
        assert as_text(Line(TIME, 2, text)) == f"{TIME} 2 {shown}"
        assert as_text(Line("", 0, text)) == shown

    def test_in_colour(self):
        text = as_text(Line(TIME, 2, "a\x1b[2J"), colour=True)
        assert text == f"\x1b[2m{TIME}\x1b[0m \x1b[36m2\x1b[0m a\\x1b[2J"
