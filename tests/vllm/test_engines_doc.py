"""The commands and names in docs/engines.md and in the README, held against vLLM and our own programs."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from orchestrator.settings import Settings
from tests.support import vllm
from tests.support.documented import VLLM_FLAGS, commands
from tests.support.processes import BIN

ROOT = Path(__file__).resolve().parents[2]
ENGINES = (ROOT / "docs" / "engines.md").read_text()
PROGRAMS = ("vllm", "render-tier", "pd-orchestrator")

ASK_VLLM = """
import json, pathlib, sys
import vllm.envs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
import vllm.distributed.kv_transfer.kv_connector.v1.nixl as connector
from vllm.v1.metrics import loggers

parser = make_arg_parser(FlexibleArgumentParser())
configs = []
for words in json.load(sys.stdin):
    args = parser.parse_args(words)
    configs.append({name: str(getattr(args.kv_transfer_config, name)) for name in
                    ("kv_connector", "kv_role", "kv_load_failure_policy", "kv_connector_extra_config")})
folder = pathlib.Path(connector.__file__).parent
sources = [*folder.glob("*.py"), pathlib.Path(loggers.__file__)]
print("ANSWER " + json.dumps({
    "configs": configs,
    "variables": sorted(vllm.envs.environment_variables),
    "flags": sorted(parser._option_string_actions),
    "source": "".join(path.read_text() for path in sources),
}))
"""


ALL = [
    command
    for command in commands(ROOT / "README.md", ROOT / "docs" / "engines.md")
    if command.words[0] in PROGRAMS and command.words[1] == "serve" and len(command.words) > 2
]


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    """What vLLM makes of the commands, and the names that it knows."""
    asked = [command.words[2:] for command in ALL if command.words[:2] == ("vllm", "serve")]
    done = subprocess.run(
        [vllm.environment() / "bin" / "python", "-c", ASK_VLLM],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.split("ANSWER ")[-1])
    return answer


def test_the_commands_of_vllm_are_parsed_by_vllm(real: dict[str, Any]) -> None:
    assert len(real["configs"]) >= 6
    assert all(config["kv_connector"] == "NixlConnector" for config in real["configs"])
    assert {config["kv_role"] for config in real["configs"]} == {"kv_producer", "kv_consumer"}
    assert sum("kv_lease_duration" in config["kv_connector_extra_config"] for config in real["configs"]) == 2


def test_engines_on_one_host_have_side_channels_of_their_own() -> None:
    ports = [
        command.variables.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600")
        for command in ALL
        if command.words[0] == "vllm" and "--host" not in command.words
    ]
    assert len(ports) >= 4
    assert ports[::2] == ["5600"] * (len(ports) // 2)
    assert ports[1::2] == ["5601"] * (len(ports) // 2)


def test_variables_are_those_of_vllm(real: dict[str, Any]) -> None:
    named = set(re.findall(r"\bVLLM_[A-Z_]+\b", ENGINES))
    assert named >= {"VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"}
    assert named <= set(real["variables"])


def test_metrics_and_settings_of_the_connector_are_vllms(real: dict[str, Any]) -> None:
    metrics = {re.sub("_(sum|total)$", "", name) for name in re.findall(r"`(vllm:\w+)", ENGINES)}
    settings = {"kv_lease_duration", "engine_ttl", "bidirectional_kv_xfer", "decoder_kv_blocks_ttl"}
    settings.add("kv_recompute_threshold")
    assert len(metrics) >= 6
    assert settings <= set(re.findall(r"`(\w+)`", ENGINES))
    assert not [name for name in metrics | settings if name not in real["source"]]


def test_flags_exist(real: dict[str, Any]) -> None:
    ours = {
        flag
        for words in (("render-tier", "serve"), ("pd-orchestrator", "serve"), ("pd-orchestrator", "demo"))
        for flag in re.findall(r"--[a-z][a-z-]+", help_of(*words))
    }
    for command in ALL:
        known = real["flags"] if command.words[0] == "vllm" else ours
        assert not [word for word in command.words if word.startswith("--") and word not in known], command
    inline = set(re.findall(r"`(--[a-z][a-z-]+)", ENGINES))
    assert "--enable-scale-out" in inline
    assert inline <= {*real["flags"], *ours}
    assert set(real["flags"]) >= VLLM_FLAGS


def help_of(program: str, *words: str) -> str:
    command = [BIN / program, *words, "--help"]
    environment = {"COLUMNS": "300", "PATH": "/usr/bin:/bin", "TERM": "dumb"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def test_settings_of_the_orchestrator_are_settings() -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```", ENGINES, re.M | re.S)
    apart, turns = (Settings.model_validate(tomllib.loads(block)) for block in blocks)
    assert apart.lease.engine_seconds == 60
    assert f'"decoder_kv_blocks_ttl": {turns.declared.engines.turn_seconds:.0f}' in ENGINES
    known = Settings.model_validate({}).model_dump()
    for section, name in re.findall(r"`(policy|lease|members)\.(\w+)", ENGINES):
        assert name in known[section], f"{section}.{name}"


def test_files_that_are_named_exist() -> None:
    named = re.findall(r"`((?:tests|scripts|orchestrator|benchmarks)/[\w./]+)`", ENGINES)
    assert len(named) >= 6
    assert not [name for name in named if not (ROOT / name).exists()]
