"""How a real vLLM is run on a small machine without a GPU, alone or as one side of a pair over NIXL.

The environment is the one that `scripts/vllm_env.sh` makes. On GPUs none of this is needed: docs/engines.md.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

PAIR_OPTIONS = (
    "--tokens-only",
    "--dtype", "float32",  # bfloat16 on a CPU is not stable bit for bit, even against itself
    "--max-model-len", "2048",
    "--max-num-seqs", "8",
    "--enforce-eager",
    "--kv-cache-memory-bytes", "268435456",
)  # fmt: skip
"""Those of the two engines of a pair."""

KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


def transfer_config(role: str, **members: Any) -> str:
    """``--kv-transfer-config`` of the "prefill" or "decode" engine; blocks move between CPU memories."""
    fixed = {"kv_connector": "NixlConnector", "kv_role": KV_ROLES[role], "kv_buffer_device": "cpu"}
    return json.dumps(fixed | members)


def variables(environment: Path, scratch: Path, threads: int = 2) -> dict[str, str]:
    """Variables for vLLM's processes: so many threads, no network, files under ``scratch`` (made here)."""
    scratch.mkdir(parents=True, exist_ok=True)
    return {
        "PATH": f"{environment / 'bin'}:{os.environ.get('PATH', '')}",
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        # To look at a model class takes vLLM ten seconds of a core: what it finds is kept for the next start.
        "VLLM_CACHE_ROOT": str(environment / "cache"),
        "TMPDIR": str(scratch),
    }


def side_channel(port: int) -> dict[str, str]:
    """Variables of an engine with NIXL: where its peers ask for its metadata."""
    return {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port),
        # The first logprobs would compile a kernel: a minute on a busy machine, in which the engine stands.
        "TORCHDYNAMO_DISABLE": "1",
    }
