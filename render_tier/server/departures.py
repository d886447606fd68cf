"""Work that is given up when the client it is for has left.

A server tells of that in ``receive`` alone, once the body is read; so this is for work that may take long,
and not for what is over before anybody could leave.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive


class ClientGone(Exception):
    """The client closed the connection before it was answered."""


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Of a request whose body is read. What runs within is cancelled when the client leaves: ClientGone."""
    working = asyncio.current_task()
    assert working is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        if (await receive())["type"] == "http.disconnect":
            gone = True
            working.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if gone and working.uncancel() == 0:
            raise ClientGone from None
        raise
    finally:
        watching.cancel()
