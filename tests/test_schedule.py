"""The order in which test files begin."""

from __future__ import annotations

import pytest

from tests.schedule import PLACES, TESTS, UNITS


@pytest.mark.parametrize("name", PLACES)
def test_a_file_that_has_a_place_exists(name: str) -> None:
    assert (TESTS / f"{name}.py").is_file()


def test_no_file_has_two_places() -> None:
    assert len(PLACES) == sum(map(len, UNITS))
