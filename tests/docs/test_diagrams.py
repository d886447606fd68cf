"""Diagrams of the docs: drawn from the code, and drawn by Mermaid in a real browser."""

from __future__ import annotations

import html
from pathlib import Path

import pytest
import yaml

from scripts import diagrams
from tests.support.browser import browsing, chromium
from tests.support.documented import PAGES, ROOT, blocks

MERMAID = ROOT / ".cache" / "tools" / "mermaid" / "mermaid.min.js"


def test_the_page_is_what_the_code_says() -> None:
    assert diagrams.PAGE.read_text(encoding="utf-8") == diagrams.page(), (
        "run .venv/bin/python scripts/diagrams.py"
    )


def test_what_other_arrows_imply_is_left_out() -> None:
    arrows = {("a", "b"), ("b", "c"), ("a", "c"), ("a", "d")}
    assert diagrams.reduced(arrows) == arrows - {("a", "c")}


def test_the_site_loads_nothing_from_elsewhere() -> None:
    site = yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.BaseLoader)
    assert site["theme"]["font"] == "false"
    [script] = site["extra_javascript"]
    assert (
        f"cp {MERMAID.relative_to(ROOT)} build/docs/{Path(script).parent}/" in (ROOT / "Makefile").read_text()
    )


async def test_mermaid_draws_every_diagram(tmp_path: Path) -> None:
    program = chromium()
    if program is None:
        pytest.skip("no chromium is installed")
    sources = [block.code for page in PAGES for block in blocks(page) if block.language == "mermaid"]
    assert len(sources) >= 3
    drawings = "".join(f'<pre class="mermaid">{html.escape(source)}</pre>' for source in sources)
    page = tmp_path / "page.html"
    page.write_text(
        f'<meta charset="utf-8">{drawings}<script src="{MERMAID.as_uri()}"></script>'
        "<script>mermaid.initialize({startOnLoad: false}); mermaid.run().then("
        "() => {document.title = 'drawn'}, error => {document.title = String(error)})</script>"
    )
    async with browsing(program) as browser:
        await browser.open(page.as_uri())
        await browser.until("document.title !== ''")
        assert await browser.value("document.title") == "drawn"
        assert await browser.value("document.querySelectorAll('pre.mermaid > svg').length") == len(sources)
        assert browser.complaints == []
