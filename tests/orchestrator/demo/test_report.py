"""The demo's report: token lists and the split of the time to first token."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from orchestrator.demo.chat import ChatRecord
from orchestrator.demo.report import SHOWN_IDS, Transfer, hop_rows, print_title, token_list


@pytest.mark.parametrize("count", [0, 1, 2 * SHOWN_IDS])
def test_a_short_token_list_is_whole(count: int) -> None:
    assert token_list(range(count)) == " ".join(str(n) for n in range(count))


def test_a_long_token_list_says_how_many_are_left_out() -> None:
    words = token_list(range(100)).split()
    middle = words[SHOWN_IDS:-SHOWN_IDS]
    assert middle == ["…", str(100 - 2 * SHOWN_IDS), "more", "…"]
    assert [int(word) for word in words[:SHOWN_IDS] + words[-SHOWN_IDS:]] == [
        *range(SHOWN_IDS),
        *range(100 - SHOWN_IDS, 100),
    ]


def test_a_title_that_is_longer_than_a_line_is_whole() -> None:
    console = Console(file=StringIO(), width=40)
    title = " ".join(f"word{number}" for number in range(20))
    print_title(console, title)
    assert isinstance(console.file, StringIO)
    line, *shown = console.file.getvalue().splitlines()
    assert set(line) == {"─"}
    assert " ".join(part.strip() for part in shown) == title


def test_the_parts_of_ttft_add_up_to_the_decode_hop() -> None:
    timing = {
        "render_ms": 2.0,
        "prefill_ms": 30.0,
        "decode_first_token_ms": 25.0,
        "first_derender_ms": 1.0,
        "ttft_ms": 58.0,
        "total_ms": 90.0,
        "itl_ms": {"mean": None, "max": None, "count": 0},
    }
    rows = {
        row[0]: row[1] for row in hop_rows(ChatRecord(timing=timing), Transfer(bytes=2**21, seconds=0.010))
    }
    assert rows["KV transfer"] == "10.0 ms"
    assert rows["first decode step"] == "15.0 ms"
    assert rows["KV moved"] == "2.00 MiB"
    assert rows["ITL"] == "– mean, – max"
