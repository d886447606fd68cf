"""API keys for tests, the same in every run."""

from __future__ import annotations

import hashlib
from typing import Any

from orchestrator.core.keys import RANDOM_BYTES, new_key


def api_key(name: str, **limits: Any) -> tuple[str, dict[str, Any]]:
    """The key, and the entry of ``auth.keys`` for it."""
    key, stored = new_key(hashlib.shake_256(name.encode()).digest(RANDOM_BYTES))
    return key, {"name": name, "hash": stored.line(), **limits}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
