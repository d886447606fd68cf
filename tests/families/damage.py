"""Ways in which a model's output goes wrong. Each takes a good output and gives back a spoilt one."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

KINDS = (
    "truncated", "marker_dropped", "marker_doubled", "marker_inserted", "marker_cut", "syntax_dropped",
    "syntax_doubled", "spaces_added", "spaces_removed", "tail_repeated",
)  # fmt: skip
"""`truncated`: cut anywhere (finish_reason length). `marker_*`: one marker missing, written twice, put at a
random place, or short of a character. `syntax_*`: one of ``{}[]":,<>=/`` missing or twice. `spaces_*`: white
space put around, or taken from around, a marker. `tail_repeated`: the model starts again from somewhere."""

SYNTAX = re.compile(r"[{}\[\]\":,<>=/'()\\]")


def spoil(rng: Random, kind: str, text: str, markers: tuple[str, ...]) -> str:
    """The output with one damage of the given kind; unchanged when there is nothing to damage."""
    places = (
        [(m.start(), m.end()) for m in re.finditer("|".join(map(re.escape, markers)), text)]
        if markers
        else []
    )
    return DAMAGES[kind](rng, text, places, markers)


def _truncated(rng: Random, text: str, places: list[tuple[int, int]], markers: tuple[str, ...]) -> str:
    if places and rng.random() < 0.4:  # near a marker, where parsers decide
        start, end = rng.choice(places)
        return text[: rng.randint(start, min(len(text), end + 3))]
    return text[: rng.randrange(len(text) + 1)]


def _dropped(rng: Random, text: str, places: list[tuple[int, int]], markers: tuple[str, ...]) -> str:
    if not places:
        return text
    start, end = rng.choice(places)
    return text[:start] + text[end:]


def _doubled(rng: Random, text: str, places: list[tuple[int, int]], markers: tuple[str, ...]) -> str:
    if not places:
        return text
    start, end = rng.choice(places)
    return text[:end] + rng.choice(("", "\n")) + text[start:]


def _inserted(rng: Random, text: str, places: list[tuple[int, int]], markers: tuple[str, ...]) -> str:
    if not markers:
        return text
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(markers) + text[at:]


def _cut(rng: Random, text: str, places: list[tuple[int, int]], markers: tuple[str, ...]) -> str:
    if not places:
        return text
    start, end = rng.choice(places)
    at = rng.randrange(start, end)
    return text[:at] + text[at + 1 :]


def _syntax(rng: Random, text: str, *, double: bool) -> str:
    spots = [m.start() for m in SYNTAX.finditer(text)]
    if not spots:
        return text
    at = rng.choice(spots)
    return text[: at + 1] + text[at:] if double else text[:at] + text[at + 1 :]


def _spaces_added(rng: Random, text: str, places: list[tuple[int, int]], markers: tuple[str, ...]) -> str:
    if not places:
        return text
    at = rng.choice(rng.choice(places))
    return text[:at] + rng.choice((" ", "\n", "\n\n", "\t", "  \n")) + text[at:]


def _spaces_removed(rng: Random, text: str, places: list[tuple[int, int]], markers: tuple[str, ...]) -> str:
    if not places:
        return text
    start, end = rng.choice(places)
    return text[:start].rstrip() + text[start:end] + text[end:].lstrip()


def _repeated(rng: Random, text: str, places: list[tuple[int, int]], markers: tuple[str, ...]) -> str:
    return text + text[rng.randrange(len(text) + 1) :]


DAMAGES: dict[str, Callable[[Random, str, list[tuple[int, int]], tuple[str, ...]], str]] = {
    "truncated": _truncated,
    "marker_dropped": _dropped,
    "marker_doubled": _doubled,
    "marker_inserted": _inserted,
    "marker_cut": _cut,
    "syntax_dropped": lambda rng, text, places, markers: _syntax(rng, text, double=False),
    "syntax_doubled": lambda rng, text, places, markers: _syntax(rng, text, double=True),
    "spaces_added": _spaces_added,
    "spaces_removed": _spaces_removed,
    "tail_repeated": _repeated,
}
