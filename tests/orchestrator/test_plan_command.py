"""``pd-orchestrator plan``: what it takes, what it prints, and what it says when it cannot."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import structlog
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.plan_command import read_trace
from tests.orchestrator.conftest import Launch

RATES = ("--prefill-rate", "20000", "--step-ms", "8", "--sequence-ms", "0.2", "--context-ms", "0.02")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    shape = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
    file.write_text(json.dumps(shape | {"hidden_size": 4096, "torch_dtype": "bfloat16"}))
    return file


def run(config: Path, *words: str | Path) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["plan", "--config", str(config), *RATES, *map(str, words)])
    return done.exit_code, done.stdout, done.stderr


def test_a_plan_from_a_distribution(config: Path) -> None:
    words = ("--rate", "30", "--prompt", "1500", "--output", "250", "--itl-ms", "25")
    code, text, _ = run(config, *words)
    assert code == 0
    rows = dict(line.split(maxsplit=1) for line in text.splitlines() if not line.startswith("P :"))
    assert rows["workload"].startswith(
        "30 requests/s; on average 1499 prompt tokens, 0 of them cached, 250 output"
    )
    assert rows["KV"].startswith("128 KiB a token")
    _, as_json, _ = run(
        config, "--rate", "30", "--prompt", "1500", "--output", "250", "--itl-ms", "25", "--json"
    )
    plan = json.loads(as_json)
    assert rows["prefill"].startswith(f"{plan['prefill']['engines']} engines")
    assert f"P : D     {plan['prefill']['engines']} : {plan['decode']['engines']}" in text
    assert plan["fabric_bytes_per_second"] == pytest.approx(30 * plan["kv_bytes_per_request"])
    assert plan["decode"]["gap"] <= 0.025


def test_a_plan_from_a_trace_has_its_rate_and_its_cached_tokens(config: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [{"prompt": 2000, "output": 100, "cached": 1500, "at": number / 20} for number in range(200)]
    trace.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    code, text, _ = run(config, "--trace", trace, "--json")
    assert code == 0
    plan = json.loads(text)
    assert plan["requests_per_second"] == pytest.approx(20)
    assert plan["arrival_variation"] == pytest.approx(0)
    assert plan["prefill"]["utilisation"] * plan["prefill"]["engines"] == pytest.approx(20 * 500 / 20000)
    faster = json.loads(run(config, "--trace", trace, "--rate", "200", "--json")[1])
    assert faster["prefill"]["engines"] > plan["prefill"]["engines"]


async def test_the_orchestrators_log_is_a_trace(launch: Launch, tmp_path: Path) -> None:
    """As its requests are logged, written as its log writes them."""
    body = {"model": "m", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 5}
    async with launch() as stack:
        with structlog.testing.capture_logs(processors=[structlog.processors.TimeStamper("iso")]) as logged:
            for _ in range(3):
                assert (await stack.http.post("/v1/chat/completions", json=body)).status_code == 200
            assert (await stack.http.post("/v1/chat/completions", json={})).status_code == 400
            await stack.settled()
    file = tmp_path / "log.jsonl"
    file.write_text("".join(json.dumps(entry, default=str) + "\n" for entry in logged))
    asked = read_trace(file)
    assert [(one.prompt, one.output) for one in asked] == [(3, 5)] * 3
    assert asked[0].at is not None
    assert asked[0].at < asked[2].at  # type: ignore[operator]


def test_the_report_is_one_page_that_loads_nothing(config: Path, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    code, _, _ = run(config, "--rate", "30", "--kv-gib", "40", "--html", page)
    assert code == 0
    text = page.read_text()
    found = _Seen()
    found.feed(text)
    assert found.tags.count("svg") == 6
    assert not {"script", "link", "img", "iframe"} & set(found.tags)
    assert "http" not in text
    for figure in text.split("<svg")[1:]:
        drawing = ElementTree.fromstring("<svg" + figure.partition("</svg>")[0] + "</svg>")
        places = [float(one.get(key, 0)) for one in drawing.iter() for key in ("cx", "cy", "x1")]
        assert all(-20 <= number <= 480 for number in places)
        assert list(drawing)


class _Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"prompt": 0, "output": 1}', "line 2"),
        ('{"prompt": 5, "output": 1, "cached": 6}', "more cached than prompt"),
        ('{"prompt": 5, "output": 1, "tokens": 6}', "tokens"),
        ("no json", "line 2"),
    ],
)
def test_a_bad_line_of_a_trace_is_named(config: Path, tmp_path: Path, line: str, named: str) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(f'{{"prompt": 5, "output": 1}}\n{line}\n')
    code, _, complaint = run(config, "--trace", trace, "--rate", "1")
    assert code == 2
    assert named in complaint
    assert "Traceback" not in complaint


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        ((), 2, "name the rate"),
        (("--rate", "1", "--trace", "absent.jsonl"), 2, "absent.jsonl"),
        (("--rate", "1", "--kv-dtype", "int3"), 2, "int3"),
        (("--rate", "1", "--itl-ms", "5"), 3, "one sequence alone"),
    ],
)
def test_what_cannot_be_planned_is_said(config: Path, words: tuple[str, ...], code: int, named: str) -> None:
    done, _, complaint = run(config, *words)
    assert done == code
    assert named in complaint
