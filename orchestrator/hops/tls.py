"""TLS towards members: whom to trust, and what to show to members that ask who we are."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final


class Tls:
    """``ca``: PEM file of the authorities that members' certificates are of, the system's when None.
    ``certificate`` with its chain and ``key``: our own, PEM files."""

    def __init__(
        self, ca: Path | None = None, certificate: Path | None = None, key: Path | None = None
    ) -> None:
        self._ca = ca
        self._certificate = certificate
        self._key = key
        self._context: ssl.SSLContext | None = None

    async def context(self) -> ssl.SSLContext:
        """Read once. Raises ``OSError`` for files that cannot be read."""
        if self._context is None:
            self._context = await asyncio.to_thread(self.load)
        return self._context

    def load(self) -> ssl.SSLContext:
        """The same, in a thread of the caller's."""
        context = ssl.create_default_context(cafile=self._ca)
        if self._certificate is not None:
            context.load_cert_chain(self._certificate, self._key)
        return context


SYSTEM_TLS: Final = Tls()
