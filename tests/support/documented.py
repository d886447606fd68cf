"""The commands that README.md and docs/*.md tell: those in blocks of shell, and those in the text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PROGRAMS = frozenset(
    {
        *(
            "bash",
            "curl",
            "docker",
            "helm",
            "kubectl",
            "make",
            "npm",
            "pd-orchestrator",
            "pip",
            "python",
            "pytest",
        ),
        *("render-tier", "sh", "systemctl", "vllm"),
    }
)
"""With a word after it, one of these begins a command in the text. A block of shell has commands alone."""
VLLM_FLAGS = frozenset(
    {"--ec-transfer-config", "--enable-scale-out", "--mm-processor-cache-gb", "--tokens-only"}
)
"""Those of ``vllm serve`` that the text of pages other than engines.md names."""

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*)\n(?P<code>.*?)^(?P=indent)```$", re.M | re.S)
_ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=")
_SCRIPT = re.compile(r"(?:scripts|examples)/\w+\.(?:sh|py)")


@dataclass(frozen=True)
class Block:
    """A fenced block. ``line`` is that of its fence."""

    page: Path
    line: int
    language: str
    code: str


@dataclass(frozen=True)
class Command:
    """``words`` without the variables that are set before them."""

    page: Path
    line: int
    variables: dict[str, str]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}: {shlex.join(self.words)}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, match["language"], match["code"])
        for match in _FENCE.finditer(text)
    ]


def transcript(page: Path) -> list[tuple[Command, str | None]]:
    """The commands of its blocks, the last of each with the block of text right behind it: what it prints."""
    texts = {block.line: block.code for block in blocks(page) if block.language == "text"}
    told: list[tuple[Command, str | None]] = []
    for block in blocks(page):
        if block.language == "sh":
            *others, last = shell(block.code, page, block.line + 1)
            behind = block.line + block.code.count("\n") + 3
            told += [*((command, None) for command in others), (last, texts.get(behind))]
    return told


def prints(shown: str, output: str) -> bool:
    """Whether an output is what is shown, in which ``…`` stands for anything; white space does not count."""
    parts = (re.escape("".join(part.split())) for part in shown.split("…"))
    return re.fullmatch(".*".join(parts), "".join(output.split())) is not None


def commands(*pages: Path) -> list[Command]:
    """In the order in which they stand: of each page those of its blocks, then those of its text."""
    return [command for page in pages for found in (_of_blocks(page), _of_text(page)) for command in found]


def _of_blocks(page: Path) -> Iterator[Command]:
    for block in blocks(page):
        if block.language == "sh":
            yield from shell(block.code, page, block.line + 1)


def shell(code: str, page: Path, first_line: int) -> Iterator[Command]:
    """The commands of a piece of shell: words, quotes over lines, comments and ``&&``, and no more of it."""
    pending, began = "", first_line
    for number, line in enumerate(code.splitlines(), first_line):
        if not pending:
            began = number
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        pending += line + "\n"
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # a quote that is still open
            continue
        pending = ""
        while words:
            end = words.index("&&") if "&&" in words else len(words)
            yield _command(page, began, words[:end])
            words = words[end + 1 :]
    assert not pending, f"{page.name}:{began}: an open quote"


def prose(page: Path) -> str:
    """The page without its blocks, line by line as it stands."""
    return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), page.read_text(encoding="utf-8"))


def _of_text(page: Path) -> Iterator[Command]:
    text = prose(page)
    for match in re.finditer(r"`([^`]+)`", text):
        try:
            words = shlex.split(match[1])
        except ValueError:  # an apostrophe
            continue
        command = _command(page, text.count("\n", 0, match.start()) + 1, words)
        first, *rest = command.words or ("",)
        if (first in PROGRAMS and rest) or _SCRIPT.fullmatch(first):
            yield command


def _command(page: Path, line: int, words: list[str]) -> Command:
    """Programs of the project's own environment by their names alone."""
    count = next((n for n, word in enumerate(words) if not _ASSIGNMENT.match(word)), len(words))
    variables = dict(word.split("=", 1) for word in words[:count])
    program, *rest = words[count:] or ("",)
    return Command(page, line, variables, (program.removeprefix(".venv/bin/"), *rest))
