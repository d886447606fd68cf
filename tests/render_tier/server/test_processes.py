"""``render-tier serve`` as its users run it: start, shared workers, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.support.certificates import Authority
from tests.support.processes import BIN, ServerFailed, render_tier_server

CHAT = "/v1/chat/completions/render"
BODY = {"messages": [{"role": "user", "content": "Hi " * 2000}], "max_tokens": 5}


def test_one_process(smollm2_dir: Path, tmp_path: Path) -> None:
    server = render_tier_server(smollm2_dir, "--served-model-name", "a", "b", log_dir=tmp_path)
    with server, httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["a", "b"]
        first = client.post(CHAT, json=BODY)
        assert first.status_code == 200
        assert "server" not in first.headers
        assert client.post(CHAT, json=BODY).json()["token_ids"] == first.json()["token_ids"]
        log = server.whole_log()
        assert server.stop() == 0, log
    events = [json.loads(line) for line in server.log_path.read_text().splitlines()]
    assert events[0]["event"] == "settings"
    assert events[0]["served_model_name"] == ["a", "b"]
    assert {"listening", "ready"} <= {event["event"] for event in events}


def test_request_in_progress_is_finished_before_the_process_ends(smollm2_dir: Path, tmp_path: Path) -> None:
    server = render_tier_server(smollm2_dir, log_dir=tmp_path)
    with server, httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        body = json.dumps(BODY).encode()

        def slowly() -> object:
            yield body[:10]
            server.kill(signal.SIGTERM)
            yield body[10:]

        response = client.post(CHAT, content=slowly(), headers={"content-type": "application/json"})  # type: ignore[arg-type]
        assert response.status_code == 200
        assert server.process is not None
        assert server.process.wait(30) == 0


def test_workers_share_the_load_and_the_metrics(smollm2_dir: Path, tmp_path: Path) -> None:
    server = render_tier_server(smollm2_dir, "--workers", "2", log_dir=tmp_path)
    with server:
        for _ in range(8):  # a new connection each time: the kernel picks the worker
            response = httpx.post(server.url + CHAT, json=BODY, trust_env=False, timeout=60)
            assert response.status_code == 200
        metrics = httpx.get(server.url + "/metrics", trust_env=False, timeout=60).text
        assert f'render_tier_requests_total{{route="{CHAT}",status="200"}} 8.0' in metrics
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        assert len(children) == 2
        log = server.whole_log()
        assert server.stop() == 0, log
    assert "Traceback" not in server.log_path.read_text()


def test_unix_socket(smollm2_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "render.sock"
    process = subprocess.Popen(
        [BIN / "render-tier", "serve", smollm2_dir, "--uds", path], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if json.loads(line)["event"] == "ready":
                break
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path)), base_url="http://render-tier"
        ) as client:
            assert client.get("/ready").status_code == 200
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_model_that_cannot_be_loaded_ends_the_process(tmp_path: Path, workers: str) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(ServerFailed, match="exited with 1") as failed:
        render_tier_server(
            tmp_path / "model", "--max-model-len", "10", "--workers", workers, log_dir=tmp_path
        ).start()
    assert "has no tokenizer.json" in str(failed.value)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "render-tier", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--reasoning-parser", "nope"), "unknown reasoning_parser 'nope'; valid names:"),
        (("--tool-call-parser", "nope"), "unknown tool_call_parser 'nope'; valid names:"),
        (("--enable-auto-tool-choice",), "enable_auto_tool_choice requires tool_call_parser"),
        (("--default-chat-template-kwargs", "{"), "--default-chat-template-kwargs takes a JSON object"),
        (("--port", "70000"), "port"),
        (("--max-model-len", "0"), "max_model_len"),
        (("--nope",), "No such option"),
        (("--config", "/nonexistent.toml"), "nonexistent"),
        (("--ssl-certfile", "/no/crt", "--ssl-keyfile", "/no/key"), "--ssl-keyfile: /no/crt: No such file"),
        (("--ssl-certfile", __file__), "ssl_certfile and ssl_keyfile go together"),
    ],
)
def test_wrong_settings_are_named(arguments: tuple[str, ...], message: str) -> None:
    done = run("serve", "/some/model", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    one, other = authority.pair("127.0.0.1"), authority.pair("localhost")
    empty = tmp_path / "empty.pem"
    empty.touch()
    identity = ("--ssl-certfile", str(one.certificate), "--ssl-keyfile")
    for arguments, named in (
        ((*identity, str(other.key)), other.key),
        ((*identity, str(empty)), empty),
        ((*identity, "/no/key"), Path("/no/key")),
        ((*identity, str(one.key), "--ssl-ca-certs", str(empty)), empty),
        ((*identity, str(one.key), "--ssl-ca-certs", str(tmp_path)), tmp_path),
    ):
        done = run("serve", "/some/model", *arguments)
        [line] = done.stderr.splitlines()
        assert (done.returncode, str(named) in line) == (2, True), line
