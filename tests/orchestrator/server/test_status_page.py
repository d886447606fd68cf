"""``/status`` in a real browser: live numbers that are those of ``/metrics``, and a page that can be read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.orchestrator.conftest import Launch, Stack, until
from tests.support.browser import Page, browsing, chromium

BODY = {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 4}
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

TABLES = """
Object.fromEntries(["members", "queues", "latency"].map((id) => [id,
  [...document.querySelectorAll(`#${id} tbody tr`)].map((row) =>
    [...row.cells].map((cell) => cell.innerText.trim()))]))
"""

FAINT = """
(() => {
  const channels = (color) => (color.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = (color) => {
    const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = channels(color).map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = (element) => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      if (channels(color)[3] !== 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const texts = [...document.querySelectorAll("body *:not(script, style, noscript, option)")].filter(
    (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  return texts.map((element) => {
    const [low, high] = [light(getComputedStyle(element).color), light(paper(element))].sort((a, b) => a - b);
    return [element.textContent.trim().slice(0, 40), (high + 0.05) / (low + 0.05)];
  }).filter(([, contrast]) => contrast < 4.5);
})()
"""
"""Texts whose contrast is below what WCAG asks for (AA)."""


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    program = chromium()
    if program is None:
        pytest.skip("no Chromium is installed (Debian: chromium-headless-shell)")
    async with browsing(program) as opened:
        yield opened


async def shown(page: Page) -> dict[str, list[list[str]]]:
    tables: dict[str, list[list[str]]] = await page.value(TABLES)
    return tables


async def measured(stack: Stack) -> dict[tuple[str, frozenset[str]], float]:
    """Samples of ``/metrics`` by name and label values."""
    families = text_string_to_metric_families((await stack.http.get("/metrics")).text)
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, frozenset(sample.labels.values())): sample.value for sample in samples}


async def check_numbers(page: Page, stack: Stack) -> None:
    """What the page shows now is what a scrape finds now."""
    tables, metrics = await shown(page), await measured(stack)
    members = [row for row in tables["members"] if len(row) == 7]
    assert len(members) == 4
    for role, url, state, _, _, in_flight, leases in members:
        labels = frozenset((role, url))
        assert float(in_flight) == metrics["pd_member_active", labels]
        assert float(leases) == metrics["pd_member_leases", labels]
        assert (state == "in") == bool(metrics["pd_member_admitted", labels])
    for name, active, _, _, waiting in tables["queues"]:
        assert float(active) == metrics["pd_gate_active", frozenset({name})]
        assert float(waiting) == metrics["pd_gate_waiting", frozenset({name})]
    for name, count, *_ in tables["latency"]:
        if name != "inter token":
            assert float(count) == metrics["pd_hop_seconds_count", frozenset({name.replace(" ", "_")})]
    about = await page.value("document.getElementById('about').textContent")
    assert f" {metrics['pd_in_flight', frozenset()]:.0f} in flight" in about


async def test_the_page_shows_live_what_the_metrics_say(launch: Launch, page: Page) -> None:
    async with launch(decode=2) as stack:
        await a_member_differs(stack)
        for _ in range(5):
            assert (await stack.http.post("/v1/chat/completions", json=BODY)).status_code == 200
        stack.decode[0].hold.clear()
        asked = asyncio.create_task(stack.http.post("/v1/chat/completions", json=BODY | {"stream": True}))
        await stack.decode[0].waiting.wait()
        await page.open(f"{stack.url}/status")
        await page.until("document.querySelectorAll('#latency tbody tr').length > 0")
        await check_numbers(page, stack)
        tables = await shown(page)
        assert [row[5] for row in tables["members"] if len(row) == 7] == ["0", "0", "1", "0"]
        assert any(row[0] == "total" and row[1] == "5" for row in tables["latency"])
        [kept_out] = [row for row in tables["members"] if "Kept out" in row[-1]]
        assert "kv_role is kv_producer, a decode member needs kv_consumer" in kept_out[-1]
        points = await page.value("document.querySelector('polyline').getAttribute('points')")
        assert len(points.split()) == 5
        stack.decode[0].hold.set()
        assert (await asked).status_code == 200
        # No reload: it asks by itself.
        await page.until("document.getElementById('about').textContent.includes(' 0 in flight')")
        await check_numbers(page, stack)
        await stack.http.post("/admin/drain", content=b"")
        await page.until("document.getElementById('verdict').textContent === 'draining'")
        assert page.complaints == [], "nothing failed, and its policy had nothing to forbid"
        stack.decode[0].held.clear()


async def test_the_page_can_be_read_in_light_in_dark_and_when_narrow(launch: Launch, page: Page) -> None:
    async with launch(decode=2) as stack:
        await a_member_differs(stack)
        await stack.http.post("/v1/chat/completions", json=BODY)
        await stack.http.post("/admin/drain", json={"member": stack.decode[0].url})
        await page.open(f"{stack.url}/status")
        await page.until("document.querySelectorAll('#latency tbody tr').length > 0")
        papers = []
        for scheme in ("light", "dark"):
            await page.look(scheme=scheme)
            assert await page.value(FAINT) == []
            papers.append(await page.value("getComputedStyle(document.body).backgroundColor"))
        assert len(set(papers)) == 2
        await page.look(width=400)
        assert await page.value("document.documentElement.scrollWidth <= innerWidth")
        stack.decode[0].held.clear()


async def test_a_browser_shows_the_admin_key_as_a_password(launch: Launch, page: Page) -> None:
    async with launch(settings={"server": {"admin_key": "s3cret key"}}) as stack:
        await page.open(stack.url.replace("//", "//operator:s3cret%20key@") + "/status")
        await page.until("document.querySelectorAll('#members tbody tr').length > 0")
        assert await page.value("document.getElementById('verdict').textContent") == "ready"
        assert page.complaints == []


async def test_a_page_that_gets_no_answer_says_so(launch: Launch, page: Page) -> None:
    async with launch() as stack:
        await page.open(f"{stack.url}/status")
        await page.until("document.querySelectorAll('#members tbody tr').length > 0")
    await page.until("document.body.classList.contains('stale')")
    assert "no answer" in await page.value("document.getElementById('fresh').textContent")


async def test_what_a_member_says_of_itself_is_text(launch: Launch, page: Page) -> None:
    async with launch(settings={"declared": {"engines": {"model": "<img src=x onerror=alert(1)>"}}}) as stack:
        await page.open(f"{stack.url}/status")
        await page.until("document.querySelectorAll('#members details').length > 0")
        assert "<img src=x" in await page.value("document.querySelector('#members code').textContent")
        assert await page.value("document.images.length") == 0


async def a_member_differs(stack: Stack) -> None:
    """The second decode engine comes back as a prefill engine."""
    tier = stack.decode[1]
    tier.facts = {"kv_transfer_config": {"kv_role": "kv_producer"}}
    await tier.kill()
    await stack.services.check_health()
    await tier.revive()
    await stack.services.check_health()
    await until(lambda: bool(list(stack.services.decode_pool.members)[1].differences))


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (BROWSER, "text/html; charset=utf-8"),
        ("*/*", "application/json"),
        (None, "application/json"),
        ("application/json", "application/json"),
        ("application/json, text/html", "application/json"),
    ],
)
async def test_browsers_get_the_page_and_others_the_object(
    launch: Launch, accept: str | None, kind: str
) -> None:
    async with launch() as stack:
        headers: dict[str, Any] = {} if accept is None else {"Accept": accept}
        reply = await stack.http.get("/status", headers=headers)
        assert reply.headers["content-type"] == kind
        assert reply.headers["vary"] == "Accept"
        if kind.startswith("text/html"):
            policy = reply.headers["content-security-policy"]
            assert policy.startswith("default-src 'none';")
            assert "unsafe" not in policy
            assert stack.render.url not in reply.text, "it holds no data"


async def test_a_password_opens_the_status_and_nothing_that_changes_something(launch: Launch) -> None:
    """A browser sends a password along also with what another site's page makes it do."""
    async with launch(settings={"server": {"admin_key": "s3cret"}}) as stack:
        right, wrong = httpx.BasicAuth("anybody", "s3cret"), httpx.BasicAuth("anybody", "s3cre")
        for headers in ({"Accept": BROWSER}, {}):
            refused = await stack.http.get("/status", headers=headers)
            assert refused.status_code == 401
            assert "Basic realm=" in refused.headers["www-authenticate"]
            assert (await stack.http.get("/status", headers=headers, auth=wrong)).status_code == 401
            assert (await stack.http.get("/status", headers=headers, auth=right)).status_code == 200
        refused = await stack.http.post("/admin/drain", auth=right)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert not stack.services.draining
        for bad in ("Basic", "Basic ####", "Basic czNjcmV0", "Basic " + "A" * 5000):
            assert (await stack.http.get("/status", headers={"Authorization": bad})).status_code == 401
