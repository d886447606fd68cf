"""Laws of the machine over random outputs: valid, damaged, and token soup."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from render_tier.core.grammar import Grammar
from render_tier.core.machine import Machine, MachineOptions, SnapshotError
from render_tier.core.stops import StopTable
from render_tier.core.table import Region
from render_tier.core.vocabulary import Vocabulary
from tests.support.collected import Collected

MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>"]
arguments = st.dictionaries(
    st.text(max_size=6),
    st.none() | st.integers() | st.text(max_size=12) | st.lists(st.floats(allow_nan=False)),
    max_size=3,
)


@st.composite
def calls(draw: st.DrawFn) -> str:
    name, args = (
        json.dumps(draw(st.text(max_size=8))),
        json.dumps(draw(arguments), ensure_ascii=draw(st.booleans())),
    )
    fields = [f'"name": {name}', f'"arguments": {args}']
    if draw(st.booleans()):
        fields.reverse()
    if draw(st.booleans()):
        fields.append('"extra": [1, {"a": null}]')
    gap = draw(st.sampled_from(["", "\n", " "]))
    return f"<tool_call>{gap}{{{', '.join(fields)}}}{gap}</tool_call>"


prose = st.text(max_size=12) | st.sampled_from(
    [
        "\n\n",
        " ",
        "The answer. ",
        "<",
        "</",
        "<tool",
        "<tool_call",
        "</thin",
        "{",
        '"name"',
        "🎉",
        "é",
        "\ufffd",
        "a\\",
    ]
)
fragments = prose | calls() | st.sampled_from(MARKERS)


@st.composite
def outputs(draw: st.DrawFn) -> tuple[str, int]:
    """A text, and a seed for damage: where to drop or repeat a character (0: none)."""
    text = "".join(draw(st.lists(fragments, max_size=8)))
    if text and draw(st.booleans()):
        at = draw(st.integers(0, len(text) - 1))
        text = text[:at] + draw(st.sampled_from(["", "}", '"', "<", "\n"])) + text[at + 1 :]
    return text, draw(st.integers(0, 3))


def ids_of(tokenizer: Tokenizer, drawn: tuple[str, int], soup: list[int]) -> list[int]:
    """Token IDs of a text; in one case of four with its characters as tokens of their own, then loose IDs."""
    text, how = drawn
    text = text.encode("utf-8", errors="replace").decode()
    pieces = list(text) if how == 3 else [text]
    ids = [token_id for piece in pieces for token_id in tokenizer.encode(piece, add_special_tokens=False).ids]
    return ids + soup


soups = st.lists(st.integers(0, 151_700) | st.integers(151_640, 151_670) | st.integers(94, 260), max_size=8)
stops = st.lists(
    st.sampled_from(["\n\n", "answer", "</think>", "<tool", "}", "an", "🎉", "</think>\n\nThe"]), max_size=3
)


@st.composite
def options(draw: st.DrawFn) -> MachineOptions:
    wanted = draw(stops)
    return MachineOptions(
        stops=StopTable(wanted) if wanted else None,
        stop_scope=draw(st.sampled_from(["all", "content"])),
        include_stop=draw(st.booleans()),
        min_tokens=draw(st.integers(0, 12)),
        skip_special_tokens=draw(st.booleans()),
        hold_limit=draw(st.sampled_from([20, 65536])),
        blank_limit=draw(st.sampled_from([2, 256])),
    )


prompts = st.sampled_from([None, True, False])
cuttings = st.lists(st.integers(0, 80), max_size=12)


def chunked(ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [ids[start:end] for start, end in pairwise(edges)]


def read(machine: Machine, chunks: list[list[int]]) -> Collected:
    got = Collected()
    for chunk in chunks:
        got.add(machine.feed(chunk))
    return got.add(machine.finish())


@pytest.fixture(scope="module", params=range(4), ids=["qwen3+hermes", "hermes", "qwen3", "plain"])
def grammar(grammars: list[Grammar], request: pytest.FixtureRequest) -> Grammar:
    return grammars[request.param]


@given(outputs(), soups, options(), prompts, cuttings)
def test_any_chunking_gives_the_whole_result(
    grammar: Grammar,
    tokenizer: Tokenizer,
    drawn: tuple[str, int],
    soup: list[int],
    opts: MachineOptions,
    prompt: bool | None,
    cuts: list[int],
) -> None:
    ids = ids_of(tokenizer, drawn, soup)
    whole = read(Machine(grammar, opts, prompt), [ids])
    assert read(Machine(grammar, opts, prompt), chunked(ids, cuts)) == whole
    assert read(Machine(grammar, opts, prompt), [[token_id] for token_id in ids]) == whole


@given(outputs(), soups, options(), prompts)
def test_a_snapshot_at_every_position_changes_nothing(
    grammar: Grammar,
    tokenizer: Tokenizer,
    drawn: tuple[str, int],
    soup: list[int],
    opts: MachineOptions,
    prompt: bool | None,
) -> None:
    ids = ids_of(tokenizer, drawn, soup)
    whole = read(Machine(grammar, opts, prompt), [ids])
    machine = Machine(grammar, opts, prompt)
    got = Collected()
    for token_id in ids:
        machine = Machine.restore(grammar, opts, machine.snapshot())
        got.add(machine.feed([token_id]))
        again = Machine.restore(grammar, opts, machine.snapshot())
        assert again.snapshot() == machine.snapshot()
        machine = again
    assert got.add(machine.finish()) == whole


@given(outputs(), soups, options(), prompts)
def test_every_token_is_attributed_once(
    grammar: Grammar,
    tokenizer: Tokenizer,
    drawn: tuple[str, int],
    soup: list[int],
    opts: MachineOptions,
    prompt: bool | None,
) -> None:
    ids = ids_of(tokenizer, drawn, soup)
    machine = Machine(grammar, opts, prompt)
    got = read(machine, [ids])
    assert len(got.regions) == machine.tokens
    assert machine.tokens == len(ids) or got.stopped is not None
    if not got.content:
        shown = Region.CONTENT in got.regions
        assert not shown or grammar.blanks == "drop_alone" or opts.stops is not None
    if not got.calls:
        assert Region.CALL not in got.regions
    if not got.reasoning and opts.stops is None:
        assert Region.REASONING not in got.regions


@given(outputs(), options(), prompts, cuttings)
def test_text_without_tokens_is_read_the_same(
    grammar: Grammar,
    tokenizer: Tokenizer,
    drawn: tuple[str, int],
    opts: MachineOptions,
    prompt: bool | None,
    cuts: list[int],
) -> None:
    text = drawn[0].encode("utf-8", errors="replace").decode()
    whole = Machine(grammar, opts, prompt)
    want = Collected().add(whole.feed_text(text)).add(whole.finish())
    machine = Machine(grammar, opts, prompt)
    got = Collected()
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for start, end in pairwise(edges):
        got.add(machine.feed_text(text[start:end]))
        machine = Machine.restore(grammar, opts, machine.snapshot())
    assert got.add(machine.finish()) == want


@given(soups, soups, st.booleans())
def test_plain_text_is_the_tokenizers_own_decode(
    grammars: list[Grammar], vocabulary: Vocabulary, first: list[int], second: list[int], skip: bool
) -> None:
    machine = Machine(grammars[3], MachineOptions(skip_special_tokens=skip))
    got = read(machine, [first, second])
    assert got.content == vocabulary.text(first + second, skip_special_tokens=skip)


@given(
    outputs(),
    soups,
    st.lists(st.text("ab \n<>/thinkTe.", min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(0, 9),
    st.booleans(),
)
def test_stop_strings_are_those_of_token_by_token_search(
    grammars: list[Grammar],
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    drawn: tuple[str, int],
    soup: list[int],
    wanted: list[str],
    least: int,
    include: bool,
) -> None:
    """The rule by definition: append one token's text at a time and look whether a stop string ends in what
    is new."""
    ids = ids_of(tokenizer, drawn, soup)
    text, expected, known = "", None, 0
    for position in range(1, len(ids) + 1):
        text = vocabulary.text(ids[:position], skip_special_tokens=True)
        settled = len(text) - (len(text) - len(text.rstrip("\ufffd")) if position < len(ids) else 0)
        if position > least:
            ends = [
                (text.find(s, max(0, known - len(s) + 1)) + len(s), i, s)
                for i, s in enumerate(wanted)
                if text.find(s, max(0, known - len(s) + 1)) >= 0
            ]
            if ends:
                expected = min(ends)
                break
        known = max(known, settled)
    got = read(
        Machine(grammars[3], MachineOptions(stops=StopTable(wanted), min_tokens=least, include_stop=include)),
        [ids],
    )
    if expected is None:
        assert got.stopped is None
        return
    end, _order, stop = expected
    assert got.stopped == stop
    assert got.content == text[: end if include else end - len(stop)]


@given(outputs(), st.integers(0, 255), st.integers(0, 10_000), options())
def test_a_damaged_snapshot_is_refused_or_harmless(
    grammar: Grammar,
    tokenizer: Tokenizer,
    drawn: tuple[str, int],
    byte: int,
    where: int,
    opts: MachineOptions,
) -> None:
    machine = Machine(grammar, opts)
    machine.feed(ids_of(tokenizer, drawn, []))
    data = bytearray(machine.snapshot())
    data[where % len(data)] = byte
    try:
        again = Machine.restore(grammar, opts, bytes(data))
    except SnapshotError:
        return
    again.feed([1, 151_657, 90, 151_658, 220])
    again.finish()


@settings(max_examples=30)
@given(st.binary(max_size=60))
def test_bytes_that_are_no_snapshot_are_refused(grammar: Grammar, data: bytes) -> None:
    with pytest.raises(SnapshotError):
        Machine.restore(grammar, MachineOptions(), b"\x01" + data[:14])


def size_over_time(grammar: Grammar, ids: list[int]) -> list[int]:
    machine = Machine(grammar, MachineOptions())
    sizes = []
    for token_id in ids:
        machine.feed([token_id])
        sizes.append(len(machine.snapshot()))
    return sizes


@pytest.mark.parametrize(
    "text",
    [
        "<think>" + "Thinking about the harbour. " * 400,
        "</think>" + "Content goes on. " * 400,
        '</think><tool_call>\n{"name": "f", "arguments": {"text": "' + "tide and time " * 400,
        '</think><tool_call>\n{"name": "f", "arguments": ' + '{"a": [1, 2, {"b": null}], "c": "x"}' * 100,
        "</think>" + '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n' * 60,
        "</think>" + " \n" * 2000,
        "<tool_call" * 300,
    ],
    ids=["reasoning", "content", "long argument", "after a call", "many calls", "blanks", "broken markers"],
)
def test_the_state_does_not_grow(grammars: list[Grammar], tokenizer: Tokenizer, text: str) -> None:
    sizes: Any = size_over_time(grammars[0], tokenizer.encode(text, add_special_tokens=False).ids)
    assert max(sizes) <= 600
    assert max(sizes[len(sizes) // 2 :]) <= max(sizes[: len(sizes) // 2]) + 4  # a counter's digits
