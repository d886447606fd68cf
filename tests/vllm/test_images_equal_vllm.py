"""Files, hashes and items of images beside vLLM's own functions, in one process of vLLM's."""

from __future__ import annotations

import hashlib
import json
import subprocess
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from render_tier.multimodal.decoding import BACKGROUND, OpenedImage, conversion
from render_tier.multimodal.encoding import FloatType, encode_item
from render_tier.multimodal.families import Family, Field, Replacement
from render_tier.multimodal.hashing import image_hash, name_hash
from tests.support import images, vllm

FLOAT_TYPES: tuple[FloatType, ...] = ("bfloat16", "float16", "float32")
VALUES = np.random.default_rng(1).normal(size=(6, 40)).astype(np.float32)
TIES = (np.arange(240, dtype=np.uint32) * 0x8000 + 0x3F800000).view(np.float32).reshape(6, 40)
"""Every other one is half-way between two values of bfloat16."""
ARRAYS: dict[str, dict[str, npt.NDArray[Any]]] = {
    "bytes": {"pixel_values": VALUES.astype(np.uint8), "image_grid_thw": np.array([1, 2, 3])},
    "floats": {"pixel_values": VALUES, "image_grid_thw": np.array([1, 2, 3])},
    "ties": {"pixel_values": TIES, "image_grid_thw": np.array([1, 2, 3])},
    "scalar": {"pixel_values": VALUES, "image_grid_thw": np.array(1)},
}


FACTORS: list[dict[str, Any]] = [
    {"mm_processor_kwargs": {"max_pixels": 50176}},
    {"mm_processor_kwargs": {"min_pixels": 3136, "max_pixels": 50176}},
    {"mm_processor_kwargs": {"max_pixels": 50176, "min_pixels": 3136}},
    {"mm_processor_kwargs": {"size": {"shortest_edge": 3136, "longest_edge": 50176}}},
    {"mm_processor_kwargs": {"do_pan_and_scan": True, "pan_and_scan_min_ratio_to_activate": 1.5}},
    {"mm_processor_kwargs": {"crop_to_patches": False, "pan_and_scan_min_ratio_to_activate": 2}},
    {"media_io_kwargs": {"image": {"rgba_background_color": [0, 128, 255], "image_mode": "RGB"}}},
    {
        "mm_processor_kwargs": {"max_patches": 3},
        "media_io_kwargs": {"image": {"rgba_background_color": [1, 2, 3]}},
    },
]


def unused(_: object) -> Replacement:
    raise AssertionError


FAMILY = Family(
    *("", "", 0),
    {
        "pixel_values": Field("flat"),
        "image_grid_thw": Field("batched", keep_on_cpu=True),
        "image_token_id": Field("shared", keep_on_cpu=True, value=151671),
    },
    *(unused, 1, False, {}),
)


@pytest.fixture(scope="module")
def items() -> dict[str, str]:
    return {
        f"{name} {float_type}": encode_item(arrays, FAMILY, float_type).kwargs.decode()
        for name, arrays in ARRAYS.items()
        for float_type in FLOAT_TYPES
    }


@pytest.fixture(scope="module")
def reference(items: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    files = {name: b64encode(data).decode() for name, data in images.every_kind().items()}
    done = subprocess.run(
        [vllm.environment() / "bin" / "python", Path(__file__).parent / "image_reference.py"],
        input=json.dumps({"files": files, "items": items, "factors": FACTORS}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=vllm.process_environment(tmp_path_factory.mktemp("vllm")),
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_files_are_read_and_hashed_as_vllm_does(reference: dict[str, Any]) -> None:
    for name, data in images.every_kind().items():
        pixels, converted = OpenedImage(data, max_pixels=1 << 20).pixels()
        given = {
            "hash": image_hash(data, model="m", conversion=conversion(BACKGROUND) if converted else None),
            "shape": list(pixels.shape),
            "pixels": hashlib.sha256(pixels.tobytes()).hexdigest(),
        }
        assert given == reference["files"][name], name


def test_what_requests_say_of_their_images_is_hashed_as_vllm_does(reference: dict[str, Any]) -> None:
    data = next(iter(images.every_kind().values()))
    given = [
        {
            "file": image_hash(data, model="m", conversion=None, factors=factors),
            "name": name_hash("mine", model="m", factors=factors),
        }
        for factors in FACTORS
    ]
    assert given == reference["factors"]


def test_vllm_decodes_items_and_would_encode_them_so(
    reference: dict[str, Any], items: dict[str, str]
) -> None:
    for name, item in items.items():
        decoded = reference["items"][name]
        assert decoded["encoded"] == item, name
        pixels, grid, token = (decoded["fields"][field] for field in FAMILY.fields)
        assert (token["type"], token["layout"], token["shape"]) == (
            *("torch.int64", "MultiModalSharedField", []),
        )
        assert (grid["type"], grid["layout"], grid["keep_on_cpu"]) == (
            *("torch.int64", "MultiModalBatchedField", True),
        )
        assert (pixels["layout"], pixels["keep_on_cpu"]) == ("MultiModalFlatField", False)
        values = ARRAYS[name.split()[0]]["pixel_values"]
        assert pixels["shape"] == list(values.shape)
        kind = name.split()[1] if values.dtype == np.float32 else "uint8"
        assert pixels["type"] == f"torch.{kind}"
