"""Whether two encoders agree: texts of every kind that tokenizers get wrong, and the first that differs."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

from render_tier.model.engines import TokenEngine

RANGES = (
    (0x00, 0x1F),  # control characters
    (0x20, 0x7E),
    (0x7F, 0xA0),
    (0xA1, 0x24F),
    (0x300, 0x36F),  # combining marks
    (0x370, 0x52F),
    (0x590, 0x6FF),
    (0x900, 0x97F),
    (0xE00, 0xE7F),
    (0x1100, 0x11FF),  # Hangul letters, which normalisation joins
    (0x1E00, 0x1FFF),
    (0x2000, 0x206F),  # spaces, joiners, line and paragraph separators
    (0x2070, 0x2BFF),
    (0x3000, 0x30FF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),
    (0xE000, 0xE0FF),  # private use
    (0xF900, 0xFAFF),  # characters that normalisation replaces
    (0xFE00, 0xFE0F),
    (0xFF00, 0xFFFF),  # full-width forms, U+FFFD, noncharacters
    (0x1D400, 0x1D7FF),
    (0x1F300, 0x1FAFF),
    (0xE0020, 0xE007F),
    (0x10FFF0, 0x10FFFF),
)
EMOJI = ("😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇨🇭🇯🇵", "👍🏽", "1️⃣", "🫠", "é😀ß")
PIECES = (
    *("I'm", "you'll", "IT'S", "don\u2019t", "'\u017f", "they'VE ", "rock'n'roll", "O'Neil"),
    *("0", "12", "123", "1234567890", "3.14159", "-1e-7", "1_000", "٣٤٥", "Ⅳ", "½"),
    *(
        "\n",
        "\r\n",
        "\n\n\n",
        "\t",
        " ",
        "  ",
        "   \n",
        " \t ",
        "\u00a0",
        "\u3000",
        "\u2028",
        "\u200b",
        "\ufeff",
    ),
    *(
        "def f(x):\n    return x",
        "{'a': [1, 2]}",
        '{"k": "\\u00e9"}',
        "</div>",
        "<br>",
        "<b>",
        "&amp;",
        "a/b//c",
    ),
    *("https://example.com/a?b=c#d", "a.b@c.de", "aGVsbG8gd29ybGQ=", "0xDEADBEEF", "snake_case", "camelCase"),
    *(
        "Straße",
        "naïve",
        "cafe\u0301",
        "Ελλάδα",
        "Привет",
        "مرحبا",
        "नमस्ते",
        "ภาษาไทย",
        "日本語",
        "한국어",
        "𝔘𝔫𝔦",
    ),
    *("...", "?!", "—", "“”", "$", "%", "#", "!!!", "\u0000", "\u001b[0m", "\ufffd", "\\", "`", "|"),
)


def probe_texts(added: Sequence[str], vocabulary: Sequence[str], count: int, seed: int = 1) -> list[str]:
    """``count`` texts, the same for the same arguments. ``added``: the texts of added tokens; ``vocabulary``:
    texts of ordinary tokens to draw from."""
    draw = random.Random(seed)
    texts: list[str] = []
    kinds: tuple[Callable[[], str], ...] = (
        lambda: _with_added(draw, added),
        lambda: _with_added(draw, added),
        lambda: "".join(draw.choices(PIECES, k=draw.randint(1, 12))),
        lambda: " ".join(draw.choices(PIECES, k=draw.randint(1, 12))),
        lambda: "".join(draw.choices(vocabulary, k=draw.randint(1, 20))) if vocabulary else "",
        lambda: _characters(draw),
        lambda: unicodedata.normalize(draw.choice(("NFC", "NFD", "NFKC", "NFKD")), _characters(draw)),
        lambda: _run(draw, added),
        lambda: draw.choice(PIECES) + draw.choice(EMOJI) + draw.choice(PIECES),
    )
    fixed = _fixed(draw, added)
    for text in fixed:
        if len(texts) >= count // 2:
            break
        texts.append(text)
    while len(texts) < count:
        texts.append(draw.choice(kinds)())
    return texts


def _fixed(draw: random.Random, added: Sequence[str]) -> Iterator[str]:
    """The empty text, emoji cut at every byte, and every added token on its own and inside text."""
    yield ""
    for emoji in EMOJI:
        encoded = emoji.encode()
        for cut in range(len(encoded) + 1):
            yield encoded[:cut].decode(errors="replace")
            yield "x " + encoded[cut:].decode(errors="replace")
    for token in draw.sample(added, len(added)):
        yield f"{draw.choice(PIECES)}{token}{draw.choice(PIECES)}"


def _with_added(draw: random.Random, added: Sequence[str]) -> str:
    """Added tokens beside each other, beside white space, and cut short."""
    parts = []
    for _ in range(draw.randint(1, 6)):
        token = draw.choice(added) if added else "<s>"
        cut = draw.randint(0, len(token))
        parts.append(
            draw.choice((token, token, token[:cut], token[cut:], token.upper(), token[:cut] + token))
        )
        parts.append(draw.choice(("", "", " ", "\n", *PIECES)))
    return "".join(parts)


def _characters(draw: random.Random) -> str:
    ranges = draw.choices(RANGES, k=draw.randint(1, 3))
    return "".join(chr(draw.randint(*draw.choice(ranges))) for _ in range(draw.randint(1, 30)))


def _run(draw: random.Random, added: Sequence[str]) -> str:
    """One character, or one token, many times over; rarely very many times."""
    unit = draw.choice(
        (" ", "\n", "\t", "a", "A", "0", "=", "-", "日", "é", "\u0301", "😀", "\ufffd", "\r\n", "ab")
    )
    if added and draw.random() < 0.1:
        unit = draw.choice(added)
    length = draw.randint(1, 2000 if draw.random() < 0.05 else 80)
    return draw.choice(("", "x", " ")) + unit * length + draw.choice(("", "x", " "))


def first_difference(reference: TokenEngine, engine: TokenEngine, texts: Iterable[str]) -> str | None:
    """The first text for which the two give different IDs, with or without special tokens; None if none."""
    for text in texts:
        for specials in (False, True):
            if reference.ids(text, add_special_tokens=specials) != engine.ids(
                text, add_special_tokens=specials
            ):
                return text
    return None
