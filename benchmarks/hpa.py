"""Kubernetes' HorizontalPodAutoscaler as published, for one metric with a target average value: no clock.

From https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/: the desired number is the
metric over the target for one replica, rounded up, unless the ratio to the present number is within the
tolerance. Scaling down takes the highest, scaling up the lowest recommendation of its stabilisation window.
Scaling up is bounded in a period by a number or a share of the replicas at its beginning, whichever allows
more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Behaviour:
    """Defaults are Kubernetes'. Seconds."""

    least: int
    most: int
    tolerance: float = 0.1
    up_window: float = 0.0
    down_window: float = 300.0
    up_replicas: int = 4
    up_share: float = 1.0
    up_period: float = 15.0


class Autoscaler:
    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._recommended: list[tuple[float, int]] = []
        self._added: list[tuple[float, int]] = []

    def desired(self, now: float, present: int, metric: float, target: float) -> int:
        """``present``: replicas. ``metric``: of all together. ``target``: of one."""
        behaviour = self._behaviour
        ratio = metric / (target * present) if present else math.inf
        within = abs(ratio - 1) <= behaviour.tolerance
        recommended = present if within else math.ceil(metric / target)
        self._recommended.append((now, recommended))
        longest = max(behaviour.up_window, behaviour.down_window)
        self._recommended = [(at, count) for at, count in self._recommended if at >= now - longest]
        result = self._stable(now, present, recommended)
        if result > present:
            result = min(result, self._most_now(now, present))
        result = max(behaviour.least, min(behaviour.most, result))
        if result > present:
            self._added.append((now, result - present))
        return result

    def _stable(self, now: float, present: int, recommended: int) -> int:
        behaviour = self._behaviour
        lowest = min(count for at, count in self._recommended if at >= now - behaviour.up_window)
        highest = max(count for at, count in self._recommended if at >= now - behaviour.down_window)
        if recommended > present:
            return max(present, lowest)
        return min(present, highest)

    def _most_now(self, now: float, present: int) -> int:
        behaviour = self._behaviour
        self._added = [(at, count) for at, count in self._added if at > now - behaviour.up_period]
        start = present - sum(count for _, count in self._added)
        return max(start + behaviour.up_replicas, math.ceil(start * (1 + behaviour.up_share)))
