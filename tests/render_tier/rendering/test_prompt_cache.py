"""The cache of earlier prompts' parts: where it may cut, what it keeps, and that it changes no ID."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from render_tier.rendering.prompt_cache import Lookup, PromptCache, cut_marks
from tests.support.tokenizers import NAMES, encoders

ModelDir = Callable[[str], Path]


def added(*texts: str, **flags: Any) -> list[dict[str, Any]]:
    return [{"content": text, "special": True, "normalized": False, **flags} for text in texts]


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False}


def test_marks_are_the_added_tokens_of_the_template() -> None:
    data = {"added_tokens": added("<a>", "<b>", "<c>"), "pre_tokenizer": BYTE_LEVEL}
    assert set(cut_marks(data, ["{{ '<a>' }}", None, "<c>"])) == {"<a>", "<c>"}
    assert set(cut_marks(data, [])) == {"<a>", "<b>", "<c>"}


@pytest.mark.parametrize(
    ("tokens", "why"),
    [
        (added("<a>", "x<a>"), "a longer token holds the mark"),
        (added("<a>", "<a>y"), "a longer token begins with the mark"),
        (added("<a>", "x<"), "a token that begins before it reaches into it"),
        (added("<a>", "<b>", lstrip=True), "white space beside a token belongs to it"),
        (added("<a>", "<b>", rstrip=True), "white space beside a token belongs to it"),
        (added("<a>", "<b>", single_word=True), "what stands beside a token decides on it"),
        (added("\n\n"), "white space"),
    ],
)
def test_tokens_at_which_a_cut_could_change_ids_are_no_marks(tokens: list[dict[str, Any]], why: str) -> None:
    data = {"added_tokens": tokens, "pre_tokenizer": BYTE_LEVEL}
    assert cut_marks(data, ["<a> \n\n"]) == (), why


@pytest.mark.parametrize(
    "steps",
    [
        {"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]}},
        {"pre_tokenizer": {"type": "SomethingNew"}},
    ],
    ids=lambda steps: str(steps)[:60],
)
def test_a_step_that_may_look_at_the_position_switches_the_cache_off(steps: dict[str, Any]) -> None:
    assert cut_marks({"added_tokens": added("<a>"), **steps}, ["<a>"]) == ()


def test_a_token_of_normalised_text_is_a_mark_only_where_nothing_is_normalised() -> None:
    tokens = added("<a>", normalized=True)
    assert cut_marks({"added_tokens": tokens, "pre_tokenizer": BYTE_LEVEL}, ["<a>"]) == ("<a>",)
    with_nfc = {"added_tokens": tokens, "pre_tokenizer": BYTE_LEVEL, "normalizer": {"type": "NFC"}}
    assert cut_marks(with_nfc, ["<a>"]) == ()
    # The other is looked for first and takes the mark's end away from it.
    overlapping = [*tokens, *added(">b")]
    assert cut_marks({"added_tokens": overlapping, "pre_tokenizer": BYTE_LEVEL}, ["<a>"]) == ()


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_cutting_changes_no_id(name: str, data: st.DataObject, model_dir: ModelDir) -> None:
    chosen = encoders(model_dir(name))
    piece = st.one_of(
        st.sampled_from(chosen.marks), st.sampled_from(chosen.added), st.text(st.characters(codec="utf-8"))
    )
    text = "".join(data.draw(st.lists(piece, max_size=12)))
    cache = PromptCache(chosen.fast, chosen.marks, 1 << 20)
    expected = chosen.reference.ids(text, add_special_tokens=False)
    assert cache.ids(text).to_list() == cache.ids(text).to_list() == expected


class Counting:
    """Characters as IDs; counts what it is asked."""

    name = "counting"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.asked.append(text)
        return [ord(character) for character in text]


def test_a_conversation_that_grew_costs_only_what_is_new() -> None:
    engine = Counting()
    cache = PromptCache(engine, ["<|>"], 1 << 20)
    lookups: list[Lookup] = []
    cache.observer = lookups.append
    text = ""
    for turn in range(20):
        text += f"<|>turn {turn}"
        engine.asked.clear()
        assert cache.ids(text).to_list() == [ord(character) for character in text]
        assert engine.asked == ([f"turn {turn}"] if turn else ["<|>", "turn 0"])
        missed = len(f"turn {turn}") + (0 if turn else 3)
        assert lookups[-1] == Lookup(len(text) - missed, missed, cache.size)


def test_the_least_recently_used_parts_go_first_and_the_size_is_bounded() -> None:
    engine = Counting()
    cache = PromptCache(engine, ["<|>"], 4_000)
    cache.ids("keep")
    for index in range(100):
        cache.ids(f"other {index}")
        cache.ids("keep")
        assert cache.size <= 4_000
    assert engine.asked.count("keep") == 1
    cache.ids("other 0")
    assert engine.asked.count("other 0") == 2


def test_a_part_that_would_empty_the_cache_is_not_kept() -> None:
    engine = Counting()
    cache = PromptCache(engine, ["<|>"], 4_000)
    cache.ids("small")
    cache.ids("x" * 1_000)
    cache.ids("small")
    assert engine.asked.count("small") == 1
    assert cache.size < 1_000


def test_the_answer_is_the_callers_own() -> None:
    cache = PromptCache(Counting(), ["<|>"], 4_000)
    cache.ids("abc").to_list().append(7)
    assert cache.ids("abc").to_list() == [97, 98, 99]


def test_threads_share_one_cache() -> None:
    cache = PromptCache(Counting(), ["<|>"], 3_000)
    texts = ["<|>".join(f"part {i} {j}" for j in range(5)) for i in range(40)]

    def check(text: str) -> bool:
        return all(cache.ids(text).to_list() == [ord(character) for character in text] for _ in range(20))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(check, texts))
    assert cache.size <= 3_000
