"""Every wrong use of transfer params is an explicit error, and no block outlives it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.embedded.engine import EngineSettings, Event
from orchestrator.embedded.session import Session
from orchestrator.embedded.transfer_client import Pull, unreachable
from orchestrator.embedded.transfer_protocol import (
    HEADER,
    VERSION,
    Hello,
    Kind,
    ProtocolError,
    compatibility,
    decode_header,
    decode_message,
    encode,
    prompt_digest,
)
from orchestrator.embedded.transfer_server import TransferServerSettings
from orchestrator.embedded.transfer_wire import WireLimits
from render_tier.protocol.generate import REQUIRED_REMOTE_FIELDS
from tests.orchestrator.embedded.engines import GENERATE, Client, body, frames, prompt, serving, until

PROMPT = prompt(50)


@pytest.fixture(scope="module")
def engines(tiny_model: Path) -> Iterator[tuple[Client, Client]]:
    with serving(tiny_model, role="prefill") as prefill, serving(tiny_model, role="decode") as decode:
        yield prefill, decode


@pytest.fixture
def prefill(engines: tuple[Client, Client]) -> Iterator[Client]:
    yield engines[0]
    engine = engines[0].running.engine
    with engine._changed:
        engine._scheduler.expire_leases(float("inf"))
    engines[0].idle()


@pytest.fixture
def decode(engines: tuple[Client, Client]) -> Iterator[Client]:
    yield engines[1]
    engines[1].idle()


def refused(response: httpx.Response, status: int, kind: str, part: str) -> None:
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (status, status, kind), error
    assert error["param"] == "kv_transfer_params"
    assert part in error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", REQUIRED_REMOTE_FIELDS)
@pytest.mark.parametrize("how", ["absent", "null"])
def test_incomplete_params_are_a_bad_request(
    prefill: Client, decode: Client, field: str, how: str, stream: bool
) -> None:
    params = prefill.prefill(PROMPT)
    if how == "absent":
        del params[field]
    else:
        params[field] = None
    response = decode.post(PROMPT, stream=stream, kv_transfer_params=params)
    refused(response, 400, "BadRequestError", field)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"remote_block_ids": [[]]}, "remote_block_ids"),
        ({"remote_block_ids": [[0], [1]]}, "remote_block_ids"),
        ({"remote_block_ids": "x"}, "malformed"),
        ({"remote_port": 70000}, "remote_port"),
        ({"remote_port": "http"}, "malformed"),
        ({"transfer_mode": "push"}, "transfer_mode"),
        ({"do_remote_decode": True}, "exclude"),
    ],
)
def test_senseless_params_are_a_bad_request(
    prefill: Client, decode: Client, change: dict[str, Any], part: str
) -> None:
    response = decode.post(PROMPT, kv_transfer_params={**prefill.prefill(PROMPT), **change})
    refused(response, 400, "BadRequestError", part)


@pytest.mark.parametrize("stream", [False, True])
def test_reuse_is_refused(prefill: Client, decode: Client, stream: bool) -> None:
    params = prefill.prefill(PROMPT)
    assert decode.post(PROMPT, kv_transfer_params=params).status_code == 200
    response = decode.post(PROMPT, stream=stream, kv_transfer_params=params)
    refused(response, 409, "KVTransferError", "(reused)")
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"remote_request_id": "generate-tokens-nobody"}, "(unknown)"),
        ({"remote_engine_id": "another"}, "(engine_id)"),
        ({"remote_block_ids": [[1, 2, 3, 0]]}, "(blocks_mismatch)"),
        ({"remote_num_tokens": 49}, "not the prompt"),
    ],
)
def test_a_wrong_reference_is_refused(
    prefill: Client, decode: Client, change: dict[str, Any], part: str
) -> None:
    params = prefill.prefill(PROMPT)
    refused(decode.post(PROMPT, kv_transfer_params={**params, **change}), 409, "KVTransferError", part)
    assert decode.post(PROMPT, kv_transfer_params=params).status_code == 200, "the right use still works"


@pytest.mark.parametrize("other", [[*PROMPT[:-1], 5], [9, *PROMPT[1:]], PROMPT[:49]])
def test_another_prompt_is_refused(prefill: Client, decode: Client, other: list[int]) -> None:
    params = prefill.prefill(PROMPT)
    params["remote_num_tokens"] = None
    refused(decode.post(other, kv_transfer_params=params), 409, "KVTransferError", "(prompt_mismatch)")


def test_an_expired_lease_is_refused_and_its_blocks_are_free(tiny_model: Path, decode: Client) -> None:
    with serving(tiny_model, settings=EngineSettings(lease_seconds=0.1)) as short:
        params = short.prefill(PROMPT)
        until(lambda: short.running.engine.gauges().leases_expired == 1)
        short.idle()
        refused(decode.post(PROMPT, kv_transfer_params=params), 409, "KVTransferError", "(expired)")
        text = short.http.get("/metrics").text
        assert 'embedded:leases_expired_total{model_name="tiny"} 1.0' in text
        assert 'embedded:leases_held{model_name="tiny"} 0.0' in text


def test_a_prefill_engine_that_is_gone_is_unreachable(tiny_model: Path, decode: Client) -> None:
    with serving(tiny_model) as gone:
        params = gone.prefill(PROMPT)
    for stream in (False, True):
        response = decode.post(PROMPT, stream=stream, kv_transfer_params=params)
        refused(response, 503, "KVTransferError", "cannot be reached")


def test_a_killed_prefill_process_is_unreachable(tiny_model: Path, decode: Client) -> None:
    port = free_port()
    command = [sys.executable, "-c", "from orchestrator.cli import main; main()", "engine"]
    options = ["--model", str(tiny_model), "--port", str(port), "--served-model-name", "tiny"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers(f"{url}/health"))
        leg = body(PROMPT, sampling={"max_tokens": 1}, kv_transfer_params={"do_remote_decode": True})
        params = httpx.post(url + GENERATE, json=leg, timeout=60).json()["kv_transfer_params"]
    finally:
        process.kill()
        process.wait()
    refused(decode.post(PROMPT, kv_transfer_params=params), 503, "KVTransferError", "cannot be reached")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


class Peer:
    """A prefill peer that does what a test wants instead of the protocol."""

    def __init__(self, *answers: bytes, before: threading.Event | None = None) -> None:
        self.answers = answers
        self.before = before
        self.connected = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    @property
    def params(self) -> dict[str, Any]:
        return {
            "do_remote_prefill": True,
            "remote_block_ids": [[0, 1, 2, 3]],
            "remote_engine_id": "e",
            "remote_request_id": "r",
            "remote_host": "127.0.0.1",
            "remote_port": self.listener.getsockname()[1],
        }

    def serve(self) -> None:
        connection, _ = self.listener.accept()
        with connection, contextlib.suppress(ConnectionError):  # the engine hangs up: that is the point
            for answer in self.answers:
                connection.recv(4096)
                self.connected.set()
                if self.before is not None:
                    self.before.wait()
                connection.sendall(answer)
            connection.settimeout(20)
            while connection.recv(4096):
                pass

    def close(self) -> None:
        self.thread.join()
        self.listener.close()


ACCEPT = b'{"bytes":%d,"lease_seconds":20}'


def accept(count: int) -> bytes:
    text = ACCEPT % count
    return HEADER.pack(Kind.ACCEPT, len(text)) + text


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        ((b"HTTP/1.1 400 Bad Request\r\n",), 503),
        ((HEADER.pack(Kind.ACCEPT, 1 << 30),), 503),
        ((HEADER.pack(Kind.ACCEPT, 2) + b"{}",), 503),
        ((HEADER.pack(Kind.PULL, 0),), 503),
        ((accept(12345),), 409),
        ((), 503),
        ((accept(4 * 16 * 2 * 2 * 2 * 16 * 4 + 64 * 4), HEADER.pack(Kind.DATA, 0) + b"half"), 503),
    ],
    ids=["other protocol", "huge frame", "malformed", "out of order", "wrong size", "silent", "stalls"],
)
def test_a_misbehaving_peer_ends_in_an_error_in_time(
    tiny_model: Path, answers: tuple[bytes, ...], status: int
) -> None:
    transfer = TransferServerSettings(limits=WireLimits(message_seconds=0.5, transfer_seconds=0.5))
    with serving(tiny_model, transfer=transfer) as decode, closing(Peer(*answers)) as peer:
        refused(decode.post(PROMPT, kv_transfer_params=peer.params), status, "KVTransferError", "")
        decode.idle()


def test_an_abort_that_comes_while_kv_is_claimed_is_kept(tiny_model: Path) -> None:
    """The peer accepts only after the abort; the job must not start then."""
    aborted = threading.Event()
    with serving(tiny_model) as decode, closing(Peer(accept(16384), before=aborted)) as peer:
        answers: list[httpx.Response] = []
        fields = {"kv_transfer_params": peer.params, "request_id": "early"}
        thread = threading.Thread(target=lambda: answers.append(decode.post(PROMPT, **fields)))
        thread.start()
        peer.connected.wait()
        ids = ["generate-tokens-early"]
        httpx.post(decode.url + "/inference/v1/abort_requests", json={"request_ids": ids})
        aborted.set()
        thread.join()
        choice = answers[0].json()["choices"][0]
        assert (choice["finish_reason"], choice["token_ids"]) == ("abort", [])
        decode.idle()


def hello(client: Client, params: dict[str, Any]) -> Hello:
    engine = client.running.engine
    compatible = compatibility(
        engine.backend.fingerprint,
        engine.backend.store.layout.describe(),
        engine.backend.arithmetic,
        engine.settings.prefill_chunk,
    )
    return Hello(
        version=VERSION,
        compatibility=compatible,
        engine_id=params["remote_engine_id"],
        request_id=params["remote_request_id"],
        block_ids=params["remote_block_ids"][0],
        tokens=len(PROMPT),
        prompt_digest=prompt_digest(PROMPT),
    )


def connect(params: dict[str, Any]) -> socket.socket:
    return socket.create_connection((params["remote_host"], params["remote_port"]), timeout=10)


@pytest.mark.parametrize("told", [True, False])
def test_a_decode_that_ends_as_it_is_told_to_load_frees_its_blocks(
    prefill: Client, decode: Client, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """Its client leaves, or its peer is lost, between the word and its hearing."""

    async def lost(session: Session, _pull: Pull) -> Event:
        while told and session._events.empty():
            await asyncio.sleep(0)
        raise unreachable("peer", TimeoutError())

    monkeypatch.setattr(Session, "_queued", lost)
    response = decode.post(PROMPT, kv_transfer_params=prefill.prefill(PROMPT))
    refused(response, 503, "KVTransferError", "cannot be reached")
    decode.idle()


def test_a_claimant_that_goes_away_frees_the_blocks(prefill: Client) -> None:
    params = prefill.prefill(PROMPT)
    with connect(params) as claimant:
        claimant.sendall(encode(Kind.HELLO, hello(prefill, params)))
        assert decode_header(claimant.recv(HEADER.size), 1000)[0] is Kind.ACCEPT
        assert prefill.running.engine.gauges().leases == 1
    until(lambda: prefill.running.engine.gauges().leases == 0)
    prefill.idle()


def test_a_claimant_that_dies_while_blocks_travel_frees_them(prefill: Client) -> None:
    params = prefill.prefill(PROMPT)
    with connect(params) as claimant:
        claimant.sendall(encode(Kind.HELLO, hello(prefill, params)) + encode(Kind.PULL))
        claimant.recv(4096)
    until(lambda: prefill.running.engine.gauges().leases == 0)
    prefill.idle()


def test_another_protocol_version_is_refused(prefill: Client) -> None:
    params = prefill.prefill(PROMPT)
    wrong = hello(prefill, params)
    with connect(params) as claimant:
        claimant.sendall(encode(Kind.HELLO, Hello(**{**_fields(wrong), "version": VERSION + 1})))
        assert decode_header(claimant.recv(HEADER.size), 1000)[0] is Kind.REFUSE
    assert prefill.running.engine.gauges().leases == 1


def _fields(message: Hello) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__struct_fields__}


@pytest.mark.parametrize(
    "noise", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x01\0\0\0\xff\xff\xff\xff", b"\x01\0\0\0\0\0\0\2{}"]
)
def test_noise_on_the_transfer_port_is_survived(prefill: Client, decode: Client, noise: bytes) -> None:
    params = prefill.prefill(PROMPT)
    with connect(params) as stranger:
        stranger.sendall(noise)
    assert decode.post(PROMPT, kv_transfer_params=params).status_code == 200


BUSY = [*PROMPT, 9, 9]


@pytest.fixture
def paced(tmp_path: Path, tiny_model: Path) -> Iterator[tuple[Client, Client]]:
    """Scripted engines, the decode engine with one slot. ``BUSY`` is played for 20 s, the rest at once."""
    script = tmp_path / "script.json"
    slow = {"match": {"suffix": [9, 9]}, "token_ids": [7] * 400, "interval_ms": 50}
    script.write_text(json.dumps([slow, {"token_ids": [4, 5, 6]}]))
    with (
        serving(tiny_model, script=script, settings=EngineSettings(lease_seconds=2.0)) as prefill,
        serving(tiny_model, script=script, settings=EngineSettings(max_sequences=1)) as decode,
    ):
        yield prefill, decode
        prefill.idle()
        decode.idle()


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_lease_is_renewed_while_decode_has_the_request_queued(paced: tuple[Client, Client]) -> None:
    prefill, decode = paced
    engine, clock = prefill.running.engine, Clock()
    engine._clock = clock
    queued: list[httpx.Response] = []
    with decode.http.stream(
        "POST", GENERATE, json=body(BUSY, stream=True, sampling={"max_tokens": 400})
    ) as busy:
        lines = busy.iter_lines()
        next(lines)
        params = prefill.prefill(PROMPT)
        lease = engine._leases._leases[params["remote_request_id"]]
        thread = threading.Thread(
            target=lambda: queued.append(decode.post(PROMPT, kv_transfer_params=params))
        )
        thread.start()
        for _ in range(3):  # 4.5 s in all, with a lease of 2 s
            clock.now += 1.5
            until(lambda: lease.deadline == clock.now + 2.0)
        assert engine.gauges().leases == 1
        lines.close()
    thread.join()
    assert queued[0].status_code == 200, queued[0].text
    assert queued[0].json()["choices"][0]["token_ids"] == [4, 5, 6]
    assert decode.running.engine.totals.finished["abort"] == 1


def test_a_client_that_leaves_a_queued_decode_frees_prefill(paced: tuple[Client, Client]) -> None:
    prefill, decode = paced
    prefill.running.engine._clock = Clock()
    with decode.http.stream(
        "POST", GENERATE, json=body(BUSY, stream=True, sampling={"max_tokens": 400})
    ) as busy:
        lines = busy.iter_lines()
        next(lines)
        params = prefill.prefill(PROMPT)
        lease = prefill.running.engine._leases._leases[params["remote_request_id"]]
        content = json.dumps(body(PROMPT, kv_transfer_params=params)).encode()
        head = f"POST {GENERATE} HTTP/1.1\r\nHost: d\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", httpx.URL(decode.url).port)) as leaving:
            leaving.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            until(lambda: lease.claimed)
        until(lambda: prefill.running.engine.gauges().leases == 0)
        assert prefill.running.engine.gauges().leases_consumed == 1
        lines.close()


def test_prefill_returns_params_only_when_it_ends_by_length(prefill: Client) -> None:
    answer = prefill.generate(
        PROMPT,
        sampling={"max_tokens": 5, "logit_bias": {"9": 100}, "stop_token_ids": [9]},
        kv_transfer_params={"do_remote_decode": True},
    )
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["kv_transfer_params"] is None
    prefill.idle()


def test_roles_refuse_what_they_are_not_for(prefill: Client, decode: Client) -> None:
    params = prefill.prefill(PROMPT)
    refused(prefill.post(PROMPT, kv_transfer_params=params), 400, "BadRequestError", "prefill engine")
    asked = decode.post(PROMPT, kv_transfer_params={"do_remote_decode": True})
    refused(asked, 400, "BadRequestError", "decode engine")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"sampling": {"n": 2, "temperature": 1}}, "n"),
    ],
)
def test_a_hold_that_cannot_be_answered_is_refused(
    prefill: Client, fields: dict[str, Any], param: str
) -> None:
    response = prefill.post(PROMPT, kv_transfer_params={"do_remote_decode": True}, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_streamed_decode_over_pulled_kv(prefill: Client, decode: Client) -> None:
    expected = prefill.tokens(PROMPT)
    response = decode.post(PROMPT, stream=True, kv_transfer_params=prefill.prefill(PROMPT))
    got = [token for chunk in frames(response.text) for token in chunk["choices"][0]["token_ids"]]
    assert got == expected


def test_frames_are_bounded_and_typed() -> None:
    with pytest.raises(ProtocolError, match="unknown frame"):
        decode_header(HEADER.pack(99, 0), 10)
    with pytest.raises(ProtocolError, match="exceeds"):
        decode_header(HEADER.pack(Kind.HELLO, 11), 10)
    with pytest.raises(ProtocolError, match="malformed"):
        decode_message(b'{"version":"x"}', Hello)
