"""Record the answers of `vllm launch render` to the requests of `tests.support.render_corpus` and
`tests.support.messages_corpus`.

    VLLM_ENV=... python -m tests.vllm.record_render [CORPUS] [NAME ...]

Writes `tests/conformance/data/CORPUS/NAME.jsonl`: one line per request, with what `comparable` leaves of the
answer.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import httpx

from tests.support import messages_corpus, render_corpus, responses_corpus, vllm
from tests.support.forked_vllm import ForkedServer, forking
from tests.support.processes import ServerProcess
from tests.support.render_corpus import ALL, SERVERS, comparable, lay_out, request_digest

MODELS = Path(os.environ.get("MODELS_DIR", Path(__file__).resolve().parents[2] / ".cache" / "models"))
CORPORA = {
    "render": render_corpus.corpus,
    "messages": messages_corpus.corpus,
    "responses": responses_corpus.corpus,
}
MODELS_OF = {"render": ALL, "messages": SERVERS, "responses": responses_corpus.MODELS}
"""By corpus."""
DATA = render_corpus.DATA.parent


@contextmanager
def server(parent: Popen[str], name: str, scratch: Path) -> Iterator[ServerProcess]:
    """vLLM's render server for one tokenizer of the corpus, forked by ``parent``."""
    chosen = ALL[name]
    model = lay_out(chosen, MODELS / chosen.tokenizer, scratch / name / "model")
    process = ForkedServer(
        parent,
        f"vllm-render-{name}",
        *("launch", "render", model, "--served-model-name", name, *chosen.options),
        log_dir=scratch / name,
    )
    vllm.start(process)
    try:
        yield process
    finally:
        process.stop()


def answers(corpus: str, name: str, url: str) -> Iterator[dict[str, Any]]:
    """What the server at `url` answers to each request of the corpus."""
    # vLLM closes idle connections after five seconds, so none is used twice.
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=url, timeout=120, trust_env=False, limits=limits) as client:
        for title, (path, body) in CORPORA[corpus](name).items():
            response = client.post(path, json=body)
            answer = comparable(response.status_code, response.json())
            yield {"name": title, "request": request_digest(path, body), "answer": answer}


def main() -> None:
    names = sys.argv[1:]
    chosen = [names.pop(0)] if names and names[0] in CORPORA else list(CORPORA)
    with tempfile.TemporaryDirectory() as directory, forking(scratch := Path(directory)) as parent:
        for name in names or ALL:
            with server(parent, name, scratch) as process:
                record(chosen, name, process)


def record(corpora: Sequence[str], name: str, process: ServerProcess) -> None:
    for corpus in (each for each in corpora if name in MODELS_OF[each]):
        try:
            given = list(answers(corpus, name, process.url))
        except httpx.TransportError as error:
            raise SystemExit(f"{name}: {error}\n{process.log()}") from error
        lines = [json.dumps(line, ensure_ascii=False) + "\n" for line in given]
        (DATA / corpus).mkdir(parents=True, exist_ok=True)
        (DATA / corpus / f"{name}.jsonl").write_text("".join(lines))
        print(corpus, name, len(lines), flush=True)


if __name__ == "__main__":
    main()
