"""Every example of settings or code in the docs is read by what would read it, here or where a table says."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from orchestrator.core.membership import from_file
from orchestrator.settings import Settings
from render_tier.core.formats import hermes
from tests.support.documented import PAGES, ROOT, Block, blocks


def is_a_members_file(block: Block) -> None:
    plain, detailed = from_file(tomllib.loads(block.code))
    assert plain.url == "http://10.0.0.7:8000"
    assert (detailed.generation, detailed.drain, detailed.declared.tensor_parallel) == ("b", True, 2)


def is_the_table_of_the_code(block: Block) -> None:
    names = {**vars(hermes)}
    names.pop("HERMES")
    exec(block.code, names)
    assert names["HERMES"] == hermes.HERMES


def lets_streams_through(block: Block) -> None:
    """nginx waits longer than a request may take, keeps connections for less time than we do, takes bodies as
    large as ours, and neither buffers nor repeats."""
    settings = Settings.model_validate({})
    said = dict(re.findall(r"^\s*(\w+) ([^{;]+);$", block.code, re.M))
    assert int(said["proxy_read_timeout"].removesuffix("s")) > settings.timeouts.request
    assert int(said["keepalive_timeout"].removesuffix("s")) < settings.server.keepalive
    assert int(said["client_max_body_size"].removesuffix("m")) * 2**20 >= settings.limits.body_bytes
    assert said["proxy_buffering"] == said["proxy_next_upstream"] == "off"
    assert block.code.count("{") == block.code.count("}")


@dataclass(frozen=True)
class Example:
    page: str
    holds: str
    read_by: str | Callable[[Block], None]
    """A check of this file, or the file that reads it."""


EXAMPLES = (
    Example("README.md", "from openai import", "tests/e2e/test_demo.py"),
    Example("client.md", "from render_tier.client import", "tests/e2e/test_demo.py"),
    Example("deploy.md", "extraMembers:", "tests/deploy/test_deploy_doc.py"),
    Example("deploy.md", "engineClients:", "tests/deploy/test_deploy_doc.py"),
    Example("deploy.md", "vision: true", "tests/deploy/test_deploy_doc.py"),
    Example("deploy.md", "kind: HTTPRoute", "tests/deploy/test_deploy_doc.py"),
    Example("deploy.md", "type: token-producer", "tests/deploy/test_deploy_doc.py"),
    Example("deploy.md", "upstream orchestrator", lets_streams_through),
    Example("engines.md", "[lease]", "tests/vllm/test_engines_doc.py"),
    Example("engines.md", "[declared.engines]", "tests/vllm/test_engines_doc.py"),
    Example("operations.md", "# membership.file", is_a_members_file),
    Example("operations.md", "scrape_configs:", "tests/e2e/test_prometheus.py"),
    Example("parsers.md", "HERMES = ToolFormat(", is_the_table_of_the_code),
    Example("parsers.md", "[[reasoning]]", "tests/render_tier/model/test_parser_plugins.py"),
    Example("parsers.md", "HeaderCallFormat", "tests/render_tier/model/test_parser_plugins.py"),
)
"""Commands are in ``test_commands``, diagrams in ``test_diagrams``; blocks of text are read by people."""

READ = [block for page in PAGES for block in blocks(page) if block.language not in ("mermaid", "sh", "text")]


@pytest.mark.parametrize("block", READ, ids=lambda block: f"{block.page.stem}-{block.code.split()[0]}")
def test_examples(block: Block) -> None:
    [example] = [one for one in EXAMPLES if one.page == block.page.name and one.holds in block.code]
    if isinstance(example.read_by, str):
        assert (ROOT / example.read_by).is_file()
    else:
        example.read_by(block)


def test_no_entry_is_left_over() -> None:
    for example in EXAMPLES:
        assert any(example.page == block.page.name and example.holds in block.code for block in READ), example
