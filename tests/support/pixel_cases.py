"""Images and model files with which image processors are compared, and what of their results is compared.

Imported by the reference's program too, in whose environment there is nothing of this project's but numpy.
The files are written from the families' public formats: no file of a published model is copied.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

RECORDED = Path(__file__).resolve().parents[1] / "conformance" / "data" / "pixels.json"
"""What the reference makes of `cases()`."""

CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
STEPS = {"do_resize": True, "do_rescale": True, "do_normalize": True, "rescale_factor": 0.00392156862745098}
PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Model:
    """`config` is config.json, `preprocessor` preprocessor_config.json, `processor` processor_config.json."""

    config: dict[str, Any]
    preprocessor: dict[str, Any]
    processor: dict[str, Any] = field(default_factory=dict)


MODELS = {
    "qwen2_vl": Model(
        {"model_type": "qwen2_vl"},
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "min_pixels": 3136,
            "max_pixels": 12845056,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            **CLIP,
        },
    ),
    "qwen3_vl": Model(
        {"model_type": "qwen3_vl"},
        {
            "image_processor_type": "Qwen2VLImageProcessorFast",
            "size": {"longest_edge": 16777216, "shortest_edge": 65536},
            "patch_size": 16,
            "temporal_patch_size": 2,
            "merge_size": 2,
            **HALF,
        },
    ),
    "gemma3": Model(
        {"model_type": "gemma3"},
        {
            "image_processor_type": "Gemma3ImageProcessor",
            "do_pan_and_scan": None,
            "resample": 2,
            "size": {"height": 896, "width": 896},
            **HALF,
            **STEPS,
        },
    ),
    "llava": Model(
        {"model_type": "llava"},
        {
            "image_processor_type": "CLIPImageProcessor",
            "crop_size": {"height": 336, "width": 336},
            "do_center_crop": True,
            "do_convert_rgb": True,
            "resample": 3,
            "size": {"shortest_edge": 336},
            **CLIP,
            **STEPS,
        },
    ),
    "llava_in_square": Model(
        {"model_type": "llava"},
        {
            "image_processor_type": "LlavaImageProcessor",
            "crop_size": {"height": 336, "width": 336},
            "do_center_crop": True,
            "do_convert_rgb": True,
            "do_pad": True,
            "resample": 3,
            "size": {"shortest_edge": 336},
            **CLIP,
            **STEPS,
        },
    ),
    "siglip": Model(
        {"model_type": "llava"},
        {
            "image_processor_type": "SiglipImageProcessor",
            "resample": 3,
            "size": {"height": 384, "width": 384},
            **HALF,
            **STEPS,
        },
    ),
    "mistral3": Model(
        {"model_type": "mistral3", "spatial_merge_size": 2, "vision_config": {"patch_size": 14}},
        {
            "image_processor_type": "PixtralImageProcessor",
            "patch_size": 14,
            "resample": 3,
            "size": {"longest_edge": 1540},
            **CLIP,
            **STEPS,
        },
        {"patch_size": 14, "spatial_merge_size": 2},
    ),
    "pixtral": Model(
        {"model_type": "llava", "vision_config": {"model_type": "pixtral", "patch_size": 16}},
        {
            "image_processor_type": "PixtralImageProcessor",
            "patch_size": {"height": 16, "width": 16},
            "resample": 3,
            "size": {"longest_edge": 1024},
            **CLIP,
            **STEPS,
        },
    ),
    "internvl": Model(
        {"model_type": "internvl"},
        {
            "image_processor_type": "GotOcr2ImageProcessorFast",
            "crop_to_patches": False,
            "min_patches": 1,
            "max_patches": 12,
            "resample": 3,
            "size": {"height": 448, "width": 448},
            **IMAGENET,
            **STEPS,
        },
    ),
    "internvl_chat": Model(
        {
            "model_type": "internvl_chat",
            "dynamic_image_size": True,
            "max_dynamic_patch": 12,
            "min_dynamic_patch": 1,
            "use_thumbnail": True,
            "vision_config": {"image_size": 448},
        },
        {"feature_extractor_type": "CLIPFeatureExtractor", "crop_size": 336, "size": 336, **CLIP},
    ),
    "llava_next": Model(
        {"model_type": "llava_next"},
        {
            "image_processor_type": "LlavaNextImageProcessor",
            "crop_size": {"height": 336, "width": 336},
            "do_center_crop": True,
            "image_grid_pinpoints": PINPOINTS,
            "resample": 3,
            "size": {"shortest_edge": 336},
            **CLIP,
            **STEPS,
        },
    ),
}

OVERRIDES: dict[str, list[dict[str, Any]]] = {
    "qwen2_vl": [
        {"min_pixels": 200704, "max_pixels": 401408},
        {"max_pixels": 50176},
        {"size": {"shortest_edge": 784, "longest_edge": 100352}},
    ],
    "qwen3_vl": [{"size": {"shortest_edge": 1024, "longest_edge": 262144}}, {"resample": 2}],
    "gemma3": [
        {"size": {"height": 224, "width": 448}},
        {"do_rescale": False},
        {"do_pan_and_scan": True},
        {
            "do_pan_and_scan": True,
            "pan_and_scan_min_crop_size": 50,
            "pan_and_scan_max_num_crops": 3,
            "pan_and_scan_min_ratio_to_activate": 1.4,
        },
        {"do_pan_and_scan": True, "pan_and_scan_max_num_crops": 1, "pan_and_scan_min_crop_size": 90},
    ],
    "llava": [
        {"size": {"shortest_edge": 224}, "crop_size": {"height": 300, "width": 200}},
        {"do_center_crop": False, "size": {"shortest_edge": 64}},
    ],
    "llava_in_square": [
        {"size": {"shortest_edge": 224}, "crop_size": {"height": 300, "width": 200}},
        {"image_mean": [0.5, 0.25, 1.0]},
        {"do_center_crop": False, "size": {"height": 100, "width": 150}},
    ],
    "siglip": [{"resample": 2, "size": {"height": 96, "width": 512}}],
    "mistral3": [{"size": {"longest_edge": 280}}],
    "pixtral": [{"size": {"height": 128, "width": 512}}],
    "internvl": [
        {"max_patches": 4},
        {"min_patches": 3, "max_patches": 6, "size": {"height": 64, "width": 96}},
        {"crop_to_patches": False},
    ],
    "internvl_chat": [
        {"max_dynamic_patch": 4},
        {"min_dynamic_patch": 3, "max_dynamic_patch": 6, "use_thumbnail": False},
        {"dynamic_image_size": False},
    ],
    "llava_next": [{"image_grid_pinpoints": [[336, 336], [336, 1344], [1344, 336]]}],
}
"""By model, `mm_processor_kwargs` to try besides none."""

SIZES = (
    *((1, 1), (2, 1), (1, 7), (3, 5), (13, 17), (28, 28), (29, 27), (27, 85)),
    *((56, 56), (100, 20), (30, 400), (224, 300), (336, 336), (335, 337), (448, 449)),
    *((640, 480), (641, 479), (477, 643), (1000, 90), (896, 897), (1024, 768)),
)
"""(width, height)"""
LARGE_SIZES = ((1920, 1080), (700, 3100))
EXTREME_SIZES = {
    "qwen2_vl": [(1, 200), (1, 201)],
    "qwen3_vl": [(201, 1)],
    "gemma3": [(1, 3000), (8100, 3)],
    "llava": [(1, 300), (150, 1), (2800, 2750)],
    "llava_in_square": [(1, 300), (3000, 1), (700, 4000)],
    "siglip": [(3000, 1)],
    "mistral3": [(1, 1540), (2000, 1)],
    "pixtral": [(1024, 1), (1, 2000)],
    "internvl": [(300, 1), (4000, 3700)],
    "internvl_chat": [(300, 1), (4000, 3700), (640, 512), (512, 640)],
    "llava_next": [(1, 300)],
}
"""By model, images that it takes only just or refuses, and such as are shrunk by more than eight."""
AS_BYTES = {"do_rescale": False, "do_normalize": False}
"""With which a processor returns the resized image itself, as bytes."""
OF_ITS_OWN = "internvl_chat"
"""The model whose processor is none of transformers', and has no such settings."""
OVERRIDDEN_SIZES = ((3, 5), (500, 333), (90, 640))
KINDS = ("noise", "extremes", "gradient")


@dataclass(frozen=True)
class Case:
    model: str
    overrides: dict[str, Any]
    kind: str
    width: int
    height: int

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def title(self) -> str:
        changed = "".join(f" {key}={value}" for key, value in self.overrides.items())
        return f"{self.model}{changed} {self.kind} {self.width}x{self.height}"

    def image(self) -> Pixels:
        return image(self.kind, self.width, self.height)


def cases() -> Iterator[Case]:
    for model in MODELS:
        for number, (width, height) in enumerate(SIZES):
            yield Case(model, {}, KINDS[number % len(KINDS)], width, height)
        for width, height in (*LARGE_SIZES, *EXTREME_SIZES[model]):
            yield Case(model, {}, "extremes", width, height)
        for overrides in (*OVERRIDES[model], *([] if model == OF_ITS_OWN else [AS_BYTES])):
            for width, height in OVERRIDDEN_SIZES:
                yield Case(model, overrides, "noise", width, height)


def image(kind: str, width: int, height: int) -> Pixels:
    """(height, width, 3): the same everywhere. "extremes" is noise of 0 and 255, on which a cubic overshoots
    most."""
    if kind == "gradient":
        y, x, channel = np.ogrid[:height, :width, :3]
        grey: Pixels = ((x * 255 // max(width - 1, 1) + y * (channel + 1) * 3) % 256).astype(np.uint8)
        return grey
    data = random.Random(f"{width}x{height}").randbytes(width * height * 3)
    noise = np.frombuffer(data, np.uint8).reshape(height, width, 3)
    return noise if kind == "noise" else np.where(noise & 1, np.uint8(255), np.uint8(0))


def summary(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, list[Any]]:
    """Of each array its type, shape and digest, by which equal arrays are told."""
    return {
        key: [
            str(array.dtype),
            list(array.shape),
            hashlib.sha256(array.tobytes()).hexdigest()[:24],
        ]
        for key, array in sorted(arrays.items())
    }
