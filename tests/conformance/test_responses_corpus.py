"""Responses requests of every kind over six models, against the recorded answers of `vllm launch
render`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.recorded_render import differences
from tests.support.render_corpus import ALL
from tests.support.responses_corpus import DATA, MODELS, corpus, known


@pytest.mark.parametrize("name", MODELS)
async def test_answers_equal_the_recorded(
    name: str, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    tokenizer = model_dir(ALL[name].tokenizer)
    recording = (DATA / f"{name}.jsonl").read_text()
    wrong = await differences(name, corpus(name), recording, tokenizer, tmp_path / "model", known)
    assert not wrong, f"{len(wrong)} differ, the first: {wrong[0]}"
