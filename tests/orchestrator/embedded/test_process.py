"""The engine as a process of its own: its log, and its end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from tests.orchestrator.embedded.engines import GENERATE, body, frames


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("package", ["numpy", "threadpoolctl"])
def test_a_package_that_is_not_installed_is_named_with_the_remedy(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    done = CliRunner().invoke(app, ["engine", "--model", "x"])
    assert done.exit_code == 1
    assert f"the engine needs {package}: pip install 'disagg-frontend[demo]'" in done.output


def test_sigterm_ends_streams_properly_and_every_log_line_is_json(tmp_path: Path, tiny_model: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"token_ids": [7] * 200, "interval_ms": 50}))
    port = free_port()
    program = [sys.executable, "-c", "from orchestrator.cli import main; main()", "engine"]
    options = ["--model", str(tiny_model), "--script", str(script), "--port", str(port)]
    command = [*program, *options, "--shutdown-seconds", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
                while True:
                    try:
                        assert http.get("/health").status_code == 200
                        break
                    except httpx.ConnectError:
                        assert process.poll() is None
                        time.sleep(0.05)
                request = body([1, 2, 3], sampling={"max_tokens": 200}, stream=True)
                with http.stream("POST", GENERATE, json=request) as response:
                    pieces = response.iter_text()
                    text = next(pieces)
                    process.send_signal(signal.SIGTERM)
                    text += "".join(pieces)
        finally:
            process.terminate()
        out, err = process.communicate(timeout=30)
    reasons = [choice["finish_reason"] for frame in frames(text) for choice in frame["choices"]]
    assert reasons[-1] == "abort"
    assert err == ""
    lines = [json.loads(line) for line in out.splitlines()]
    assert any("Uvicorn running" in line["event"] for line in lines)
    assert not [line for line in lines if line["level"] in ("error", "critical") or "exception" in line]
