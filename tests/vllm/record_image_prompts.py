"""Record what vLLM's processors make of the prompts of `tests.support.tiled_models`.

    VLLM_ENV=$(scripts/vllm_env.sh) python -m tests.vllm.record_image_prompts

Writes `tests/conformance/data/image_prompts.json`, in about a minute.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.support import tiled_models, vllm
from tests.vllm.record_images import MODELS
from tests.vllm.torchvision_reference import ROOT, python_path


def image_prompts(scratch: Path) -> dict[str, Any]:
    directories = {
        name: str(tiled_models.lay_out(name, MODELS, scratch / name)) for name in tiled_models.MODELS
    }
    done = subprocess.run(
        [vllm.environment() / "bin" / "python", "-W", "ignore", "-m", "tests.vllm.image_prompts"],
        input=json.dumps(directories),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
        env=vllm.process_environment(scratch / "scratch", threads=1) | {"PYTHONPATH": python_path()},
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def record(found: dict[str, Any]) -> None:
    for model in found["models"].values():
        for prompt in model["prompts"]:
            prompt["ids"] = tiled_models.digest(prompt["ids"])
        if "texts" in model:
            model["texts"] = list(map(tiled_models.digest, model["texts"]))
    lines = [f"{json.dumps(name)}: {json.dumps(model)}" for name, model in found["models"].items()]
    text = f'{{"made_by": {json.dumps(found["made_by"])},\n"models": {{\n' + ",\n".join(lines) + "\n}}\n"
    tiled_models.RECORDED.write_text(text)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        found = image_prompts(Path(scratch))
    record(found)
    print(f"{', '.join(found['models'])} by {found['made_by']}")


if __name__ == "__main__":
    main()
