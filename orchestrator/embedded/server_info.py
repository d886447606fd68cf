"""What an engine is, in the shape of vLLM's ``/server_info?config_format=json``; only what exists here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.embedded.engine import Engine
from orchestrator.embedded.requests import EngineLimits, Role

CONNECTOR: Final = "EmbeddedConnector"

KV_ROLES: Final[Mapping[Role, str]] = {
    "prefill": "kv_producer",
    "decode": "kv_consumer",
    "both": "kv_both",
}


def server_info(engine: Engine, limits: EngineLimits, root: str) -> dict[str, Any]:
    """``root`` is the model's directory."""
    backend, settings = engine.backend, engine.settings
    return {
        "vllm_config": {
            "model_config": {
                "model": root,
                "revision": backend.fingerprint,
                "max_model_len": limits.max_model_len,
                "dtype": "float32",
                "skip_tokenizer_init": True,
                "vocab_size": limits.vocab_size,
            },
            "cache_config": {
                "block_size": settings.block_size,
                "cache_dtype": "float32",
                "kv_cache_layout": backend.store.layout.describe(),
            },
            "parallel_config": {"tensor_parallel_size": 1},
            "kv_transfer_config": {
                "kv_connector": CONNECTOR,
                "kv_role": KV_ROLES[limits.role],
                "kv_connector_extra_config": {"kv_lease_duration": settings.lease_seconds},
            },
        }
    }
