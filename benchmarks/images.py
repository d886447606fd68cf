"""Images per second of a core, and bytes on the wire, of a chat with one image: new ones, one again, and one
again whose data the caller says that it has (`X-Known-Items`, which vLLM's render does not know).

    python -m benchmarks.images [--images N] [--kept]

Qwen2.5-VL's prompts and processor (`tests.support.vision_models`). With `VLLM_ENV` and `TORCHVISION`
(scripts/torchvision_env.sh) vLLM's render is measured beside it, both servers in turn. CPU time is that of
the server's processes; JPEGs are sent as data URLs, each on a connection of its own, or with ``--kept`` one
after the other on a connection that is used again.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import httpx

from benchmarks.measure import cpu_seconds, machine, peak_resident, print_table, ratio
from tests.support import vision_models
from tests.support.image_corpus import PATH, chat, part, text
from tests.support.images import file, picture
from tests.support.processes import BIN, ServerProcess
from tests.vllm import record_images

MODEL = "qwen2_5_vl"
SIZES = ((640, 480), (1280, 960), (1920, 1080))
MODELS = Path(os.environ.get("MODELS_DIR", Path(__file__).resolve().parents[1] / ".cache" / "models"))


def ours(scratch: Path) -> ServerProcess:
    model = vision_models.lay_out(MODEL, MODELS, scratch / MODEL)
    return ServerProcess(
        "render-tier",
        lambda port: [
            *(BIN / "render-tier", "serve", model, "--host", "127.0.0.1", "--port", str(port)),
            *("--tokenizer-engine", "tokenizers"),  # the other one's loading would be measured too
        ],
        log_dir=scratch,
    )


def body(width: int, height: int, seed: int) -> bytes:
    image = file(picture(width, height, seed=seed), "JPEG", quality=80)
    return json.dumps(chat(part(image), text("What is it?"))).encode()


class Measured:
    def __init__(self, server: ServerProcess, *, keeps_connections: bool) -> None:
        self.server = server
        # vLLM closes those that are idle for five seconds, where the next request could meet its close.
        limits = httpx.Limits(max_keepalive_connections=int(keeps_connections), keepalive_expiry=3)
        self.known: str | None = None
        """Of images that the caller has."""
        self.client = httpx.Client(base_url=server.url, timeout=120, trust_env=False, limits=limits)

    def cpu(self, bodies: list[bytes]) -> tuple[float, int]:
        """Seconds a request, and the size of the last reply."""
        before, size = cpu_seconds(self.server.pid), 0
        for one in bodies:
            headers = {"content-type": "application/json"}
            if self.known is not None:
                headers["x-known-items"] = self.known
            response = self.client.post(PATH, content=one, headers=headers)
            response.raise_for_status()
            size = len(response.content)
        if self.known is None:
            self.mm_hash: str = response.json()["features"]["mm_hashes"]["image"][0]
        return (cpu_seconds(self.server.pid) - before) / len(bodies), size


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--images", type=int, default=10)
    options.add_argument("--kept", action="store_true", help="use connections again")
    asked = options.parse_args()
    count = asked.images
    print(machine())
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [stack.enter_context(ours(scratch / "ours"))]
        if os.environ.get("VLLM_ENV") and os.environ.get("TORCHVISION"):
            servers.append(stack.enter_context(record_images.server(MODEL, scratch / "vllm")))
        measured = [Measured(server, keeps_connections=asked.kept) for server in servers]
        rows = []
        for width, height in SIZES:
            new = [body(width, height, seed) for seed in range(count)]
            for each in measured:
                each.cpu([body(width, height, count)])  # what is made once
            again = new[:1] * (4 * count)
            for kind, bodies in (("new", new), ("again", again), ("known", again)):
                if kind == "known":
                    measured[0].known = measured[0].mm_hash[:16]
                figures = [each.cpu(bodies) for each in measured]
                costs = [cost for cost, _ in figures]
                row = [
                    f"{width}x{height}",
                    kind,
                    f"{len(bodies[0]) / 1000:.0f}",
                    *(f"{size / 1000:.0f}" for _, size in figures),
                    *[""] * (2 - len(figures)),
                ]
                row += [f"{costs[0] * 1000:.1f}", f"{1 / costs[0]:.0f}"]
                theirs = [f"{costs[1] * 1000:.1f}", f"{1 / costs[1]:.0f}"] if len(costs) > 1 else ["", ""]
                row += [*theirs, ratio(costs[1], costs[0]) if len(costs) > 1 else ""]
                rows.append(row)
            measured[0].known = None
        heads = ["image", "", "KB in", "KB out", "vLLM KB out", "CPU ms", "images/s a core"]
        heads += ["vLLM CPU ms", "vLLM images/s a core", "ratio"]
        print_table(f"Chat with one image, {'kept' if asked.kept else 'new'} connections", heads, rows)
        for server in servers:
            print(f"{server.name}: at most {peak_resident(server.pid):.0f} MB")


if __name__ == "__main__":
    main()
