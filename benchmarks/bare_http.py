"""What HTTP alone costs: a server with the render tier's options that reads a request and answers with as
many bytes as its ``X-Reply-Bytes`` says.

    python -m benchmarks.bare_http PORT
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvicorn
from starlette.types import Receive, Scope, Send

from render_tier.server.processes import server_options
from render_tier.settings import Settings
from tests.support.processes import ServerProcess

REPLY_BYTES = "x-reply-bytes"


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    size = next((value for name, value in scope["headers"] if name == REPLY_BYTES.encode()), b"0")
    headers = [(b"content-type", b"application/json"), (b"content-length", size)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b" " * int(size)})


def bare_server(log_dir: Path) -> ServerProcess:
    """Not started yet."""
    return ServerProcess(
        "bare-http",
        lambda port: [sys.executable, "-m", "benchmarks.bare_http", str(port)],
        log_dir=log_dir,
        ready_path="/",
    )


if __name__ == "__main__":
    options = server_options(Settings(model="none")) | {"lifespan": "off"}
    uvicorn.run(answer, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", **options)
