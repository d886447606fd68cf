"""Chat requests with images, whose answers by `vllm launch render` are in `tests/conformance/data/images`
(recorded by `tests/vllm/record_images.py`)."""

from __future__ import annotations

import hashlib
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tests.support.images import data_url, every_kind, file, picture

DATA = Path(__file__).resolve().parent.parent / "conformance" / "data" / "images"
PATH = "/v1/chat/completions/render"
Json = dict[str, Any]
SIZES = ((28, 28), (56, 56), (57, 113), (300, 200), (640, 480), (1000, 31), (30, 900), (1280, 720))


def part(data: bytes, **fields: Any) -> Json:
    return {"type": "image_url", "image_url": {"url": data_url(data)}, **fields}


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def chat(*parts: Any, **fields: Any) -> Json:
    """One message of these parts."""
    return {"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 8, **fields}


def corpus() -> dict[str, Json]:
    """Requests by name."""
    small, other = file(picture(64, 48)), file(picture(90, 60, seed=5))
    kinds = {f"kind {name}": chat(text("What is this?"), part(data)) for name, data in every_kind().items()}
    sizes = {
        f"size {width}x{height}": chat(
            part(file(picture(width, height, seed=width), "JPEG")), text("Describe it.")
        )
        for width, height in SIZES
    }
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [part(small), text("And this one?"), part(other)]},
        {"role": "assistant", "content": "A gradient."},
        {"role": "user", "content": "Which is larger?"},
        {"role": "user", "content": [text("\n\nOnce more:\n"), part(small), text("\n\nWell?")]},
    ]
    long = text("word " * 280)
    return {
        **kinds,
        **sizes,
        "image alone": chat(part(small)),
        "image first": chat(part(small), text("What is it?")),
        "image last": chat(text("What is it?"), part(small)),
        "line breaks around": chat(text("See:\n"), part(small), text("\nSo?")),
        "more line breaks around": chat(text("See:\n\n"), part(small), text("\n\nSo?")),
        "two in a row": chat(part(small), part(other), text("Compare.")),
        "the same twice": chat(part(small), text("and"), part(small)),
        "three": chat(part(small), part(other), part(file(picture(33, 99, seed=3)))),
        "several messages": {"messages": turns, "max_tokens": 8},
        "uuid": chat(part(small, uuid="mine"), text("?")),
        "uuid of one of two": chat(part(small), part(other, uuid="yours")),
        "no payload": chat(part(small), text("?"), mm_payload="none"),
        "no payload by its old name": chat(part(small), text("?"), return_mm_kwargs=False),
        "input_image": chat(
            {"type": "input_image", "image_url": data_url(small), "detail": "auto"}, text("?")
        ),
        "no type": chat({"image_url": data_url(small)}, text("?")),
        "parts with strings": chat("What is", part(small), "this?"),
        "offsets": chat(part(small), text("?"), return_token_offsets=True),
        "cut before an image": chat(long, part(small), text("?"), truncate_prompt_tokens=290),
        "cut behind an image": chat(
            part(small), long, truncate_prompt_tokens=305, truncation_side="right"
        ),
        "cut into an image": chat(part(small), long, truncate_prompt_tokens=289),
        "cut through all but an image's place": chat(part(small), text("?"), truncate_prompt_tokens=9),
        "no images": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8},
        "not an image": chat(part(b"GIF89a nonsense")),
        "cut off": chat(part(every_kind()["rgb.jpeg"][:500])),
        "not base64": chat({"type": "image_url", "image_url": {"url": "data:image/png;base64,a"}}),
        "other scheme": chat({"type": "image_url", "image_url": {"url": "ftp://host/x.png"}}),
        "kwargs that are not trusted": chat(part(small), mm_processor_kwargs={"max_pixels": 3136}),
    }  # fmt: skip


def trusted() -> dict[str, Json]:
    """Requests that say how their images are processed and read, by name."""
    large, small = file(picture(640, 480, seed=9)), file(picture(64, 48))
    clear = every_kind()["rgba.png"]
    colored = {"image": {"rgba_background_color": [255, 0, 128]}}
    few, many = {"max_pixels": 50176}, {"min_pixels": 50176}
    return {
        "fewer pixels": chat(part(large), text("?"), mm_processor_kwargs=few),
        "more pixels": chat(part(small), text("?"), mm_processor_kwargs=many),
        "of two images": chat(part(small), part(large), mm_processor_kwargs={"max_pixels": 6272}),
        "least and most": chat(part(large), mm_processor_kwargs={"min_pixels": 3136, "max_pixels": 6272}),
        "most and least": chat(part(large), mm_processor_kwargs={"max_pixels": 6272, "min_pixels": 3136}),
        "size": chat(
            part(large), mm_processor_kwargs={"size": {"shortest_edge": 3136, "longest_edge": 12544}}
        ),
        "uuid": chat(part(large, uuid="mine"), mm_processor_kwargs=few),
        "uuid and color": chat(part(clear, uuid="mine"), media_io_kwargs=colored),
        "color": chat(part(clear), text("?"), media_io_kwargs=colored),
        "color of an image that is not transparent": chat(part(small), media_io_kwargs=colored),
        "color and mode": chat(
            part(clear), media_io_kwargs={"image": {"image_mode": "RGB", **colored["image"]}}
        ),
        "nothing of images": chat(part(clear), mm_processor_kwargs={}, media_io_kwargs={"image": {}}),
        "everything": chat(part(clear), part(large), mm_processor_kwargs=few, media_io_kwargs=colored),
    }


def comparable(status: int, answer: Json) -> Json:
    """What both servers should give: IDs, and of the features all but the places of items in their batch."""
    if status != 200:
        return {"status": status, "type": answer["error"]["type"]}
    ids = answer["token_ids"]
    features = answer.get("features")
    return {
        "status": status,
        "length": len(ids),
        "ids": hashlib.sha256(msgspec.json.encode(ids)).hexdigest(),
        "token_offsets": answer.get("token_offsets"),
        "features": None
        if features is None
        else {
            "mm_hashes": features["mm_hashes"],
            "mm_placeholders": features["mm_placeholders"],
            "kwargs_data": _items(features["kwargs_data"]),
            "mm_metadata": _items(features["mm_metadata"]),
        },
    }


def _items(given: Mapping[str, list[str | None]] | None) -> Json | None:
    if given is None:
        return None
    return {
        name: [None if item is None else read_item(item) for item in items] for name, items in given.items()
    }


def read_item(encoded: str) -> Json:
    """Each field's type, shape, digest of its bytes, and how items are laid together."""
    decoded = msgspec.msgpack.decode(b64decode(encoded), ext_hook=lambda code, data: (code, bytes(data)))
    fields = {}
    for name, field in decoded.items():
        kind, shape, (code, raw) = field["data"]
        layout, options = field["field"]
        fields[name] = {
            "tensor": [kind, shape, code, hashlib.sha256(raw).hexdigest()],
            "layout": [layout, {key: value for key, value in options.items() if key != "slices"}],
        }
    return fields
