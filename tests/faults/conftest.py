"""Tests of faults run on a clock that waits for slow machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from tests.faults.clock import PatientLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"patient": PatientLoop}
