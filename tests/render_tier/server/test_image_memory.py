"""A real server's memory while many large images come at once."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.support import vision_models
from tests.support.image_corpus import PATH, chat, part, text
from tests.support.images import file, picture
from tests.support.processes import render_tier_server

SIZE = (2400, 1800)
DECODED = SIZE[0] * SIZE[1] * 3
AT_ONCE = 50
MIB = 1 << 20


def peak(pid: int) -> int:
    """Most bytes that were ever resident."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def test_fifty_large_images_at_once_take_the_memory_of_a_few(tmp_path: Path, qwen3_dir: Path) -> None:
    vision_models.lay_out("qwen2_5_vl", qwen3_dir.parent, tmp_path / "model")
    large = file(picture(48, 36).resize(SIZE), "JPEG", quality=60)
    server = render_tier_server(
        *(tmp_path / "model", "--tokenizer-engine", "tokenizers", "--image-workers", "1"),
        *("--image-cache-bytes", "0", "--image-file-memory-bytes", str(4 * MIB)),
        *("--image-item-memory-bytes", str(16 * MIB), "--max-queue-seconds", "300"),
        *("--mm-processor-kwargs", json.dumps({"max_pixels": 200_704})),
        log_dir=tmp_path,
    )
    with (
        server,
        httpx.Client(base_url=server.url, timeout=300, trust_env=False) as client,
        ThreadPoolExecutor(AT_ONCE) as threads,
    ):

        def ask(*parts: Any) -> int:
            return client.post(PATH, json=chat(*parts, text("?"))).status_code

        def show(number: int) -> int:
            """An image that is none of the others: what follows its end makes its file another one."""
            return ask(part(large + bytes([number])))

        assert show(AT_ONCE) == 200
        before = peak(server.pid)
        answers = [threads.submit(show, number) for number in range(AT_ONCE)]
        assert ask() == 200
        assert [answer.result() for answer in answers] == [200] * AT_ONCE
        grown = peak(server.pid) - before
    assert grown < 10 * DECODED < AT_ONCE * DECODED / 4, grown
