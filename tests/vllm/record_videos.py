"""Record what vLLM makes of the chats of `tests.support.video_corpus`.

    VLLM_ENV=$(scripts/vllm_env.sh) python -m tests.vllm.record_videos

Writes `tests/conformance/data/videos.json` and `processed_videos.json`, in some minutes.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import video_models, vllm
from tests.support.tiled_models import digest
from tests.support.video_corpus import PROCESSED, PROCESSING, RECORDED, chats, processed_chats
from tests.vllm.record_images import MODELS
from tests.vllm.torchvision_reference import python_path


def vllm_videos(given: Mapping[str, Any], scratch: Path, tokenizer: Path) -> dict[str, Any]:
    """``given``: chats by model. ``scratch`` is empty. The models' names, which are a part of hashes, are
    those of `video_models`."""
    for name in given:
        video_models.lay_out(name, tokenizer, scratch / name)
    done = subprocess.run(
        [vllm.environment() / "bin" / "python", "-W", "ignore", "-m", "tests.vllm.video_prompts"],
        input=json.dumps(given),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=scratch,
        env=vllm.process_environment(scratch / "scratch", threads=1) | {"PYTHONPATH": python_path()},
    )
    result: dict[str, Any] = json.loads(done.stdout)
    for model in result["models"].values():
        for answer in model.values():
            if "ids" in answer:
                answer["ids"] = digest(answer["ids"])
    return result


def main() -> None:
    record({name: chats() for name in video_models.MODELS}, RECORDED)
    processed = [name for name in video_models.MODELS if name.startswith(tuple(PROCESSING))]
    record({name: processed_chats(name) for name in processed}, PROCESSED)


def record(given: Mapping[str, Any], target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        found = vllm_videos(given, Path(scratch), MODELS / "qwen3")
    lines = [
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f"{json.dumps(title)}: {json.dumps(answer)}" for title, answer in model.items())
        + "\n}"
        for name, model in found["models"].items()
    ]
    text = f'{{"made_by": {json.dumps(found["made_by"])},\n"models": {{\n' + ",\n".join(lines) + "\n}}\n"
    target.write_text(text)
    print(f"{', '.join(found['models'])} by {found['made_by']}")


if __name__ == "__main__":
    main()
