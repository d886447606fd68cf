"""Run by vLLM's Python: what vLLM makes of images' files and of items that were encoded elsewhere.

Reads `{"files": {NAME: base64}, "items": {NAME: base64}, "factors": [...]}` and writes, for each file, its
hash and its pixels; for each item its fields as tensors and what vLLM encodes them to; and the hashes of the
first file, and of a client's name for it, with what requests say of how images are read and processed.
"""

from __future__ import annotations

import hashlib
import json
import sys
from base64 import b64decode
from typing import Any

import numpy as np
import torch

from vllm.entrypoints.scale_out.token_in_token_out.mm_serde import (
    decode_mm_kwargs_item,
    encode_mm_kwargs_item,
)
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.media.image import ImageMediaIO


def of_file(data: bytes) -> dict[str, Any]:
    loaded = ImageMediaIO().load_bytes(data)
    pixels = np.asarray(loaded.media)
    return {
        "hash": MultiModalHasher.hash_kwargs("blake3", model_id="m", image=loaded),
        "shape": pixels.shape,
        "pixels": hashlib.sha256(pixels.tobytes()).hexdigest(),
    }


def of_item(encoded: str) -> dict[str, Any]:
    item = decode_mm_kwargs_item(encoded)
    fields = {}
    for name, element in item.items():
        tensor = element.data
        raw = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        fields[name] = {
            "type": str(tensor.dtype),
            "shape": list(tensor.shape),
            "bytes": hashlib.sha256(raw).hexdigest(),
            "layout": type(element.field).__name__,
            "keep_on_cpu": element.field.keep_on_cpu,
        }
    return {"fields": fields, "encoded": encode_mm_kwargs_item(item)}


def of_factors(data: bytes, factors: dict[str, Any]) -> dict[str, str]:
    return {
        what: MultiModalHasher.hash_kwargs("blake3", model_id="m", image=image, **factors)
        for what, image in (("file", ImageMediaIO().load_bytes(data)), ("name", "mine"))
    }


given = json.load(sys.stdin)
first = b64decode(next(iter(given["files"].values())))
json.dump(
    {
        "files": {name: of_file(b64decode(data)) for name, data in given["files"].items()},
        "items": {name: of_item(item) for name, item in given["items"].items()},
        "factors": [of_factors(first, factors) for factors in given["factors"]],
    },
    sys.stdout,
)
