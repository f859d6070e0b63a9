"""BackgroundWriter: ordered jobs, one copy at a time, and errors that reach the caller."""

from __future__ import annotations

import threading

import pytest
import torch

from lightlib.checkpoint.background import BackgroundWriter
from lightlib.errors import CheckpointWriteError


def fail(error):
    raise error


def test_jobs_are_done_in_order_in_one_other_thread():
    writer, done = BackgroundWriter(), []
    for number in range(50):
        writer.submit(lambda number=number: done.append((number, threading.current_thread().name)))
    writer.wait()
    assert done == [(number, "lightlib-checkpoints") for number in range(50)]
    assert not writer.busy
    assert "lightlib-checkpoints" not in {thread.name for thread in threading.enumerate()}


def test_what_comes_after_a_job_is_called_by_who_looks():
    writer, called = BackgroundWriter(), []
    writer.submit(lambda: None, then=lambda: called.append(threading.current_thread()))
    writer.join()
    assert called == []
    assert writer.look() is None
    assert called == [threading.current_thread()]
    writer.wait()
    assert len(called) == 1


def test_an_error_drops_what_is_behind_it_and_is_raised_once():
    writer, done = BackgroundWriter(), []
    held = threading.Event()
    error = CheckpointWriteError("disk full")
    writer.submit(held.wait)
    writer.submit(lambda: fail(error), then=lambda: done.append("said"))
    writer.submit(lambda: done.append("behind"))
    held.set()
    writer.join()
    writer.submit(lambda: done.append("also behind"))
    assert writer.failed is error
    with pytest.raises(CheckpointWriteError, match="disk full"):
        writer.wait()
    writer.submit(lambda: done.append("after"))
    writer.wait()
    assert done == ["after"]


def test_other_errors_are_explained():
    writer = BackgroundWriter()
    writer.submit(lambda: fail(ValueError("odd")))
    with pytest.raises(CheckpointWriteError, match=r"in the background: ValueError: odd\n.*Expected") as caught:
        writer.wait()
    assert isinstance(caught.value.__cause__, ValueError)


def test_the_end_of_the_process_is_no_error_of_writing():
    writer = BackgroundWriter()
    writer.submit(lambda: fail(SystemExit(3)))
    with pytest.raises(SystemExit):
        writer.wait()


def test_a_save_copies_and_waits_for_the_one_before():
    writer, written, order = BackgroundWriter(), [], []
    held = threading.Event()
    weight = torch.ones(3)

    def slowly(content):
        held.wait()
        written.append(content["weight"].tolist())
        order.append("first")

    writer.save({"weight": weight}, slowly)
    weight.zero_()
    assert writer.busy
    second = threading.Thread(
        target=lambda: writer.save({"weight": weight}, lambda content: order.append(content["weight"].tolist()))
    )
    second.start()
    second.join(0.1)
    assert second.is_alive()  # the only copy is still being written
    held.set()
    second.join()
    writer.wait()
    assert written == [[1.0, 1.0, 1.0]]
    assert order == ["first", [0.0, 0.0, 0.0]]


def test_a_save_after_a_failure_is_dropped_until_the_failure_is_taken():
    writer, written = BackgroundWriter(), []
    writer.submit(lambda: fail(CheckpointWriteError("disk full")))
    writer.save({}, written.append)
    assert written == []
    assert str(writer.look()) == "disk full"
    assert writer.look() is None
    writer.save({}, written.append)
    writer.wait()
    assert written == [{}]
