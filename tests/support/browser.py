"""A real headless Chromium, one page of it, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from asyncio.subprocess import DEVNULL
from base64 import b64decode
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import aiohttp

PROGRAMS: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
OPTIONS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--remote-debugging-port=0",
)  # fmt: skip
COMPLAINTS: Final = ("Runtime.exceptionThrown", "Log.entryAdded")
"""Events of a page in which something went wrong: a script failed, or a policy forbade something."""


def chromium() -> str | None:
    """Where one is installed."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class BrowserFailed(AssertionError):
    """What the browser answered instead."""


class Page:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = count(1)
        self.complaints: list[dict[str, Any]] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message: dict[str, Any] = await self._socket.receive_json()
            if message.get("method") in COMPLAINTS:
                self.complaints.append(message["params"])
            if message.get("id") == number:
                if "error" in message:
                    raise BrowserFailed(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result

    async def open(self, url: str) -> None:
        reply = await self.call("Page.navigate", url=url)
        if "errorText" in reply:
            raise BrowserFailed(f"{url}: {reply['errorText']}")

    async def value(self, expression: str) -> Any:
        """Of JavaScript in the page, as JSON has it."""
        reply = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in reply:
            raise BrowserFailed(f"{expression}: {reply['exceptionDetails']}")
        return reply["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait for it to be true; a test's own timeout is the bound."""
        while not await self.value(expression):
            await asyncio.sleep(0.02)

    async def look(self, *, width: int = 1280, height: int = 800, scheme: str = "light") -> None:
        """Size of the window in pixels, and whether the user prefers ``light`` or ``dark``."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        await self.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    async def screenshot(self) -> bytes:
        """A PNG of the whole page."""
        return b64decode((await self.call("Page.captureScreenshot", captureBeyondViewport=True))["data"])


@contextlib.asynccontextmanager
async def browsing(program: str) -> AsyncIterator[Page]:
    """An empty page of a browser with a profile of its own, which is gone after."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            program, *OPTIONS, f"--user-data-dir={profile}", "about:blank",
            stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            port = await _port(process, Path(profile))
            async with aiohttp.ClientSession() as session:
                async with session.put(f"http://127.0.0.1:{port}/json/new") as reply:
                    url = (await reply.json())["webSocketDebuggerUrl"]
                async with session.ws_connect(url, max_msg_size=0) as socket:
                    page = Page(socket)
                    for domain in ("Page", "Runtime", "Log"):
                        await page.call(f"{domain}.enable")
                    yield page
        finally:
            # What is started may be a script that runs the browser, which has processes of its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _port(process: asyncio.subprocess.Process, profile: Path) -> int:
    """Where the browser listens, which it writes when it does."""
    while not (lines := await asyncio.to_thread(_lines, profile / "DevToolsActivePort")):
        if process.returncode is not None:
            raise BrowserFailed(f"the browser ended with {process.returncode}")
        await asyncio.sleep(0.02)
    return int(lines[0])


def _lines(path: Path) -> list[str]:
    """Of a file; none while it is not there."""
    try:
        return path.read_text().splitlines()
    except FileNotFoundError:
        return []
