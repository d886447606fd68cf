"""Images, compose files and systemd units: linted, of a valid form, and true to what our programs take."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from orchestrator import cli as orchestrator_cli
from orchestrator.settings import Settings
from render_tier import cli as render_cli
from tests.support.charts import ROOT
from tests.support.processes import BIN

DEPLOY = ROOT / "deploy"
DOCKER = DEPLOY / "docker"
TOOLS = ROOT / ".cache" / "tools"
APPS = {"render-tier": render_cli.app, "pd-orchestrator": orchestrator_cli.app}
EXTRAS = {
    "render": ("harmony", "otel"),
    "multimodal": ("harmony", "multimodal", "otel"),
    "multimodal-video": ("harmony", "image-kernels", "multimodal", "otel", "video"),
    "orchestrator": ("dns", "kv-events", "otel", "redis"),
    "engine": ("demo",),
}
"""What each image installs beside the project's own dependencies."""

INSTRUCTIONS = [
    tuple(line.split(maxsplit=1))
    for line in (DOCKER / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    if line and not line.startswith("#")
]
ENGINES_DOC = (ROOT / "docs" / "engines.md").read_text()


def check_words(program: str, command: str, *words: str) -> None:
    """The command exists, and so do its flags."""
    group = typer.main.get_command(APPS[program])
    known = {flag for one in group.commands[command].params for flag in one.opts}  # type: ignore[attr-defined]
    assert {word for word in words if word.startswith("--")} <= known


# --- images


def test_the_dockerfile_has_no_findings() -> None:
    program = TOOLS / "hadolint" / "hadolint"
    done = subprocess.run([program, DOCKER / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("image", EXTRAS)
def test_what_an_image_installs_is_pinned_hashed_and_as_tested(image: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *(one for extra in EXTRAS[image] for one in extras[extra])]
    blocks = re.split(r"\n(?=\S)", (DOCKER / f"{image}.lock").read_text().strip())
    locked = {}
    for block in blocks:
        requirement, *hashes = block.replace("\\\n", "").split("    --hash=sha256:")
        assert hashes, block
        assert all(re.fullmatch(r"[0-9a-f]{64}", one.strip()) for one in hashes)
        name, version = requirement.split(";")[0].strip().split("==")
        locked[canonicalize_name(name)] = version
    tested = {
        canonicalize_name(name): version
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
        for name, _, version in [line.partition("==")]
    }
    assert locked == {name: tested[name] for name in locked}
    markers = {"python_version": "3.13", "platform_machine": "x86_64"}
    direct = [Requirement(line) for line in needed]
    wanted = {canonicalize_name(one.name) for one in direct if not one.marker or one.marker.evaluate(markers)}
    assert wanted <= set(locked)
    assert not ({"numpy", "pillow", "torch", "transformers", "vllm"} - wanted) & set(locked)


def test_images_for_models_with_vision_are_the_text_models_and_what_images_and_videos_take() -> None:
    images = ("render", "multimodal", "multimodal-video")
    text, vision, video = (set((DOCKER / f"{image}.lock").read_text().splitlines()) for image in images)
    assert text < vision < video
    [_, _, render], *others = (
        INSTRUCTIONS[at : at + 3]
        for at, instruction in enumerate(INSTRUCTIONS)
        if instruction in [("FROM", f"runtime AS {image}") for image in images]
    )
    assert [start for _, _, start in others] == [render] * 2


def test_every_image_is_confined_and_checks_itself() -> None:
    names = [argument.split(" AS ")[1] for word, argument in INSTRUCTIONS if word == "FROM"]
    assert set(EXTRAS) <= set(names)
    runtime = [(word, argument) for word, argument in INSTRUCTIONS if word in ("USER", "HEALTHCHECK")]
    assert runtime[0] == ("USER", "10001:10001")
    check = json.loads(runtime[1][1][runtime[1][1].index("[") :])
    assert check[:2] == ["python", "-c"]
    compile(check[2], "HEALTHCHECK", "exec")
    for image in EXTRAS:
        assert ("FROM", f"runtime AS {image}") in INSTRUCTIONS
        assert ("COPY", f"--from={image}-venv /opt/venv /opt/venv") in INSTRUCTIONS
    installs = [argument for word, argument in INSTRUCTIONS if word == "RUN" and " install " in argument]
    assert all("--require-hashes" in one or "--no-index" in one for one in installs)


def test_images_start_commands_that_exist() -> None:
    started = [json.loads(argument) for word, argument in INSTRUCTIONS if word == "ENTRYPOINT"]
    assert [words[:2] for words in started] == [
        *[["render-tier", "serve"]] * 3,
        *(["pd-orchestrator", "serve"], ["pd-orchestrator", "engine"]),
    ]
    for words in started:
        check_words(*words)


def test_what_is_copied_is_there_and_reaches_the_build() -> None:
    lines = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    assert lines[0] == "*"
    allowed = [line[1:] for line in lines if line[0] == "!"]
    ours = [words for word, words in INSTRUCTIONS if word == "COPY" and "--from" not in words]
    sources = {source for words in ours for source in words.split()[:-1]}
    assert {"pyproject.toml", "render_tier", "orchestrator"} <= sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, pattern) for pattern in allowed), source


# --- compose


class ComposeLoader(yaml.SafeLoader):
    """Knows what Compose's own tags stand for: nothing, or the value that replaces another."""


def _replacing(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return None


ComposeLoader.add_constructor("!reset", _replacing)
ComposeLoader.add_constructor("!override", _replacing)


def compose(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.load((DEPLOY / name).read_text(), ComposeLoader)
    return content


@pytest.mark.parametrize("name", ["compose.yaml", "compose.vllm.yaml", "compose.monitoring.yaml"])
def test_compose_files_are_of_their_schema(name: str) -> None:
    content = compose(name)
    for service in content["services"].values():  # null: as if it were not there
        for key in [key for key, value in service.items() if value is None]:
            del service[key]
    schema = json.loads((TOOLS / "compose" / "schema.json").read_text())
    jsonschema.Draft201909Validator(schema).validate(content)


def test_the_composed_system_is_one() -> None:
    content = compose("compose.yaml")
    services = content["services"]
    program = {"render": ("render-tier", "serve"), "orchestrator": ("pd-orchestrator", "serve")}
    for name, service in services.items():
        check_words(*program.get(name, ("pd-orchestrator", "engine")), *service["command"])
        assert service["build"]["target"] in EXTRAS
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert service["read_only"] is True
        assert ("ports" in service) == (name == "orchestrator")
    [mount] = services["orchestrator"]["volumes"]
    assert mount["target"] == services["orchestrator"]["command"][-1]
    settings = Settings.model_validate(yaml.safe_load((DEPLOY / mount["source"]).read_text()))
    named = {url.split("//")[1] for url in (*settings.members.prefill, *settings.members.decode)}
    named |= {f"{one.name}:{one.port}" for one in settings.membership.dns}
    assert named == {"prefill:8000", "decode:8000", "render:8000"}
    serving = [services[name]["command"] for name in ("render", "prefill", "decode")]
    assert {words[words.index("--served-model-name") + 1] for words in serving} == {"smollm2"}
    assert services["render"]["deploy"] == {"mode": "replicated", "replicas": 2}, (
        "podman-compose asks for both"
    )
    assert content["networks"]["inside"]["internal"] is True


def test_composed_vllm_engines_are_started_as_documented() -> None:
    services = compose("compose.vllm.yaml")["services"]
    roles = {}
    for name in ("prefill", "decode"):
        words = services[name]["command"]
        flags = {word for word in words if word.startswith("--")}
        assert "--tokens-only" in flags
        assert flags <= set(re.findall(r"--[a-z][a-z-]+", ENGINES_DOC))
        assert services[name]["environment"]["VLLM_NIXL_SIDE_CHANNEL_HOST"] == name
        roles[name] = json.loads(words[words.index("--kv-transfer-config") + 1])["kv_role"]
    assert roles == {"prefill": "kv_producer", "decode": "kv_consumer"}


# --- systemd


@pytest.mark.parametrize("program", APPS)
def test_units_start_what_exists_and_wait_for_streams(program: str) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd" / f"{program}.service")
    service = unit["Service"]
    path, command, *words = shlex.split(service["ExecStart"])
    assert path.endswith(f"/bin/{program}")
    check_words(program, command, *words)
    assert int(service["TimeoutStopSec"]) > (40 if program == "render-tier" else 600)
    assert service["KillMode"] == "mixed"
    assert service["ProtectSystem"] == "strict"
    assert service["NoNewPrivileges"] == "yes"


@pytest.mark.parametrize("program", APPS)
def test_units_are_understood_whole_by_systemd(program: str, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    unit = tmp_path / f"{program}.service"
    text = (DEPLOY / "systemd" / unit.name).read_text()
    unit.write_text(text.replace(f"/opt/disagg-frontend/venv/bin/{program}", str(BIN / program)))
    said = subprocess.run(
        [analyze, "verify", "--man=no", unit], capture_output=True, text=True, timeout=60, check=False
    )
    assert (said.returncode, said.stdout + said.stderr) == (0, "")
