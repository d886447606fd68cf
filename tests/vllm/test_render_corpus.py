"""The recorded answers of the render corpus are what a live `vllm launch render` gives.

That ours equal the recorded ones is `tests/conformance/test_render_corpus.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.render_corpus import DATA, SERVERS
from tests.vllm.record_render import answers, server


@pytest.mark.parametrize("name", SERVERS)
def test_vllm_answers_as_recorded(name: str, tmp_path: Path) -> None:
    recorded = [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]
    with server(name, tmp_path) as process:
        for live, before in zip(answers(name, process.url), recorded, strict=True):
            assert live == before
