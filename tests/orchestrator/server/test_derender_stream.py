"""What a derender session answers moves a stream on only when it can be read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from orchestrator.core.coalescing import Output
from orchestrator.hops.errors import Garbled
from orchestrator.server.derender_stream import DerenderStream
from orchestrator.server.tracing import Span
from render_tier.protocol.session import Answer


async def test_an_answer_without_a_chunk_leaves_the_stream_where_it_is() -> None:
    exchange: Any = SimpleNamespace(
        services=SimpleNamespace(sessions=None),
        span=Span(),
        answer=SimpleNamespace(endpoint="chat", requested_model="m", request_json=msgspec.Raw(b"{}")),
    )
    nothing: Any = pytest.fail
    stream = DerenderStream(
        exchange, 0, msgspec.Raw(b"[]"), 0, on_read=nothing, on_failed=nothing, on_crash=nothing
    )
    before = repr(stream)
    answer = msgspec.json.decode(b'{"stream":1}', type=Answer)
    with pytest.raises(Garbled) as raised:
        stream._took(Output([7, 8]), answer)
    assert raised.value.retry_safe
    assert repr(stream) == before, "the output is read again from the same position"
