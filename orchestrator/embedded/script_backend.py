"""The backend that plays a script: given token IDs at a given pace, behind the same surface as a model.

A script is a JSON array of entries, or one entry per line (JSONL). The first entry that matches a prompt
answers it; no entry: 400. An entry:

    {"match": {"suffix": [1, 2], "contains": [7, 8]},   both optional; without "match": any prompt
     "token_ids": [5, 6, 7],                            required; what is generated, in order
     "interval_ms": 20,                                 pause between tokens (0)
     "first_token_ms": 100,                             earliest time of the first token after arrival (0)
     "finish_reason": "stop", "stop_reason": null}      how the sequence ends after its last token

The request's own limits apply as ever: max_tokens, stop_token_ids and EOS may end it earlier. Sampling
parameters do not change what is played; log-probabilities are 0 for the played token.

KV of a position is a digest chain of the tokens up to it, so that a transfer moves real bytes and the
receiving engine can tell whether they belong to the prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from orchestrator.embedded.backend import Decoded, DecodeRow, PromptLogprobs, SequenceSource
from orchestrator.embedded.kv_store import FloatArray, KVLayout, KVStore
from orchestrator.embedded.sampler import Ending, RankedToken, SampledToken, SamplingSettings
from orchestrator.embedded.weights import ModelError, eos_token_ids, fingerprint, read_json
from render_tier.protocol.errors import BadRequest

DIGEST_FLOATS = 4


class Match(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    suffix: list[int] = []
    contains: list[int] = []


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token_ids: list[int]
    match: Match = Match()
    interval_ms: float = 0.0
    first_token_ms: float = 0.0
    finish_reason: str = "stop"
    stop_reason: int | str | None = None


class ScriptError(ValueError):
    """The script file is malformed."""


def load_script(path: Path, vocab_size: int) -> list[Entry]:
    try:
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("["):
            raw = msgspec.json.decode(text)
        else:
            raw = [msgspec.json.decode(line) for line in text.splitlines() if line.strip()]
        entries = msgspec.convert(raw, list[Entry])
    except (OSError, msgspec.MsgspecError) as error:
        raise ScriptError(f"{path}: {error}") from error
    if not entries:
        raise ScriptError(f"{path} has no entries")
    for number, entry in enumerate(entries):
        if not entry.token_ids or not all(0 <= token < vocab_size for token in entry.token_ids):
            raise ScriptError(f"{path}: entry {number}: token_ids must be 1 or more ids below {vocab_size}")
        if entry.interval_ms < 0 or entry.first_token_ms < 0:
            raise ScriptError(f"{path}: entry {number}: times must not be negative")
    return entries


def matches(match: Match, prompt: Sequence[int]) -> bool:
    tokens = list(prompt)
    if match.suffix and tokens[-len(match.suffix) :] != match.suffix:
        return False
    width = len(match.contains)
    return any(tokens[at : at + width] == match.contains for at in range(len(tokens) - width + 1))


class Playback:
    """Where one sequence is in its entry."""

    def __init__(self, entry: Entry, settings: SamplingSettings) -> None:
        self.delay = entry.first_token_ms / 1000
        self._entry = entry
        self._settings = settings
        self._played = 0

    def next(self) -> Decoded:
        entry = self._entry
        token = entry.token_ids[self._played]
        self._played += 1
        ranked = (RankedToken(token, 0.0, 1),) if self._settings.logprobs is not None else None
        over = self._played == len(entry.token_ids)
        ending = Ending(entry.finish_reason, entry.stop_reason) if over else None
        return Decoded(SampledToken(token, ranked), ending, entry.interval_ms / 1000)


class ScriptBackend:
    """Needs only ``config.json`` (vocabulary size, context length) and the EOS ids of a model directory."""

    arithmetic = "script"

    def __init__(
        self, directory: Path, script: Path, *, max_model_len: int | None, block_size: int, blocks: int
    ) -> None:
        config: dict[str, Any] = read_json(directory / "config.json")
        try:
            self.vocab_size = int(config["vocab_size"])
            self.max_model_len = max_model_len or int(config["max_position_embeddings"])
        except KeyError as error:
            raise ModelError(f"config.json has no {error}") from error
        self.eos_token_ids = eos_token_ids(directory)
        self.fingerprint = fingerprint(directory)
        self.store = KVStore(KVLayout(1, 1, DIGEST_FLOATS, block_size, state=DIGEST_FLOATS), blocks)
        self._entries = load_script(script, self.vocab_size)

    def warm_up(self) -> None:
        """Nothing is slow the first time."""

    def open_sequence(self, prompt: Sequence[int], settings: SamplingSettings, index: int) -> SequenceSource:
        for entry in self._entries:
            if matches(entry.match, prompt):
                return Playback(entry, settings)
        raise BadRequest("No entry of the script matches the prompt.", param="token_ids")

    def prefill(
        self, prompt: Sequence[int], start: int, end: int, blocks: Sequence[int], logprobs: int | None
    ) -> PromptLogprobs:
        digests = self._digests(prompt, start, end)
        self.store.sequence(blocks, end).write(0, start, digests, digests)
        self.store.state(blocks, end)[:] = digests[0, -1]
        if logprobs is None:
            return []
        return [(RankedToken(token, 0.0, 1),) for token in prompt[start + 1 : end + 1]]

    def decode(self, rows: Sequence[tuple[DecodeRow, SequenceSource]]) -> list[Decoded]:
        decoded = []
        for _, source in rows:
            assert isinstance(source, Playback)
            decoded.append(source.next())
        return decoded

    def accept_loaded(self, prompt: Sequence[int], blocks: Sequence[int]) -> bool:
        count = len(prompt)
        keys, values = self.store.sequence(blocks, count).read(0, count)
        state = self.store.state(blocks, count)
        expected = self._digests(prompt, 0, count)
        return (
            keys.tobytes() == values.tobytes() == expected.tobytes()
            and state.tobytes() == expected[0, -1].tobytes()
        )

    @staticmethod
    def _digests(prompt: Sequence[int], start: int, end: int) -> FloatArray:
        """``(1, end - start, DIGEST_FLOATS)``: the raw digest of every prefix, as bytes in float cells."""
        chain = hashlib.sha256()
        rows = []
        for position in range(end):
            chain.update(prompt[position].to_bytes(8, "little"))
            if position >= start:
                rows.append(chain.digest()[: 4 * DIGEST_FLOATS])
        return np.frombuffer(b"".join(rows), dtype=np.float32).reshape(1, end - start, DIGEST_FLOATS)
