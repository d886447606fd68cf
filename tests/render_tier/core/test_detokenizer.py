"""Token pieces to text: characters split over calls, first spaces, and flags that belong to one request."""

from __future__ import annotations

from itertools import permutations

import pytest

from render_tier.core.detokenizer import MAX_PENDING, Detokenizer
from render_tier.core.formats import PLAIN
from render_tier.core.grammar import Grammar
from render_tier.core.machine import Machine, MachineOptions
from render_tier.core.vocabulary import build_vocabulary
from tests.support.collected import Collected

TEXT = "tea 🧭 港🇫🇮 é"


def byte_fallback_grammar() -> Grammar:
    """A SentencePiece vocabulary: every byte, and words that begin with the space mark."""
    words = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁tea": 256, "s": 257, "</s>": 258}
    decoder = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    special = [{"id": 258, "content": "</s>", "special": True}]
    return Grammar(
        None,
        PLAIN,
        build_vocabulary({"model": {"vocab": words}, "added_tokens": special, "decoder": decoder}),
    )


def test_a_character_split_over_calls_survives_the_written_state() -> None:
    grammar, options = byte_fallback_grammar(), MachineOptions()
    machine, got = Machine(grammar, options), Collected()
    for byte in TEXT.encode():
        machine = Machine.restore(grammar, options, machine.snapshot())
        got.add(machine.feed([byte]))
        assert "�" not in got.content
    assert got.add(machine.finish()).content == TEXT


def test_every_beginning_of_a_character_waits_and_nothing_else_does() -> None:
    for character in "é港🧭":
        data = character.encode()
        for cut in range(1, len(data)):
            detokenizer = Detokenizer()
            assert detokenizer.feed(data[:cut]) == ""
            assert len(detokenizer.pending) == cut <= MAX_PENDING
            assert detokenizer.feed(data[cut:]) == character
            assert detokenizer.pending == b""


def test_the_first_space_of_an_output_is_shown() -> None:
    """The tokenizer's own decode drops it: it takes the output for the beginning of a text."""
    machine = Machine(byte_fallback_grammar(), MachineOptions())
    assert Collected().add(machine.feed([256, 257])).add(machine.finish()).content == " teas"


@pytest.mark.parametrize("order", list(permutations((True, False))))
def test_flags_of_one_request_do_not_touch_another(order: tuple[bool, bool]) -> None:
    """Two streams of one grammar, in turns: each leaves special tokens out as its own request says."""
    grammar = byte_fallback_grammar()
    machines = {skip: Machine(grammar, MachineOptions(skip_special_tokens=skip)) for skip in order}
    shown = {skip: Collected() for skip in order}
    for token_id in (256, 258, 257):
        for skip, machine in machines.items():
            shown[skip].add(machine.feed([token_id]))
    assert {skip: got.add(machines[skip].finish()).content for skip, got in shown.items()} == {
        True: " teas",
        False: " tea</s>s",
    }
