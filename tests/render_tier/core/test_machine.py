"""What the machine makes of outputs that have gone wrong elsewhere, and where each token counts."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tokenizers import Tokenizer

from render_tier.core.attribution import Ledger
from render_tier.core.events import CallArguments, CallStart, Event, Text, Tokens
from render_tier.core.grammar import Grammar
from render_tier.core.machine import Machine, MachineOptions
from render_tier.core.stops import StopTable
from render_tier.core.table import Region
from render_tier.core.vocabulary import Vocabulary
from tests.support.collected import Call, Collected

Encode = Callable[[str], list[int]]
R, C, M, T = Region.REASONING, Region.CONTENT, Region.MARKUP, Region.CALL


@pytest.fixture(scope="session")
def encode(tokenizer: Tokenizer) -> Encode:
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="session")
def full(grammars: list[Grammar]) -> Grammar:
    """Qwen3 reasoning and hermes tools."""
    return grammars[0]


@pytest.fixture(scope="session")
def plain(grammars: list[Grammar]) -> Grammar:
    return grammars[3]


def result(grammar: Grammar, ids: list[int], options: MachineOptions | None = None) -> Collected:
    machine = Machine(grammar, options or MachineOptions())
    return Collected().add(machine.feed(ids)).add(machine.finish())


def stepwise(machine: Machine, ids: list[int]) -> list[list[Event]]:
    """The events other than attribution, token by token, and at the end."""
    steps = [machine.feed([token_id]) for token_id in ids]
    steps.append(machine.finish())
    return [[event for event in step if not isinstance(event, Tokens)] for step in steps]


class TestAttribution:
    def test_regions_of_a_whole_answer(self, full: Grammar, encode: Encode) -> None:
        ids = encode(
            '<think>\nHm\n</think>\n\nSure.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
        )
        pieces = [ids.index(151668), ids.index(151657), len(ids)]
        got = result(full, ids).regions
        assert got[0] is M
        assert got[1 : pieces[0]] == [R] * (pieces[0] - 1)
        assert got[pieces[0]] is M
        assert got[pieces[0] + 1 : pieces[1]] == [C] * (pieces[1] - pieces[0] - 1)
        assert got[pieces[1]] is M
        # The brace that closes the object shares a token with the line break after it.
        assert got[pieces[1] + 1 : -1] == [T] * (len(ids) - pieces[1] - 2)
        assert got[-1] is M

    def test_a_token_over_a_border_belongs_to_its_first_character(
        self, full: Grammar, encode: Encode
    ) -> None:
        ids = encode("ab") + encode("</") + encode("think") + encode(">\n") + encode("x")
        assert result(full, ids).regions == [R, M, M, M, C]

    def test_the_first_bytes_of_a_character_belong_where_it_belongs(
        self, full: Grammar, encode: Encode
    ) -> None:
        emoji = encode("𓂀")
        assert len(emoji) > 1
        assert result(full, [*emoji, 151668, *emoji]).regions == [R] * len(emoji) + [M] + [C] * len(emoji)

    def test_skipped_specials_and_the_rest_of_a_cut_are_markup(self, full: Grammar, encode: Encode) -> None:
        assert result(full, [*encode("a"), 151645]).regions == [R, M]
        machine = Machine(full, MachineOptions())
        got = Collected().add(machine.feed(encode("a"))).add(machine.skip(2)).add(machine.finish())
        assert got.regions == [R, M, M]

    def test_a_failed_call_is_content(self, full: Grammar, encode: Encode) -> None:
        ids = [151668, *encode("<tool_call>{oops")]
        assert result(full, ids).regions == [M] + [C] * (len(ids) - 1)

    def test_the_ledger_settles_exactly_up_to_what_is_decided(self) -> None:
        ledger = Ledger()
        for length in (2, 0, 3):
            ledger.add()
            ledger.write(length)
        ledger.advance(2, R)
        assert ledger.take() == [Tokens(R, 1)]
        assert ledger.dump() == (3, [0, 0])
        ledger.advance(1, C)
        assert ledger.take() == [Tokens(C, 2)]

    @pytest.mark.parametrize("saved", [(-1, []), (1, [2]), (3, [2, 2]), (3, [-1])])
    def test_an_impossible_ledger_is_refused(self, saved: tuple[int, list[int]]) -> None:
        with pytest.raises(ValueError, match="ledger"):
            Ledger().restore(0, *saved)


class TestDetokenizing:
    def test_a_genuine_replacement_character_is_shown_at_once(self, plain: Grammar, encode: Encode) -> None:
        machine = Machine(plain, MachineOptions())
        ids = encode("�")
        shown = Collected()
        for token_id in ids:
            shown.add(machine.feed([token_id]))
        assert shown.content == "�"

    def test_an_unfinished_character_is_flushed_at_the_end(self, plain: Grammar, encode: Encode) -> None:
        assert result(plain, encode("𓂀")[:-1]).content == "�"

    def test_a_run_of_invalid_bytes_is_not_held_back(self, plain: Grammar, vocabulary: Vocabulary) -> None:
        wrong = next(i for i in range(vocabulary.size) if vocabulary.token_bytes(i) == b"\xff")
        machine = Machine(plain, MachineOptions())
        for _ in range(200):
            assert [type(event) for event in machine.feed([wrong])] == [Text, Tokens]

    def test_nothing_of_the_prompt_is_shown(self, plain: Grammar, encode: Encode) -> None:
        # The last byte of a character that the prompt began is invalid by itself, whatever the prompt was.
        assert result(plain, encode("𓂀")[-1:]).content == "�"


class TestReasoning:
    def test_words_end_marker_and_call_in_one_piece(self, full: Grammar, encode: Encode) -> None:
        got = result(full, encode('Done.</think><tool_call>{"name": "f", "arguments": {}}</tool_call>'))
        assert (got.reasoning, got.content, got.calls) == ("Done.", "", [Call("f", "{}", True)])

    def test_a_marker_in_ordinary_tokens_is_found(self, full: Grammar, encode: Encode) -> None:
        ids = [token_id for character in "a</think>b" for token_id in encode(character)]
        assert 151668 not in ids
        got = result(full, ids)
        assert (got.reasoning, got.content) == ("a", "b")

    def test_a_partial_marker_is_text_when_it_does_not_go_on(self, full: Grammar, encode: Encode) -> None:
        got = result(full, [*encode("a</thi"), 151668, *encode("x <tool_c")])
        assert (got.reasoning, got.content) == ("a</thi", "x <tool_c")


class TestCalls:
    @pytest.mark.parametrize(
        "arguments",
        [
            "{}",
            "[]",
            "null",
            "true",
            "-1.5e3",
            '""',
            '{"a": {"b": [1, {"c": "}"}]}}',
            '{"a": "</tool_call> \\" \\\\"}',
            '{"n": 123456789012345678901234567890}',
            '{ "spaced" :  1 }',
        ],
    )
    @pytest.mark.parametrize("order", ["name first", "arguments first"])
    def test_arguments_are_passed_on_verbatim(
        self, full: Grammar, encode: Encode, arguments: str, order: str
    ) -> None:
        fields = ['"name": "f"', f'"arguments": {arguments}']
        body = "{" + ", ".join(fields if order == "name first" else fields[::-1]) + "}"
        ids = encode(f"</think><tool_call>\n{body}\n</tool_call>")
        assert result(full, ids).calls == [Call("f", arguments, True)]

    def test_the_name_comes_before_the_arguments_and_they_come_as_written(
        self, full: Grammar, encode: Encode
    ) -> None:
        machine = Machine(full, MachineOptions(), False)
        steps = stepwise(machine, encode('<tool_call>{"name": "f", "arguments": {"text": "one two three"}}'))
        flat = [event for step in steps for event in step]
        assert flat[0] == CallStart(0, "f")
        assert sum(isinstance(event, CallArguments) for event in flat) > 4

    def test_an_escaped_name_is_decoded(self, full: Grammar, encode: Encode) -> None:
        ids = encode('</think><tool_call>{"name": "caf\\u00e9 \\"x\\"", "arguments": {}}</tool_call>')
        assert result(full, ids).calls == [Call('café "x"', "{}", True)]

    @pytest.mark.parametrize(
        "body",
        [
            "",
            "no json",
            "[1]",
            '"text"',
            "{}",
            '{"name": "f"}',
            '{"arguments": {}}',
            '{"name": 1, "arguments": {}}',
            '{"name": "f", "arguments": {leaf: 1}}',
            '{"name": "f" "arguments": {}}',
            '{"name": "\\x", "arguments": {}}',
        ],
    )
    def test_what_is_no_call_is_content(self, full: Grammar, encode: Encode, body: str) -> None:
        text = f"Look: <tool_call>\n{body}\n</tool_call> so."
        got = result(full, encode("</think>" + text))
        assert got.calls == []
        assert got.content == text

    def test_a_cut_call_keeps_what_came(self, full: Grammar, encode: Encode) -> None:
        ids = encode('</think><tool_call>{"name": "f", "arguments": {"a": "b')
        assert result(full, ids).calls == [Call("f", '{"a": "b', False)]

    def test_damage_in_the_arguments_ends_at_the_closing_marker(self, full: Grammar, encode: Encode) -> None:
        one = '<tool_call>{"name": "f", "arguments": {"a": oops</tool_call>'
        two = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
        got = result(full, encode("</think>" + one + two))
        assert got.calls == [Call("f", '{"a": oops', False), Call("g", "{}", True)]

    def test_a_call_without_closing_marker_is_followed_by_the_next(
        self, full: Grammar, encode: Encode
    ) -> None:
        one = '<tool_call>{"name": "f", "arguments": {}}\n'
        assert [call.name for call in result(full, encode("</think>" + one + one)).calls] == ["f", "f"]

    def test_an_object_longer_than_the_bound_is_text(self, full: Grammar, encode: Encode) -> None:
        text = '<tool_call>{"arguments": {"a": "' + "long " * 40 + '"}, "name": "f"}</tool_call>'
        got = result(full, encode("</think>" + text), MachineOptions(hold_limit=100))
        assert (got.calls, got.content) == ([], text)
        assert len(result(full, encode("</think>" + text)).calls) == 1

    def test_nothing_is_held_back_beyond_the_bound(self, full: Grammar, encode: Encode) -> None:
        machine = Machine(full, MachineOptions(hold_limit=100), False)
        shown = Collected()
        fed = ""
        for piece in ['<tool_call>{"name": "', *["x" * 7] * 40]:
            fed += piece
            shown.add(machine.feed(encode(piece)))
            assert len(fed) - len(shown.content) <= 101


class TestBlanks:
    def test_white_space_alone_before_a_call_is_not_content(self, full: Grammar, encode: Encode) -> None:
        call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
        assert result(full, encode("</think>\n\n" + call)).content == ""
        assert result(full, encode("</think>\n\nHi. \n" + call)).content == "\n\nHi. \n"
        assert result(full, encode("</think>\n\n")).content == "\n\n"

    def test_a_long_run_is_let_go(self, full: Grammar, encode: Encode) -> None:
        call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
        run = " \n" * 10
        kept = result(full, encode("</think>" + run + call), MachineOptions(blank_limit=19))
        assert kept.content == run
        assert len(kept.calls) == 1


class TestStops:
    @pytest.mark.parametrize("include", [False, True])
    def test_pieces_of_a_stop_string_are_never_shown(
        self, plain: Grammar, encode: Encode, include: bool
    ) -> None:
        machine = Machine(plain, MachineOptions(stops=StopTable(["DEFGHIJ"]), include_stop=include))
        shown = Collected()
        for piece in ("abc ", "DEF", "G", "HI"):
            shown.add(machine.feed(encode(piece)))
            assert shown.content == "abc "
        shown.add(machine.feed(encode("J and on"))).add(machine.finish())
        assert shown.content == ("abc DEFGHIJ" if include else "abc ")
        assert shown.stopped == "DEFGHIJ"

    def test_what_looked_like_a_stop_string_is_shown(self, plain: Grammar, encode: Encode) -> None:
        got = result(plain, encode("a DEF") + encode("x DEF"), MachineOptions(stops=StopTable(["DEFG"])))
        assert (got.content, got.stopped) == ("a DEFx DEF", None)

    def test_reading_ends_with_the_token_that_completes_it(self, plain: Grammar, encode: Encode) -> None:
        ids = encode("one two three four five")
        machine = Machine(plain, MachineOptions(stops=StopTable(["wo th"])))
        machine.feed(ids)
        assert machine.tokens == 3
        assert machine.feed(ids) == []

    def test_scope_decides_whether_reasoning_can_stop(self, full: Grammar, encode: Encode) -> None:
        ids = encode("Question: what?</think>Answer. Question: next")
        everywhere = result(full, ids, MachineOptions(stops=StopTable(["Question:"])))
        assert (everywhere.reasoning, everywhere.content) == ("", "")
        content = result(full, ids, MachineOptions(stops=StopTable(["Question:"]), stop_scope="content"))
        assert (content.reasoning, content.content, content.stopped) == (
            "Question: what?",
            "Answer. ",
            "Question:",
        )

    def test_a_stop_string_over_a_marker(self, full: Grammar, encode: Encode) -> None:
        got = result(full, encode("a</think>\n\nNo."), MachineOptions(stops=StopTable(["ink>\n\nN"])))
        assert (got.reasoning, got.content, got.stopped) == ("a</th", "", "ink>\n\nN")

    def test_a_stop_string_inside_arguments_cuts_the_call(self, full: Grammar, encode: Encode) -> None:
        ids = encode('</think><tool_call>{"name": "f", "arguments": {"a": "x STOP y"}}</tool_call>')
        got = result(full, ids, MachineOptions(stops=StopTable(["STOP"])))
        assert got.calls == [Call("f", '{"a": "x ', False)]
        content = result(full, ids, MachineOptions(stops=StopTable(["STOP"]), stop_scope="content"))
        assert json.loads(content.calls[0].arguments) == {"a": "x STOP y"}
