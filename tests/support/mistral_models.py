"""Models of Mistral's own format that are shown images, without weights: real tokenizers, tiny parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PARAMS: Mapping[str, Any] = {
    "dim": 128,
    "n_layers": 2,
    "head_dim": 64,
    "hidden_dim": 128,
    "n_heads": 2,
    "n_kv_heads": 1,
    "rope_theta": 1e6,
    "norm_eps": 1e-5,
    "vocab_size": 131072,
    "max_position_embeddings": 8192,
    "max_seq_len": 8192,
    "dtype": "float32",
}
VISION: Mapping[str, Any] = {
    "hidden_size": 64,
    "num_channels": 3,
    "image_size": 1024,
    "patch_size": 16,
    "rope_theta": 1e4,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "image_token_id": 10,
    "adapter_bias": True,
}
MERGING: Mapping[str, Any] = {"image_patch_size": 14, "max_image_size": 1540, "spatial_merge_size": 2}
"""Of Mistral Small 3.1 and later."""


def lay_out(tokenizer: Path, target: Path, **image: Any) -> Path:
    """``tokenizer``: the directory of a tekken.json. ``image``: how that is to cut up images."""
    target.mkdir(parents=True)
    file = tokenizer / "tekken.json"
    if image:
        changed = json.loads(file.read_text()) | {"image": image}
        (target / "tekken.json").write_text(json.dumps(changed))
    else:
        (target / "tekken.json").symlink_to(file.resolve())
    (target / "params.json").write_text(json.dumps({**PARAMS, "vision_encoder": VISION}))
    return target
