"""Scripted engines: same surface, leases and transfers as real ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.embedded.script_backend import Match, ScriptError, load_script, matches
from tests.orchestrator.embedded.engines import Client, prompt, serving

ENTRIES = [
    {"match": {"suffix": [9, 8]}, "token_ids": [10, 11, 12, 13]},
    {
        "match": {"contains": [40, 41]},
        "token_ids": [20, 21],
        "finish_reason": "repetition",
        "stop_reason": "x",
    },
    {"token_ids": [30, 31, 3, 32], "interval_ms": 1, "first_token_ms": 2},
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[tuple[Client, Client]]:
    """The model directory holds no weights."""
    directory = tmp_path_factory.mktemp("config-only")
    for name in ("config.json", "generation_config.json"):
        (directory / name).write_bytes((tiny_model / name).read_bytes())
    script = directory / "script.json"
    script.write_text(json.dumps(ENTRIES))
    with (
        serving(directory, role="prefill", script=script) as prefill,
        serving(directory, role="decode", script=script) as decode,
    ):
        yield prefill, decode
        prefill.idle()
        decode.idle()


@pytest.mark.parametrize(
    ("tokens", "sampling", "expected"),
    [
        ([5, 9, 8], {}, ([10, 11, 12, 13], "stop", None)),
        ([5, 9, 8], {"max_tokens": 2}, ([10, 11], "length", None)),
        ([5, 9, 8], {"max_tokens": 4}, ([10, 11, 12, 13], "length", None)),
        ([5, 9, 8], {"stop_token_ids": [11]}, ([10, 11], "stop", 11)),
        ([40, 41, 5], {}, ([20, 21], "repetition", "x")),
        ([5], {}, ([30, 31, 3, 32], "stop", None)),
        ([5], {"ignore_eos": False}, ([30, 31, 3], "stop", 3)),
    ],
)
def test_the_first_match_is_played_within_the_requests_limits(
    pair: tuple[Client, Client], tokens: list[int], sampling: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    choice = pair[1].generate(tokens, sampling=sampling)["choices"][0]
    assert (choice["token_ids"], choice["finish_reason"], choice["stop_reason"]) == expected


def test_transfers_move_and_check_real_bytes(pair: tuple[Client, Client]) -> None:
    prefill, decode = pair
    tokens = [*prompt(70), 9, 8]
    before = decode.running.engine.totals.kv_bytes_received
    params = prefill.prefill(tokens)
    assert decode.tokens(tokens, kv_transfer_params=params) == [10, 11, 12, 13]
    assert decode.running.engine.totals.kv_bytes_received > before
    response = decode.post(tokens, kv_transfer_params=params)
    assert response.json()["error"]["type"] == "KVTransferError"


def test_foreign_bytes_are_noticed(pair: tuple[Client, Client]) -> None:
    prefill, decode = pair
    tokens = prompt(40)
    params = prefill.prefill(tokens)
    prefill.running.engine.backend.store._data.view(np.uint8)[:] ^= 1
    response = decode.post(tokens, kv_transfer_params=params)
    assert response.status_code == 409
    assert "not that of the prompt" in response.json()["error"]["message"]


def test_logprobs_are_there_when_asked_for(pair: tuple[Client, Client]) -> None:
    choice = pair[1].generate([5, 9, 8], sampling={"logprobs": 2})["choices"][0]
    assert [entry["token_id"] for entry in choice["logprobs"]["content"]] == choice["token_ids"]


@pytest.mark.parametrize(
    ("match", "tokens", "expected"),
    [
        (Match(), [1], True),
        (Match(suffix=[2, 3]), [1, 2, 3], True),
        (Match(suffix=[2, 3]), [2, 3, 1], False),
        (Match(suffix=[1, 2]), [2], False),
        (Match(contains=[2, 3]), [1, 2, 3, 4], True),
        (Match(contains=[2, 4]), [1, 2, 3, 4], False),
        (Match(suffix=[4], contains=[1, 2]), [1, 2, 4], True),
    ],
)
def test_matching(match: Match, tokens: list[int], expected: bool) -> None:
    assert matches(match, tokens) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '[{"token_ids": []}]',
        '[{"token_ids": [300]}]',
        '[{"token_ids": [-1]}]',
        '[{"token_ids": [1], "pace": 3}]',
        '[{"token_ids": [1], "interval_ms": -1}]',
        '[{"match": {"prefix": [1]}, "token_ids": [1]}]',
    ],
)
def test_a_malformed_script_is_refused_at_start(tmp_path: Path, text: str) -> None:
    path = tmp_path / "script.json"
    path.write_text(text)
    with pytest.raises(ScriptError):
        load_script(path, 256)


def test_lines_and_an_array_are_the_same_script(tmp_path: Path) -> None:
    array, lines = tmp_path / "a.json", tmp_path / "b.jsonl"
    array.write_text(json.dumps(ENTRIES))
    lines.write_text("\n\n".join(map(json.dumps, ENTRIES)) + "\n")
    assert load_script(array, 256) == load_script(lines, 256)


def test_a_prompt_that_no_entry_matches_is_a_400(tmp_path: Path, tiny_model: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps(ENTRIES[:1]))
    with serving(tiny_model, script=script) as engine:
        response = engine.post([1, 2])
        assert response.status_code == 400
        assert "No entry of the script matches" in response.json()["error"]["message"]
        engine.idle()
