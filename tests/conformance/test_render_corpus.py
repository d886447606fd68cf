"""Requests of every kind over five tokenizers, against the recorded answers of `vllm launch render`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.render_app import app_client, idle, load_service, settings_for
from tests.support.render_corpus import (
    DATA,
    SERVERS,
    comparable,
    corpus,
    known,
    lay_out,
    request_digest,
    without_eos,
)


@pytest.mark.parametrize("name", SERVERS)
async def test_answers_equal_the_recorded(
    name: str, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    chosen = SERVERS[name]
    model = lay_out(chosen, model_dir(chosen.tokenizer), tmp_path / "model")
    settings = settings_for(model, served_model_name=(name,), **chosen.settings)
    service = await asyncio.to_thread(load_service, settings)
    app, client = await app_client(settings, service)
    recorded = [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]
    requests = corpus(name)
    eos = service.assets.eos_token_ids
    assert [line["name"] for line in recorded] == list(requests)
    wrong = []
    for line in recorded:
        path, body = requests[line["name"]]
        assert line["request"] == request_digest(path, body), "the corpus changed: record it again"
        response = await client.post(path, json=body)
        ours = without_eos(comparable(response.status_code, response.json()), eos)
        theirs = without_eos(line["answer"], eos)
        if ours != theirs and not known(name, line["name"], ours, theirs):
            wrong.append((line["name"], ours, theirs))
    await client.aclose()
    await idle(app)
    assert not wrong, f"{len(wrong)} differ, the first: {wrong[0]}"
