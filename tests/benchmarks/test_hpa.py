"""The autoscaler of benchmarks/autoscale.py decides as Kubernetes documents it."""

from __future__ import annotations

import pytest

from benchmarks.hpa import Autoscaler, Behaviour


@pytest.mark.parametrize(
    ("present", "metric", "wanted"),
    [(2, 100, 2), (2, 109, 2), (2, 111, 3), (2, 400, 6), (4, 184, 4), (1, 1000, 5)],
    ids=["exact", "within the tolerance", "above it", "bounded by the share", "a little less", "by four"],
)
def test_one_decision(present: int, metric: float, wanted: int) -> None:
    scaler = Autoscaler(Behaviour(1, 100))
    assert scaler.desired(0, present, metric, 50) == wanted


def test_scaling_down_waits_for_the_window() -> None:
    scaler = Autoscaler(Behaviour(1, 10, down_window=60))
    assert scaler.desired(0, 4, 200, 50) == 4
    assert scaler.desired(30, 4, 50, 50) == 4
    assert scaler.desired(59, 4, 50, 50) == 4
    assert scaler.desired(61, 4, 50, 50) == 1


def test_a_short_dip_changes_nothing() -> None:
    scaler = Autoscaler(Behaviour(1, 10, down_window=60))
    for now, metric in enumerate([200, 200, 10, 200, 10, 200]):
        assert scaler.desired(now * 15, 4, metric, 50) == 4


def test_scaling_up_is_bounded_within_a_period() -> None:
    scaler = Autoscaler(Behaviour(1, 100, up_period=15))
    assert scaler.desired(0, 2, 5000, 50) == 6
    assert scaler.desired(5, 6, 5000, 50) == 6
    assert scaler.desired(16, 6, 5000, 50) == 12


def test_scaling_up_with_a_window_takes_the_lowest() -> None:
    scaler = Autoscaler(Behaviour(1, 10, up_window=30))
    assert scaler.desired(0, 1, 50, 50) == 1
    assert scaler.desired(15, 1, 200, 50) == 1
    assert scaler.desired(46, 1, 200, 50) == 4


def test_bounds_hold() -> None:
    scaler = Autoscaler(Behaviour(2, 3, down_window=0))
    assert scaler.desired(0, 3, 1, 50) == 2
    assert scaler.desired(1, 2, 1000, 50) == 3
