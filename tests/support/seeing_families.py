"""A tiny model of each family that is shown images, for real engines, which draw its weights
(`tests.vllm.drawn_weights`).

Configuration files are those that prompts and pixels are compared with, made small. The tokenizer has a token
for each byte and those of all families: to load a real one takes an engine longer than all the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.support import internvl_chat, tiled_models
from tests.support.pixel_cases import MODELS as PIXELS
from tests.support.vision_models import (
    GEMMA3,
    GEMMA3_PREPROCESSOR,
    GEMMA3_TEMPLATE,
    QWEN2_5_VL,
    QWEN_PREPROCESSOR,
    QWEN_TEMPLATE,
)

Json = Mapping[str, Any]

SPECIAL = (
    *("<bos>", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    *("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
    *("<image>", "<img>", "</img>", "<video>", "<IMG_CONTEXT>", *tiled_models.LINE_TOKENS),
)
LINES = ("\n", "\n\n", "\n\n\n", "\n\n\n\n")
"""Tokens of Gemma 3's, which an image's line breaks make one of with those around it."""
IDS = {token: number for number, token in enumerate((*SPECIAL, *LINES), 256)}
VOCABULARY = 320

TEXT: Json = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,  # one that vLLM's attention on a CPU has
    "max_position_embeddings": 32768,
    "vocab_size": VOCABULARY,
}
TOWER: Json = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1}
COMMON: Json = {"torch_dtype": "float32", "tie_word_embeddings": False, "eos_token_id": IDS["<|im_end|>"]}
QWEN_IDS: Json = {
    "vision_start_token_id": IDS["<|vision_start|>"],
    "vision_end_token_id": IDS["<|vision_end|>"],
    "image_token_id": IDS["<|image_pad|>"],
    "video_token_id": IDS["<|video_pad|>"],
}


@dataclass(frozen=True)
class SeeingModel:
    config: Json
    preprocessor: Json
    template: str
    processor: Json = field(default_factory=dict)
    named_tokens: Json = field(default_factory=dict)
    """In tokenizer_config.json."""
    overrides: Json = field(default_factory=dict)
    """The operator's `mm_processor_kwargs`."""
    spelled: bool = False
    """Whether its tokenizer has no token for the place of an image, or of a video."""


def _qwen2_5_vl() -> SeeingModel:
    vision = {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 1, "out_hidden_size": 128}
    config = {
        **{name: value for name, value in QWEN2_5_VL.items() if not name.endswith("token_id")},
        **TEXT,
        "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
        "vision_config": {**QWEN2_5_VL["vision_config"], **vision},
        **QWEN_IDS,
    }
    return SeeingModel(config, QWEN_PREPROCESSOR, QWEN_TEMPLATE)


def _qwen3_vl() -> SeeingModel:
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "text_config": {
            **TEXT,
            "model_type": "qwen3_vl_text",
            "rope_scaling": {
                "mrope_interleaved": True,
                "mrope_section": [12, 10, 10],
                "rope_type": "default",
            },
        },
        "vision_config": {
            "model_type": "qwen3_vl",
            "deepstack_visual_indexes": [0],
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_heads": 1,
            "num_position_embeddings": 2304,
            "out_hidden_size": TEXT["hidden_size"],
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        **QWEN_IDS,
    }
    preprocessor = {**PIXELS["qwen3_vl"].preprocessor, "processor_class": "Qwen3VLProcessor"}
    return SeeingModel(config, preprocessor, QWEN_TEMPLATE)


def _gemma3() -> SeeingModel:
    config = {
        **GEMMA3,
        "boi_token_index": IDS["<start_of_image>"],
        "eoi_token_index": IDS["<end_of_image>"],
        "image_token_index": IDS["<image_soft_token>"],
        "text_config": {**GEMMA3["text_config"], **TEXT, "query_pre_attn_scalar": TEXT["head_dim"]},
        "vision_config": {**GEMMA3["vision_config"], **TOWER},
    }
    named = {
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    }
    return SeeingModel(
        config, GEMMA3_PREPROCESSOR, GEMMA3_TEMPLATE, {"processor_class": "Gemma3Processor"}, named
    )


def _llava() -> SeeingModel:
    next_one = tiled_models.MODELS["llava_next"]
    config = {
        **_tiled("llava_next").config,
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
    }
    del config["image_grid_pinpoints"]
    processor = {
        **next_one.processor,
        "processor_class": "LlavaProcessor",
        "num_additional_image_tokens": 1,
    }
    return SeeingModel(config, PIXELS["llava"].preprocessor, _template("<image>"), processor)


def _tiled(name: str) -> SeeingModel:
    model = tiled_models.MODELS[name]
    token = model.tokens[-1]
    field_name = "image_token_index" if "image_token_index" in model.config else "image_token_id"
    config = {
        **model.config,
        field_name: IDS[token],
        "text_config": {**model.config["text_config"], **TEXT},
        "vision_config": {**model.config["vision_config"], **TOWER},
    }
    return SeeingModel(config, model.preprocessor, _template(token), model.processor, model.named_tokens)


def _internvl_chat() -> SeeingModel:
    config = internvl_chat.config(
        {**TEXT, "model_type": "qwen2"},
        {**TOWER, "image_size": 224, "patch_size": 14},
        max_dynamic_patch=6,
    )
    return SeeingModel(config, {}, internvl_chat.TEMPLATE, spelled=True)


def _template(token: str) -> str:
    return tiled_models.TEMPLATE.replace("IMAGE_TOKEN", token)


CROPS = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 100}
MODELS: Mapping[str, SeeingModel] = {
    "qwen2_5_vl": _qwen2_5_vl(),
    "qwen3_vl": _qwen3_vl(),
    "gemma3": _gemma3(),
    "llava": _llava(),
    "llava_next": _tiled("llava_next"),
    "internvl": _tiled("internvl_small"),
    "internvl_chat": _internvl_chat(),
    "mistral3": _tiled("mistral3"),
    "pixtral": _tiled("pixtral"),
    "gemma3_crops": replace(_gemma3(), overrides=CROPS),
}


def lay_out(name: str, target: Path) -> Path:
    """Write the model's directory."""
    model = MODELS[name]
    target.mkdir(parents=True)
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "model_max_length": 32768,
        "extra_special_tokens": model.named_tokens,
    }
    processor_class = model.processor.get("processor_class", model.preprocessor.get("processor_class"))
    files = {
        "config.json": {**model.config, **COMMON},
        "preprocessor_config.json": {**model.preprocessor, "processor_class": processor_class},
        "tokenizer_config.json": tokenizer_config,
    }
    if model.processor:
        files["processor_config.json"] = dict(model.processor)
    if name == "internvl":
        files["video_preprocessor_config.json"] = {
            "video_processor_type": "InternVLVideoProcessor",
            "processor_class": processor_class,
        }
    for file, content in files.items():
        (target / file).write_text(json.dumps(content))
    if "auto_map" in model.config:
        internvl_chat.write_code(target)
    (target / "chat_template.jinja").write_text(model.template)
    _tokenizer(spelled=model.spelled).save(str(target / "tokenizer.json"))
    return target


def _tokenizer(*, spelled: bool) -> Tokenizer:
    letters, merges = sorted(pre_tokenizers.ByteLevel.alphabet()), []
    if spelled:  # the place's end is one token with a line break, instead of a byte that no chat has
        letters[-1], merges = ">Ċ", [(">", "Ċ")]
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    places = internvl_chat.PLACES if spelled else ()
    special = [f"<no {token[1:]}" if token in places else token for token in SPECIAL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in LINES])
    return tokenizer
