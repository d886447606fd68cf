"""Every command of the docs: of a kind that is known here, and true.

What can run in seconds and without a network is run, here or in the test that is named; of the others it is
held that their own parser takes them. ``KINDS`` says of each which and why.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from orchestrator import cli as orchestrator_cli
from render_tier import cli as render_cli
from tests.support import charts
from tests.support.documented import (
    PAGES,
    ROOT,
    VLLM_FLAGS,
    Command,
    blocks,
    commands,
    prints,
    shell,
    transcript,
)
from tests.support.processes import BIN

LANGUAGES = {"json", "mermaid", "nginx", "python", "sh", "text", "toml", "yaml"}
APPS = {"render-tier": render_cli.app, "pd-orchestrator": orchestrator_cli.app}
OTHERS_FLAGS = {
    "--build-arg": "docker build",
    "--format": "buildah build",
    "--set": "helm",
    "--target": "docker build",
}
"""Flags in the text that belong to no program of ours, and whose they are; ``VLLM_FLAGS`` apart."""

Check = Callable[[Command, Path], None]
"""Of a command, with a directory for what it writes. Raises for one that is not true."""


@functools.cache
def click_command(program: str, name: str) -> object:
    group = typer.main.get_command(APPS[program])
    return group.commands[name]  # type: ignore[attr-defined]


def plain(word: str) -> str:
    """A word of a synopsis as somebody would type it: without brackets and dots, of several the first."""
    return word.strip("[]…").split("|")[0]


def is_taken_by_our_parser(command: Command, _: Path) -> None:
    """Alone the name of a command stands for it; with options they are those that it takes."""
    program, name, *words = command.words
    found = click_command(program, name)
    if words:
        found.make_context(name, [plain(word) for word in words])  # type: ignore[attr-defined]


def run(words: tuple[str, ...], cwd: Path) -> str:
    """Its output. What a `make` that runs the tests was told is not for another."""
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "ARGS"))
    }
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def runs(command: Command, tmp_path: Path) -> None:
    program, *words = command.words
    assert run((str(BIN / program), *words), tmp_path)


def plans(command: Command, tmp_path: Path) -> None:
    """With a model of that name; it writes the page that it is asked for."""
    words = command.words
    config = tmp_path / words[words.index("--config") + 1]
    config.parent.mkdir(parents=True)
    shape = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    config.write_text(json.dumps(shape | {"hidden_size": 4096, "torch_dtype": "bfloat16"}))
    runs(command, tmp_path)
    assert "<svg" in (tmp_path / words[words.index("--html") + 1]).read_text()


def lists(command: Command, _: Path) -> None:
    assert run(command.words, ROOT).count("\n") > 10


def is_known_to_make(command: Command, tmp_path: Path) -> None:
    """There is such a target, and what it would run of ours is true too."""
    would = run(("make", "--no-print-directory", "--dry-run", *command.words[1:]), ROOT)
    for line in re.findall(r"\.venv/bin/((?:python -m (?:benchmarks|tests)|pd-orchestrator).+)", would):
        for inner in shell(line.partition(" > ")[0], command.page, command.line):
            check(inner, tmp_path)


@functools.cache
def help_of(module: str) -> str:
    return run((sys.executable, "-m", module, "--help"), ROOT)


def is_a_program(command: Command, _: Path) -> None:
    """The module can be run, and its help knows the options."""
    module, *words = command.words[2:]
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin)
    source = source.with_name("__main__.py") if source.name == "__init__.py" else source
    assert source.name == "__main__.py" or "__main__" in source.read_text()
    for flag in (word for word in words if word.startswith("--")):
        assert re.search(rf"{flag}\b", help_of(module)), flag


def is_a_script(command: Command, _: Path) -> None:
    path = ROOT / command.words[0 if "/" in command.words[0] else 1]
    if path.suffix == ".py":
        compile(path.read_text(), path, "exec")
    else:
        run(("bash", "-n", str(path)), ROOT)


def names_extras_that_exist(command: Command, _: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    *_, what = command.words
    if "==" in what:
        assert what in (ROOT / "Makefile").read_text()
        return
    name, extras = re.fullmatch(r"([\w.-]+?)(?:\[([\w,-]+)\])?", what).groups()  # type: ignore[union-attr]
    assert name in (".", project["name"])
    assert set((extras or "demo").split(",")) <= set(project["optional-dependencies"])


def builds_a_target_that_exists(command: Command, _: Path) -> None:
    words = command.words
    file = (ROOT / words[words.index("-f") + 1]).read_text()
    assert re.search(rf"^FROM \S+ AS {words[words.index('--target') + 1]}$", file, re.M)


def composes_files_that_exist(command: Command, _: Path) -> None:
    words = command.words
    files = [words[at + 1] for at, word in enumerate(words) if word == "-f"]
    assert files
    assert all((ROOT / file).is_file() for file in files), files


def is_rendered_by_helm(command: Command, tmp_path: Path) -> None:
    (tmp_path / "my-values.yaml").write_text("model: {name: Qwen/Qwen3-8B}\n")
    words = [str(tmp_path / word) if word.endswith(".yaml") else word for word in command.words[2:]]
    assert charts.objects(run((str(charts.HELM), "template", *words), ROOT))


def can_be_reloaded(_: Command, __: Path) -> None:
    for program in APPS:
        assert "\nExecReload=" in (ROOT / "deploy" / "systemd" / f"{program}.service").read_text()


def is_parsed_by_vllm(command: Command, _: Path) -> None:
    """A test beside a real vLLM does it for the commands of these pages; elsewhere it is a name alone."""
    engines = command.page.name in ("README.md", "engines.md")
    assert engines or {word for word in command.words[3:] if word.startswith("--")} <= VLLM_FLAGS


def elsewhere(_: Command, __: Path) -> None:
    """The test that is named runs it."""


@dataclass(frozen=True)
class Kind:
    begins: str
    check: Check
    why: str = ""
    """Where it is run, or why it is not."""


KINDS = (
    Kind("make help", lists, "run here"),
    Kind("make", is_known_to_make, "takes minutes and installs what it needs; tried with --dry-run"),
    Kind("make demo", is_known_to_make, "run without make in tests/e2e/test_demo.py"),
    Kind("render-tier serve --help", runs, "run here"),
    Kind("render-tier", is_taken_by_our_parser, "serves until told; run in tests/docs/test_servers.py"),
    Kind("pd-orchestrator", is_taken_by_our_parser, "serves until told; run in tests/docs/test_servers.py"),
    Kind("pd-orchestrator status", is_taken_by_our_parser, "run in tests/docs/test_servers.py"),
    Kind("pd-orchestrator explain", is_taken_by_our_parser, "run in tests/e2e/test_demo.py"),
    Kind("pd-orchestrator key", runs, "run here"),
    Kind("pd-orchestrator plan --config", plans, "run here"),
    Kind("curl", elsewhere, "run in tests/e2e/test_demo.py"),
    Kind("python -m", is_a_program, "measures or records for minutes"),
    Kind("bash .ci/run", is_a_script, "runs this test"),
    Kind("scripts/vllm_env.sh", is_a_script, "downloads for minutes"),
    Kind("scripts/kubernetes_api.sh", is_a_script, "compiles for minutes; run by make test-kubernetes"),
    Kind("scripts/local_images.sh", is_a_script, "builds for minutes, and needs buildah"),
    Kind("scripts/torchvision_env.sh", is_a_script, "downloads for minutes"),
    Kind("scripts/lock_images.sh", is_a_script, "asks a package registry"),
    Kind("scripts/api_reference.py", is_a_script, "run in tests/docs/test_api_reference.py"),
    Kind("scripts/diagrams.py", is_a_script, "run in tests/docs/test_diagrams.py"),
    Kind("scripts/grafana_board.py", is_a_script, "run in tests/deploy/test_monitoring.py"),
    Kind(
        "scripts/request_machine_diagram.py",
        is_a_script,
        "run in tests/orchestrator/core/test_request_machine.py",
    ),
    Kind("examples/rollout_loop.py", is_a_script, "run in tests/e2e/test_exact_tokens.py"),
    Kind("examples/lm_eval.sh", is_a_script, "run in tests/vllm/test_clients_lm_eval.py"),
    Kind("pip install", names_extras_that_exist, "downloads; scripts/bootstrap.py does the same"),
    Kind("docker build", builds_a_target_that_exists, "needs a container runtime and downloads"),
    Kind("docker buildx build", elsewhere, "the same; an option of BuildKit's"),
    Kind("docker compose", composes_files_that_exist, "needs a container runtime and downloads"),
    Kind("helm install", is_rendered_by_helm, "needs a cluster; rendered by a real Helm"),
    Kind("systemctl reload", can_be_reloaded, "needs an installed unit"),
    Kind("vllm", is_parsed_by_vllm, "needs GPUs; parsed by vLLM in tests/vllm/test_engines_doc.py"),
)
IN_HEADS = re.compile(r"^#.*?((?:make [a-z-]+ && )?docker compose .+?)(?:,|$)", re.M)
HEADS = [
    command
    for path in sorted((ROOT / "deploy").glob("compose*.yaml"))
    for code in IN_HEADS.findall(path.read_text(encoding="utf-8"))
    for command in shell(code, path, 1)
]
"""Of compose files, which docs/deploy.md sends its readers to."""

ALL = [*commands(*PAGES), *HEADS]


def kind_of(command: Command) -> Kind:
    """The one that says most of it. Raises for a command that nobody has classified."""
    words = command.words
    fitting = [kind for kind in KINDS if words[: len(kind.begins.split())] == tuple(kind.begins.split())]
    if not fitting:
        raise LookupError(f"{command}: say in KINDS how it is tested")
    return max(fitting, key=lambda kind: len(kind.begins))


def check(command: Command, tmp_path: Path) -> None:
    kind_of(command).check(command, tmp_path)


@pytest.mark.parametrize("page", dict.fromkeys(one.page for one in ALL), ids=lambda page: page.name)
def test_commands(page: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for command in ALL:
        if command.page == page:
            try:
                check(command, tmp_path_factory.mktemp("command"))
            except Exception as error:
                error.add_note(str(command))
                raise


def test_a_command_of_no_kind_is_noticed() -> None:
    [command] = shell("kubectl apply -f x.yaml", PAGES[0], 1)
    with pytest.raises(LookupError, match=r"README\.md:1: kubectl apply"):
        kind_of(command)


def test_what_a_command_prints_is_held_against_what_is_shown() -> None:
    assert prints("a: …\nend", "a: 1 2\n  end\n")
    assert not prints("a: …\nend", "a: 1 2\n  end\nmore")
    assert not prints("a: 1", "a: 2")


def test_shown_output_belongs_to_the_last_command_of_the_block_before(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\na\nb 'x\ny'\n```\n\n```text\nout\n```\n\n```sh\nc && d\n```\n\nText.\n\n```text\nz\n```\n"
    )
    assert [(command.words, shown) for command, shown in transcript(page)] == [
        (("a",), None),
        (("b", "x\ny"), "out\n"),
        (("c",), None),
        (("d",), None),
    ]


def test_no_kind_is_left_over() -> None:
    used = {kind_of(command) for command in ALL}
    assert [kind.begins for kind in KINDS if kind not in used] == []


def test_tests_that_kinds_name_exist() -> None:
    for kind in KINDS:
        for path in re.findall(r"tests/\S+\.py", kind.why):
            assert (ROOT / path).is_file(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_what_it_is(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= LANGUAGES


def test_benchmarks_exist() -> None:
    """Those that are named in short too, as targets of make."""
    named = {name for page in PAGES for name in re.findall(r"\bbench-(\w+)", page.read_text())}
    assert {"startup", "parsers"} <= named
    for name in named:
        assert importlib.util.find_spec(f"benchmarks.{name}"), name


def known_flags() -> set[str]:
    apps = [typer.main.get_command(app) for app in APPS.values()]
    groups = [command for app in apps for command in app.commands.values()]  # type: ignore[attr-defined]
    ours = {
        flag
        for command in groups
        for option in command.params
        for flag in (*option.opts, *option.secondary_opts)
    }
    sources = [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("scripts/*.py"), *ROOT.glob("tests/support/*.py")]
    return ours | {flag for path in sources for flag in re.findall(r'"(--[a-z][a-z-]+)"', path.read_text())}


def test_flags_in_the_text_exist() -> None:
    """``--max-session-*`` stands for those that begin so."""
    known = known_flags() | set(OTHERS_FLAGS) | VLLM_FLAGS
    for page in PAGES:
        if page.name == "engines.md":  # of which tests/vllm/test_engines_doc.py asks vLLM
            continue
        for flag, many in re.findall(r"`(--[a-z][a-z-]+)(\*?)", page.read_text()):
            fits = any(one.startswith(flag) if many else one == flag for one in known)
            assert fits, f"{page.name}: {flag} is no flag of ours; VLLM_FLAGS, OTHERS_FLAGS"
