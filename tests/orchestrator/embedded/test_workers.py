"""Pieces of a computation on several threads: all are computed once, errors come back, threads end."""

from __future__ import annotations

import functools
import gc
import threading

import pytest

from orchestrator.embedded.workers import Workers
from tests.orchestrator.embedded.engines import until


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
def test_every_piece_is_computed_once(threads: int, count: int) -> None:
    workers = Workers(threads)
    for _ in range(20):
        done: list[int] = []
        workers.run([functools.partial(done.append, number) for number in range(count)])
        assert sorted(done) == list(range(count))


def test_pieces_run_side_by_side() -> None:
    meeting = threading.Barrier(3, timeout=30)
    Workers(3).run([meeting.wait] * 3)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_comes_back_and_the_workers_go_on(threads: int) -> None:
    workers = Workers(threads)
    done: list[int] = []

    def fail() -> None:
        raise ZeroDivisionError("piece")

    with pytest.raises(ZeroDivisionError, match="piece"):
        workers.run([fail, functools.partial(done.append, 1)])
    workers.run([functools.partial(done.append, number) for number in (2, 3)])
    assert {2, 3} <= set(done)


def test_threads_end_with_their_owner() -> None:
    before = set(threading.enumerate())
    workers = Workers(4)
    helpers = set(threading.enumerate()) - before
    assert len(helpers) == 3
    del workers
    gc.collect()
    until(lambda: not any(helper.is_alive() for helper in helpers))
