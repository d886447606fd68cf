"""Keeps the garbage collector off what lasts as long as the run: modules, collected tests, loaded tokenizers.

Applications collect all garbage when they start, as befits a process of their own. In a process of tests each
of them would look through every tokenizer and recording that was ever loaded, which took half of the run.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    gc.disable()  # nearly all that is made stays
    try:
        return (yield)
    finally:
        _pass_over_what_is_left()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """After each file, when its fixtures are gone."""
    result = yield
    if nextitem is None or nextitem.path != item.path:
        _pass_over_what_is_left()
    return result


def pytest_sessionfinish() -> None:
    """pytest's own last collection, which finds what was never closed, sees everything."""
    gc.unfreeze()


def _pass_over_what_is_left() -> None:
    gc.collect()
    gc.freeze()
