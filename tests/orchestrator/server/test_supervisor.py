"""A background task that crashes is noticed, by the tests too."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from tests.orchestrator.conftest import Launch


async def test_a_stack_whose_task_crashed_has_not_settled(launch: Launch) -> None:
    told: list[Exception] = []

    async def crash() -> None:
        raise RecursionError

    with capture_logs() as logs:  # a traceback for people looks at files, which would block
        async with launch() as stack:
            stack.services.supervisor.spawn(crash(), "crash", told.append)
            with pytest.raises(AssertionError, match="task crashed"):
                await stack.settled()
            await stack.settled(crashes=1)
            assert [type(error) for error in told] == [RecursionError]
    assert [log["task"] for log in logs if log["event"] == "task crashed"] == ["crash"]
