"""Members from a file that is watched.

Its contents are read again and again rather than its directory watched for events: that sees every way in
which a file is replaced (renames, a ConfigMap's links, network file systems), and the file is small.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.core.membership import MembershipError, from_file
from orchestrator.pool.sources.source import Failed, Tell


class FileSource:
    """``parse`` makes a mapping of the file's text, or raises ``ValueError``. ``interval``: seconds."""

    def __init__(self, path: Path, parse: Callable[[Path, str], Mapping[str, Any]], interval: float) -> None:
        self.name = f"file {path}"
        self._path = path
        self._parse = parse
        self._interval = interval

    async def follow(self, tell: Tell, failed: Failed) -> None:
        seen: str | None = None
        while True:
            try:
                text = await asyncio.to_thread(self._path.read_text, encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                seen = None
                failed(str(error))
            else:
                if text != seen:
                    seen = text
                    try:
                        tell(from_file(self._parse(self._path, text)))
                    except (MembershipError, ValueError) as error:
                        failed(str(error))
            await asyncio.sleep(self._interval)
