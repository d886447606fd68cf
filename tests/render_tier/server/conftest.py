"""The endpoints of a loaded model, called without a server around them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from render_tier.protocol.errors import ApiError
from render_tier.server.endpoints import build_endpoints
from render_tier.server.metrics import build_metrics
from render_tier.server.service import Service
from render_tier.settings import Settings


@pytest.fixture(scope="module")
def answer(qwen3_settings: Settings, qwen3_service: Service) -> Callable[[str, Any], Any]:
    """What one endpoint says to a body, which is JSON as Python writes it: NaN, and surrogates as escapes."""
    endpoints = build_endpoints(qwen3_settings, build_metrics())

    def call(path: str, value: Any) -> Any:
        """The decoded reply, or the ApiError."""
        try:
            return msgspec.json.decode(
                endpoints[path].handle(qwen3_service, json.dumps(value).encode(), None).body
            )
        except ApiError as error:
            refused = error
        assert 400 <= refused.status < 500, refused
        assert msgspec.json.decode(refused.encode())["error"]["code"] == refused.status
        return refused

    return call
