"""What members report, read from the bodies that vLLM 0.32 and our own services answer with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.core.capabilities import (
    NOTHING,
    Capabilities,
    Facts,
    from_abort_route,
    from_metrics,
    from_models,
    from_ready,
    from_server_info,
    from_transfer_params,
    from_version,
    served_names,
)

MODELS = json.dumps(
    {
        "object": "list",
        "data": [
            {"id": "lora", "root": "/loras/a", "parent": "smol", "max_model_len": None},
            {"id": "smol", "root": "/models/smollm2", "parent": None, "max_model_len": 2048},
        ],
    }
).encode()

CACHE_LINE = (
    b"# TYPE vllm:cache_config_info gauge\n"
    b'vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",kv_cache_layout="LBNHC",'
    b'odd="a\\"b}",sliding_window="None"} 1.0\n'
)


def test_models_tell_the_base_model_and_its_window() -> None:
    assert from_models(MODELS) == Facts(model="/models/smollm2", max_model_len=2048)
    assert served_names(MODELS) == {"lora", "smol"}


def test_metrics_tell_the_cache() -> None:
    page = b"x 1\n" + CACHE_LINE + b"vllm:num_requests_running 0.0\n"
    assert from_metrics(page) == Facts(block_size=16, kv_dtype="auto", kv_layout="LBNHC")
    assert from_metrics(page.replace(b'"LBNHC"', b'"None"')).kv_layout is None


def test_a_recorded_line_of_a_tokens_only_engine_is_read() -> None:
    """vLLM 0.32 on a CPU; a layout that is not resolved is written as None."""
    line = (
        b'vllm:cache_config_info{_block_size_resolved="True",block_size="128",cache_dtype="auto",'
        b'cache_hit_alignment_tokens="None",effective_attention_block_size="128",enable_prefix_caching="True",'
        b'engine="0",gpu_memory_utilization="0.92",hash_block_size="None",kv_cache_dtype_skip_layers="[]",'
        b'kv_cache_layout="None",kv_cache_memory_bytes="268435456",num_gpu_blocks="2048",'
        b'prefix_caching_hash_algo="sha256",user_specified_block_size="False"} 1.0\n'
    )
    assert from_metrics(line) == Facts(block_size=128, kv_dtype="auto")


def test_only_an_engine_without_tokenizer_has_the_old_abort_route() -> None:
    assert from_abort_route(405) == Facts(tokens_only=True, structured_outputs=False)
    assert from_abort_route(404) == NOTHING


def test_the_whole_configuration_tells_everything() -> None:
    info = {
        "vllm_config": {
            "model_config": {
                "model": "m", "revision": "abc", "max_model_len": 4096, "dtype": "torch.float32",
                "skip_tokenizer_init": True, "unknown": {"deep": [1]},
            },
            "cache_config": {"block_size": 128, "cache_dtype": "auto", "kv_cache_layout": "LBNHC"},
            "parallel_config": {"tensor_parallel_size": 2},
            "kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_producer",
                                   "kv_connector_extra_config": {"kv_lease_duration": 12}},
        },
        "vllm_env": {},
    }  # fmt: skip
    facts = from_server_info(json.dumps(info).encode())
    assert facts == Facts(
        revision="abc", max_model_len=4096, dtype="float32", tokens_only=True, structured_outputs=False,
        block_size=128, kv_dtype="auto", kv_layout="LBNHC", tensor_parallel=2, connector="NixlConnector",
        kv_role="kv_producer", lease_seconds=12.0,
    )  # fmt: skip
    info["vllm_config"]["kv_transfer_config"]["kv_connector_extra_config"] = {}  # type: ignore[index]
    assert from_server_info(json.dumps(info).encode()).lease_seconds == 30.0
    info["vllm_config"]["kv_transfer_config"] = None
    assert from_server_info(json.dumps(info).encode()).turn_seconds is None
    assert from_server_info(json.dumps(info).encode()).connector is None


@pytest.mark.parametrize(
    ("connector", "extra", "seconds"),
    [
        ("NixlConnector", {"bidirectional_kv_xfer": True}, 480.0),
        ("NixlConnector", {"bidirectional_kv_xfer": True, "decoder_kv_blocks_ttl": 60}, 60.0),
        ("NixlConnector", {"bidirectional_kv_xfer": False, "decoder_kv_blocks_ttl": 60}, None),
        ("NixlConnector", {}, None),
        ("NixlPushConnector", {"bidirectional_kv_xfer": True}, None),
    ],
)
def test_how_long_a_turn_is_kept(connector: str, extra: dict[str, Any], seconds: float | None) -> None:
    transfer = {"kv_connector": connector, "kv_connector_extra_config": extra}
    info = {"vllm_config": {"kv_transfer_config": transfer}}
    assert from_server_info(json.dumps(info).encode()).turn_seconds == seconds


@pytest.mark.parametrize(
    ("cache", "parallel", "keeps"),
    [
        ((4, "lru"), {}, True),
        ((4, "lru"), {"data_parallel_size": 2, "data_parallel_external_lb": True}, True),
        ((4, "lru"), {"data_parallel_size": 2, "data_parallel_external_lb": False}, False),
        ((4, "lru"), {"_api_process_count": 2}, False),
        ((0, "lru"), {}, False),
        ((4, "shm"), {}, False),
        (None, {}, None),
    ],
)
def test_which_engines_keep_images(
    cache: tuple[float, str] | None, parallel: dict[str, Any], keeps: bool | None
) -> None:
    media = cache and {"mm_processor_cache_gb": cache[0], "mm_processor_cache_type": cache[1]}
    config = {"model_config": {"multimodal_config": media}, "parallel_config": parallel}
    assert from_server_info(json.dumps({"vllm_config": config}).encode()).keeps_images is keeps


def test_ready_version_and_transfer_params() -> None:
    assert from_ready(b'{"status":"ready","fingerprint":"f","vocab_size":9}') == Facts(
        tokenizer="f", vocab_size=9
    )
    assert from_version(b'{"version":"0.32.0"}') == Facts(version="0.32.0")
    assert from_transfer_params({"tp_size": 2}).tensor_parallel == 2
    assert from_transfer_params({"tp_size": True}) == from_transfer_params({}) == NOTHING


@pytest.mark.parametrize("read", [from_models, from_version, from_ready, from_server_info, from_metrics])
@pytest.mark.parametrize("body", [b"", b"null", b"[1]", b'{"data":3}', b"\xff\xfe", b"[" * 100_000])
def test_what_cannot_be_read_reports_nothing(read, body: bytes) -> None:  # type: ignore[no-untyped-def]
    assert read(body) == NOTHING


def test_a_report_counts_for_more_than_a_declaration_and_says_so() -> None:
    known = Capabilities(Facts(block_size=16), Facts(block_size=32, vocab_size=9))
    assert known.known == Facts(block_size=16, vocab_size=9)
    assert known.as_json() == {
        "vocab_size": {"value": 9, "verified": False},
        "block_size": {"value": 16, "verified": True},
    }
