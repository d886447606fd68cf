"""What render says of a request reaches its client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.orchestrator.conftest import Launch
from tests.orchestrator.faults import CHAT

SAID = ["messages[0].content[1].image_url.detail: 'low' has no effect", "of 2\u00d72\r\nX-Other: pixels"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_warnings_are_a_header_of_the_answer(launch: Launch, stream: bool) -> None:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": stream}
    async with launch() as stack:
        plain = await stack.http.post(CHAT, json=body)
        assert "x-pd-warnings" not in plain.headers
        stack.render.warnings = SAID
        answer = await stack.http.post(CHAT, json=body)
        assert answer.status_code == 200
        assert json.loads(answer.headers["x-pd-warnings"]) == SAID
        assert "x-other" not in answer.headers
        await stack.settled()
