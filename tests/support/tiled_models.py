"""Models that are shown an image as tiles or lines of patches, without weights, and images for them.

The tokenizer is Qwen3's with the families' tokens behind its own; configuration files are written after the
models' public ones, with the sizes that prompts depend on.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import internvl_chat, vision_models
from tests.support.pixel_cases import CLIP, HALF, IMAGENET, PINPOINTS, STEPS
from tests.support.pixel_cases import MODELS as PIXELS

RECORDED = Path(__file__).resolve().parents[1] / "conformance" / "data" / "image_prompts.json"
"""What vLLM makes of `SIZES` and `PROMPTS`."""
FIRST_ADDED = 151669
"""The first ID that Qwen3's tokenizer leaves free."""
TEXT = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 32768,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "vocab_size": 151936,
}
TOWER = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
Json = Mapping[str, Any]


@dataclass(frozen=True)
class TiledModel:
    config: Json
    preprocessor: Json
    processor: Json
    tokens: tuple[str, ...]
    """Added to the tokenizer; the last one is the image's. None where it has it already."""
    named_tokens: Json = field(default_factory=dict)
    """Of those, in tokenizer_config.json."""
    tokenizer: str = "qwen3"
    steepest: int = 1000
    """How much longer than the other one a side of an image may be."""
    overrides: Json = field(default_factory=dict)
    """The operator's `mm_processor_kwargs`."""
    spelled: tuple[int, ...] = ()
    """IDs of what a template writes for an image where that is not its token."""

    @property
    def image_token(self) -> int:
        """Which a template writes, or which stands in for what it writes."""
        if self.tokens:
            return FIRST_ADDED + len(self.tokens) - 1
        return int(self.config.get("boi_token_index") or self.config["image_token_id"])


def _llava_next(vision: Json, strategy: str, pinpoints: list[list[int]], preprocessor: Json) -> TiledModel:
    return TiledModel(
        {
            "architectures": ["LlavaNextForConditionalGeneration"],
            "model_type": "llava_next",
            "image_token_index": FIRST_ADDED,
            "image_grid_pinpoints": pinpoints,
            "vision_feature_layer": -2,
            "vision_feature_select_strategy": strategy,
            "torch_dtype": "bfloat16",
            "text_config": TEXT,
            "vision_config": {**TOWER, **vision},
        },
        {
            "image_processor_type": "LlavaNextImageProcessor",
            "image_grid_pinpoints": pinpoints,
            **preprocessor,
            **STEPS,
        },
        {
            "processor_class": "LlavaNextProcessor",
            "image_token": "<image>",
            "patch_size": vision["patch_size"],
            "vision_feature_select_strategy": strategy,
        },
        ("<image>",),
    )


def _internvl(side: int, image_size: Any, patch_size: Any, most_tiles: int) -> TiledModel:
    return TiledModel(
        {
            "architectures": ["InternVLForConditionalGeneration"],
            "model_type": "internvl",
            "downsample_ratio": 0.5,
            "image_token_id": FIRST_ADDED + 3,
            "image_seq_length": (side // 28) ** 2,
            "torch_dtype": "bfloat16",
            "text_config": TEXT,
            "vision_config": {
                "model_type": "internvl_vision",
                "image_size": image_size,
                "patch_size": patch_size,
                **TOWER,
            },
        },
        {
            "image_processor_type": "GotOcr2ImageProcessorFast",
            "crop_to_patches": False,
            "min_patches": 1,
            "max_patches": most_tiles,
            "resample": 3,
            "size": {"height": side, "width": side},
            **IMAGENET,
            **STEPS,
        },
        {"processor_class": "InternVLProcessor", "image_seq_length": (side // 28) ** 2},
        ("<img>", "</img>", "<video>", "<IMG_CONTEXT>"),
        {
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    )


LINE_TOKENS = ("[IMG_BREAK]", "[IMG_END]", "[IMG]")


def _lines(kind: str, architecture: str, side: int, patch: int, merge: int) -> TiledModel:
    """Of the images of Pixtral and Mistral 3, which are lines of patches."""
    merging = {"spatial_merge_size": merge} if merge > 1 else {}
    return TiledModel(
        {
            "architectures": [architecture],
            "model_type": kind,
            "image_token_index": FIRST_ADDED + 2,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
            "projector_hidden_act": "gelu",
            "torch_dtype": "bfloat16",
            "text_config": {**TEXT, "model_type": "mistral"},
            "vision_config": {
                **TOWER,
                "model_type": "pixtral",
                "image_size": side,
                "patch_size": patch,
            },
            **merging,
        },
        {
            "image_processor_type": "PixtralImageProcessorFast",
            "patch_size": {"height": patch, "width": patch},
            "resample": 3,
            "size": {"longest_edge": side},
            **CLIP,
            **STEPS,
        },
        {
            "processor_class": "PixtralProcessor",
            "image_token": "[IMG]",
            "image_break_token": "[IMG_BREAK]",
            "image_end_token": "[IMG_END]",
            "patch_size": patch,
            **merging,
        },
        LINE_TOKENS,
    )


def _internvl_chat(text: Json, overrides: Json, **settings: Any) -> TiledModel:
    return TiledModel(
        internvl_chat.config(
            {**TEXT, **text},
            {**TOWER, "image_size": 448, "patch_size": 14},
            torch_dtype="bfloat16",
            **settings,
        ),
        # Which vLLM does not look at.
        {"feature_extractor_type": "CLIPFeatureExtractor", "crop_size": 336, "size": 336, **CLIP},
        {},
        internvl_chat.TOKENS,
        overrides=overrides,
        spelled=(27, 1805, 29),
    )


TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' %}IMAGE_TOKEN\n"
    "{% elif content['type'] == 'video' %}<video>\n"
    "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WIDE = [[384, 384 * columns] for columns in range(1, 7)] + [[768, 768], [1152, 384]]
MODELS = {
    "llava_next": _llava_next(
        {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14},
        "default",
        PINPOINTS,
        {"crop_size": {"height": 336, "width": 336}, "resample": 3, "size": {"shortest_edge": 336}, **CLIP},
    ),
    "llava_next_siglip": _llava_next(
        {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14},
        "full",
        WIDE,
        {
            "do_center_crop": False,
            "crop_size": {"height": 384, "width": 384},
            "resample": 3,
            "size": {"height": 384, "width": 384},
            **HALF,
        },
    ),
    "internvl": _internvl(448, [448, 448], [14, 14], 12),
    "internvl_small": _internvl(224, 224, 14, 6),
    "internvl_chat": _internvl_chat({}, {}),
    # Settings are refused by vLLM where the text model has videos.
    "internvl_chat_small": _internvl_chat(
        {"model_type": "llama"}, {"max_dynamic_patch": 5, "min_dynamic_patch": 2}, use_thumbnail=False
    ),
    "qwen3_5": TiledModel(
        {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "image_token_id": 151655,
            "video_token_id": 151656,
            "vision_start_token_id": 151652,
            "vision_end_token_id": 151653,
            "torch_dtype": "bfloat16",
            "text_config": {**TEXT, "model_type": "qwen3_5_text"},
            "vision_config": {
                "model_type": "qwen3_5_vision",
                "depth": 2,
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_heads": 4,
                "out_hidden_size": 64,
                "patch_size": 16,
            },
        },
        PIXELS["qwen3_vl"].preprocessor,
        {"processor_class": "Qwen3VLProcessor"},
        (),
        steepest=200,
    ),
    "gemma3_crops": TiledModel(
        vision_models.GEMMA3,
        vision_models.GEMMA3_PREPROCESSOR,
        {"processor_class": "Gemma3Processor", "image_seq_length": 256},
        (),
        tokenizer="gemma3",
        overrides={"do_pan_and_scan": True},
    ),
    "mistral3": _lines("mistral3", "Mistral3ForConditionalGeneration", 1540, 14, 2),
    "pixtral": _lines("llava", "LlavaForConditionalGeneration", 1024, 16, 1),
}


def sizes() -> list[tuple[int, int]]:
    """(width, height) of images: corners of the families' arithmetic, and some drawn."""
    choose = random.Random(20)
    sides = (1, 2, 13, 27, 335, 336, 337, 448, 672, 1008, 3000)
    corners = [(width, height) for width in sides for height in sides]
    drawn = [
        (choose.randint(1, choose.choice([40, 700, 6000])), choose.randint(1, choose.choice([40, 700, 6000])))
        for _ in range(400)
    ]
    # Such as end where a patch does.
    exact = [(336 * step, 14 * rows) for step in (1, 2, 3) for rows in range(1, 73, 5)]
    return list(dict.fromkeys([*corners, *drawn, *exact]))


PROMPTS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((640, 480),),
    ((1, 900),),
    ((31, 17), (700, 300)),
    ((500, 333), (90, 60), (333, 500)),
)
"""The sizes of a prompt's images."""


def prompts(name: str) -> list[tuple[tuple[int, int], ...]]:
    """Those of `PROMPTS` whose images the model takes."""
    steepest = MODELS[name].steepest
    return [sizes for sizes in PROMPTS if all(max(size) <= steepest * min(size) for size in sizes)]


def prompt(name: str, images: int, *, stand_ins: bool = False) -> list[int]:
    """Each image's place between two tokens. ``stand_ins``: with one token for each place."""
    model = MODELS[name]
    place = (model.image_token,) if stand_ins or not model.spelled else model.spelled
    return [1, *(each for number in range(images) for each in (*place, 100 + number))]


TEXTS = (
    *("<image>\nWhat is it?", "<image>", "<image><image>", "<image>\n<image>\n\n\nTwo"),
    *("See <image> and <image>.", "  <image>  ", "!<image>?", "\u00e9<image>\u4e2d", "a1<image>2 <image>"),
    # A run of white space is tokens of another kind before a place than at the end of a text.
    *("a\t\t<image>b", "a\t\t<image>\nb", "a\t\t<image>b<image>\nc"),
)
"""Messages that have their images' places in them, where those are not tokens."""
SHOWN = (60, 50)
"""Width and height of each of their images."""


def written(text: str) -> str:
    """What `internvl_chat.TEMPLATE` makes of it."""
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def digest(ids: list[int]) -> list[Any]:
    """How many they are, and their SHA-256."""
    return [len(ids), hashlib.sha256(json.dumps(ids).encode()).hexdigest()]


def lay_out(name: str, tokenizers: Path, target: Path) -> Path:
    """Write the model's directory; those of ``tokenizers`` have Qwen3's and Gemma 3's."""
    model = MODELS[name]
    target.mkdir(parents=True)
    content = json.loads((tokenizers / model.tokenizer / "tokenizer.json").read_text())
    settings = json.loads((tokenizers / model.tokenizer / "tokenizer_config.json").read_text())
    for number, token in enumerate(model.tokens, FIRST_ADDED):
        added = {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
        }
        content["added_tokens"].append({"id": number, **added, "special": True})
        settings["added_tokens_decoder"][str(number)] = {**added, "special": True}
    (image_token,) = (each["content"] for each in content["added_tokens"] if each["id"] == model.image_token)
    if model.named_tokens:
        settings["extra_special_tokens"] = model.named_tokens
    files = {
        "tokenizer.json": content,
        "tokenizer_config.json": settings,
        "config.json": model.config,
        "preprocessor_config.json": model.preprocessor,
    }
    if model.processor:
        kind = model.processor["processor_class"]
        video = {"video_processor_type": kind.replace("Processor", "VideoProcessor"), "processor_class": kind}
        files |= {
            "preprocessor_config.json": {**model.preprocessor, "processor_class": kind},
            "processor_config.json": model.processor,
            "video_preprocessor_config.json": video,
        }
    template = TEMPLATE.replace("IMAGE_TOKEN", image_token)
    if model.spelled:
        template = internvl_chat.TEMPLATE
        internvl_chat.write_code(target)
    (target / "chat_template.jinja").write_text(template)
    for file, json_content in files.items():
        (target / file).write_text(json.dumps(json_content))
    return target
