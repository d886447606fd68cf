"""What repositories of InternVL in OpenGVLab's format have of their own: a configuration that is code, and a
template that takes a message as one string."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

PLACES = ("<image>", "<video>")
TOKENS = ("<img>", "</img>", "<IMG_CONTEXT>")
MODULE = "configuration_internvl_chat"
CODE = """
from transformers import AutoConfig, PretrainedConfig


class InternVLChatConfig(PretrainedConfig):
    model_type = "internvl_chat"

    def __init__(self, vision_config=None, llm_config=None, **settings):
        self.vision_config = PretrainedConfig(**(vision_config or {}))
        self.llm_config = AutoConfig.for_model(**llm_config) if llm_config else None
        super().__init__(**settings)
"""
"""Of the class that `config` names."""
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def config(text: Mapping[str, Any], vision: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    """config.json, with the settings of published models."""
    return {
        "architectures": ["InternVLChatModel"],
        "model_type": "internvl_chat",
        "auto_map": {"AutoConfig": f"{MODULE}.InternVLChatConfig"},
        "downsample_ratio": 0.5,
        "dynamic_image_size": True,
        "force_image_size": vision["image_size"],
        "max_dynamic_patch": 12,
        "min_dynamic_patch": 1,
        "ps_version": "v2",
        "select_layer": -1,
        "template": "internvl2_5",
        "use_thumbnail": True,
        "llm_config": text,
        "vision_config": {
            "model_type": "intern_vit_6b",
            "hidden_act": "gelu",
            "initializer_factor": 1.0,
            "layer_norm_eps": 1e-6,
            "norm_type": "layer_norm",
            "qkv_bias": True,
            "qk_normalization": False,
            **vision,
        },
        **settings,
    }


def write_code(directory: Path) -> None:
    (directory / f"{MODULE}.py").write_text(CODE)
