"""What a model's images are to engines that load it in Mistral's own format (`params.json`), which is another
model to them than the one that `config.json` describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from render_tier.model.files import read_json_object
from render_tier.model.mistral_tokenizer import MistralTokenizer

ConfigFormat = Literal["auto", "hf", "mistral"]
MODEL_TYPE = "pixtral"
"""Of Mistral's own format, in `config.json`'s words; no `config.json` of a whole model has it."""


def image_config(
    directory: Path, config: dict[str, Any], tokenizer: MistralTokenizer | None, form: ConfigFormat
) -> dict[str, Any]:
    """``config`` (of config.json) where engines go by that. In Mistral's own format the tokenizer decides how
    images are cut up; without ``vision_config`` the model takes none. ``form``: "auto" is Mistral's own for a
    model that is served with a tokenizer of Mistral's and has a params.json."""
    params = read_json_object(directory / "params.json")
    if form == "hf" or (form == "auto" and (tokenizer is None or params is None)):
        return config
    params = params or {}
    sees = params.get("vision_encoder") or (params.get("multimodal") or {}).get("vision_encoder_args")
    sizes = None if tokenizer is None else tokenizer.image_sizes
    if not sees or sizes is None:
        return {"model_type": MODEL_TYPE}
    return {
        "model_type": MODEL_TYPE,
        "vision_config": {"patch_size": sizes.patch, "image_size": sizes.longest_side},
        "spatial_merge_size": sizes.merged,
    }
