"""Our answers to the requests of a corpus beside the recorded answers of `vllm launch render`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support.render_app import app_client, idle, load_service, settings_for
from tests.support.render_corpus import ALL, Json, comparable, lay_out, request_digest, without_eos

Known = Callable[[str, str, Any, Any], bool]
"""Server, request, our answer, theirs: whether they differ as is meant."""


async def differences(
    name: str,
    requests: Mapping[str, tuple[str, Json]],
    recording: str,
    tokenizer: Path,
    scratch: Path,
    known: Known,
) -> list[tuple[str, Any, Any]]:
    """Requests that we answer otherwise than recorded, with both answers. The server `name` is made of the
    `tokenizer`'s files in `scratch`."""
    chosen = ALL[name]
    model = lay_out(chosen, tokenizer, scratch)
    settings = settings_for(model, served_model_name=(name,), **chosen.settings)
    service = await asyncio.to_thread(load_service, settings)
    app, client = await app_client(settings, service)
    recorded = [json.loads(line) for line in recording.splitlines()]
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
    return wrong
