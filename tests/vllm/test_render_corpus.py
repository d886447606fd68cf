"""The recorded answers of the render corpora are what a live `vllm launch render` gives.

That ours equal the recorded ones is `tests/conformance/test_render_corpus.py`, `test_messages_corpus.py` and
`test_responses_corpus.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from tests.support.forked_vllm import forking
from tests.support.render_corpus import ALL
from tests.vllm.record_render import CORPORA, DATA, MODELS_OF, answers, server

LOWERED = {"messages", "responses"}
"""They become chat requests before a tokenizer or template sees them, so two models are asked again live."""
ASKED_LOWERED = {"qwen3", "gptoss"}


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Popen[str]]:
    with forking(tmp_path_factory.mktemp("forks")) as process:
        yield process


@pytest.mark.parametrize("name", ALL)
def test_vllm_answers_as_recorded(name: str, parent: Popen[str], tmp_path: Path) -> None:
    with server(parent, name, tmp_path) as process:
        for corpus in (each for each in CORPORA if name in MODELS_OF[each]):
            if corpus in LOWERED and name not in ASKED_LOWERED:
                continue
            recording = (DATA / corpus / f"{name}.jsonl").read_text().splitlines()
            for live, before in zip(answers(corpus, name, process.url), recording, strict=True):
                assert live == json.loads(before), corpus
