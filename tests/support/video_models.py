"""Directories of models without weights, for their prompts and videos.

The tokenizer is Qwen3's; configuration files and templates are written after the models' public ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import tiled_models
from tests.support.pixel_cases import CLIP, HALF, IMAGENET
from tests.support.vision_models import QWEN2_5_VL, QWEN_PREPROCESSOR, TOKENIZER_FILES

Json = Mapping[str, Any]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for content in message['content'] %}"
    "{% if content['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT = (
    *("hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads"),
    *("num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "rope_theta", "vocab_size", "hidden_act"),
)
_TOKENS = (
    *("bos_token_id", "eos_token_id", "vision_start_token_id", "vision_end_token_id"),
    *("image_token_id", "video_token_id", "tie_word_embeddings", "torch_dtype"),
)
QWEN2_VL: Json = {
    **QWEN2_5_VL,
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "vision_config": {
        "depth": 2,
        "embed_dim": 64,
        "hidden_size": 64,
        "hidden_act": "quick_gelu",
        "mlp_ratio": 2,
        "num_heads": 4,
        "in_channels": 3,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "temporal_patch_size": 2,
    },
}
QWEN3_VL: Json = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "model_type": "qwen3_vl",
    **{name: QWEN2_5_VL[name] for name in _TOKENS},
    "text_config": {
        "model_type": "qwen3_vl_text",
        **{name: QWEN2_5_VL[name] for name in _TEXT},
        "head_dim": 16,
        "torch_dtype": "bfloat16",
        "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [2, 3, 3]},
    },
    "vision_config": {
        "model_type": "qwen3_vl",
        "deepstack_visual_indexes": [0, 1],
        "depth": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 64,
        "in_channels": 3,
        "intermediate_size": 128,
        "num_heads": 4,
        "num_position_embeddings": 2304,
        "out_hidden_size": 64,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}
_QWEN3_STEPS: Json = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, **HALF}
TILED, CHAT = "internvl_small", "internvl_chat"
"""Those that are tiled models too."""
_INTERNVL, _CHAT = tiled_models.MODELS[TILED], tiled_models.MODELS[CHAT].config
_QWEN3_FILES: Mapping[str, Json] = {
    "preprocessor_config.json": {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
        "size": {"longest_edge": 16777216, "shortest_edge": 65536},
        **_QWEN3_STEPS,
    },
    "video_preprocessor_config.json": {
        "video_processor_type": "Qwen3VLVideoProcessor",
        "processor_class": "Qwen3VLProcessor",
        "size": {"longest_edge": 25165824, "shortest_edge": 4096},
        **_QWEN3_STEPS,
    },
}
MODELS: Mapping[str, Mapping[str, Json]] = {
    # Without a file of its own, videos have the settings of images.
    "qwen2_vl": {
        "config.json": QWEN2_VL,
        "preprocessor_config.json": {**QWEN_PREPROCESSOR, "processor_class": "Qwen2VLProcessor"},
    },
    "qwen2_5_vl": {
        "config.json": QWEN2_5_VL,
        "preprocessor_config.json": QWEN_PREPROCESSOR,
        "video_preprocessor_config.json": {
            "video_processor_type": "Qwen2VLVideoProcessor",
            "processor_class": "Qwen2_5_VLProcessor",
            "size": {"shortest_edge": 3136, "longest_edge": 50176},
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            **CLIP,
        },
    },
    "qwen3_vl": {"config.json": QWEN3_VL, **_QWEN3_FILES},
    "qwen3_5": {"config.json": tiled_models.MODELS["qwen3_5"].config, **_QWEN3_FILES},
    # With the files of the tiled model of that name, but smaller tiles.
    TILED: {
        "config.json": {
            **_INTERNVL.config,
            "image_seq_length": 16,
            "vision_config": {**_INTERNVL.config["vision_config"], "image_size": 112},
        },
        "preprocessor_config.json": {**_INTERNVL.preprocessor, "size": {"height": 112, "width": 112}},
        "processor_config.json": {**_INTERNVL.processor, "image_seq_length": 16},
        "video_preprocessor_config.json": {
            "video_processor_type": "InternVLVideoProcessor",
            "processor_class": "InternVLProcessor",
            "resample": 3,
            # Frames get the size of images.
            "size": {"height": 448, "width": 448},
            **IMAGENET,
        },
    },
    CHAT: {"config.json": {**_CHAT, "vision_config": {**_CHAT["vision_config"], "image_size": 112}}},
}
"""By name, the files of each."""


def lay_out(name: str, tokenizer: Path, target: Path) -> Path:
    """Write the model's directory; ``tokenizer`` is that of Qwen3's."""
    if name in (TILED, CHAT):
        tiled_models.lay_out(name, tokenizer.parent, target)
    else:
        target.mkdir(parents=True)
        for file in TOKENIZER_FILES:
            (target / file).symlink_to((tokenizer / file).resolve())
        (target / "chat_template.jinja").write_text(TEMPLATE)
    for file, content in MODELS[name].items():
        (target / file).write_text(json.dumps(content))
    return target
