"""Run by vLLM's Python, with torchvision beside it: what vLLM's processors make of the prompts of
`tests.support.tiled_models`.

Reads `{NAME: DIRECTORY}`, the models' directories. Writes the libraries' versions and, by name, `counts`: how
many embeddings an image of each of `sizes()` has, and `prompts`: of each of `PROMPTS` the IDs, the places of
embeddings and what `read_item` says of the encoded items. For models whose images' places are not tokens
`texts`, of each of `TEXTS` the IDs.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torchvision
import transformers
from PIL import Image

import vllm
from tests.support.image_corpus import read_item
from tests.support.pixel_cases import image
from tests.support.tiled_models import MODELS, SHOWN, TEXTS, prompt, prompts, sizes, written
from vllm.config import ModelConfig
from vllm.entrypoints.scale_out.token_in_token_out.mm_serde import encode_mm_kwargs_item
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing.context import TimingContext
from vllm.multimodal.processing.inputs import ProcessorInputs


def of_model(name: str, directory: str) -> dict[str, Any]:
    overrides = dict(MODELS[name].overrides)
    config = ModelConfig(
        model=directory, enforce_eager=True, mm_processor_kwargs=overrides, trust_remote_code=True
    )
    processor = MULTIMODAL_REGISTRY.create_processor(config)
    found = {
        "counts": [count(name, processor.info, *size) for size in sizes()],
        "prompts": [of_prompt(name, processor, each) for each in prompts(name)],
    }
    if MODELS[name].spelled:
        found["texts"] = [of_text(processor, text) for text in TEXTS]
    return found


def count(name: str, info: Any, width: int, height: int) -> int | None:
    """None for an image that the model's processor refuses."""
    more = {}
    if name in ASKED:
        more = {"processor": info.get_hf_processor(), "mm_kwargs": ASKED[name]}
    if "internvl_chat" in name:
        more = {"processor": info.get_hf_processor()}
    if "qwen" in name:
        more = {"image_processor": info.get_image_processor(), "mm_kwargs": {}}
    try:
        return int(info.get_num_image_tokens(image_width=width, image_height=height, **more))
    except ValueError:
        return None


TILES = {"crop_to_patches": True}
"""What InternVL's processor asks its image processor for."""
ASKED: dict[str, dict[str, Any]] = {"internvl": TILES, "internvl_small": TILES, "gemma3_crops": {}}


def of_text(processor: Any, text: str) -> list[int]:
    """With as many images as it has places."""
    ids = processor.info.get_tokenizer().encode(written(text), add_special_tokens=False)
    return applied(processor, ids, (SHOWN,) * text.count("<image>"))["prompt_token_ids"]


def applied(processor: Any, ids: list[int], given: tuple[tuple[int, int], ...]) -> Any:
    images = [Image.fromarray(image("noise", *size)) for size in given]
    items = processor.info.parse_mm_data({"image": images})
    return processor.apply(ProcessorInputs(ids, items), TimingContext(enabled=False))


def of_prompt(name: str, processor: Any, given: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    made = applied(processor, prompt(name, len(given)), given)
    return {
        "ids": made["prompt_token_ids"],
        "ranges": [[where.offset, where.length] for where in made["mm_placeholders"]["image"]],
        "embedded": [embedded(where) for where in made["mm_placeholders"]["image"]],
        "items": [read_item(encode_mm_kwargs_item(item)) for item in made["mm_kwargs"]["image"]],
    }


def embedded(where: Any) -> list[list[int]]:
    """[first, last] of each run of a place's tokens that embeddings replace."""
    return [list(run) for run in where.extract_embeds_range()]


torch.set_num_threads(1)
json.dump(
    {
        "made_by": {
            "vllm": vllm.__version__,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
        },
        "models": {name: of_model(name, directory) for name, directory in json.load(sys.stdin).items()},
    },
    sys.stdout,
)
