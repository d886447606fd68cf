"""vLLM's ``stream_state``, taken over: the output so far is read again, once, and ours goes back.

That lets a stream move from vLLM's derender to ours while a fleet is changed. At the seam, vLLM has sent
white space that we would still hold back, and it may have sent a call's name before we are sure of it;
neither is sent twice. It has not sent the text of a token that ends inside a character, which we would
have: it is sent.
"""

from __future__ import annotations

from render_tier.core.detokenizer import Detokenizer
from render_tier.core.events import CallArguments, CallStart, Event
from render_tier.core.vocabulary import Vocabulary
from render_tier.derendering.served import ServedModel, check_ids
from render_tier.derendering.state import Stream
from render_tier.protocol.derender import PeerStreamState
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.validation import misshapen

MAX_WINDOW = 1024
"""vLLM's own bound on ``prev_tokens``."""


def take_over(peer: PeerStreamState, stream: Stream, model: ServedModel, delta: int) -> list[Event]:
    """Bring a new stream to where vLLM's was. ``delta``: tokens of the chunk that follows, for the length
    check. Returns what the client does not have yet. Raises BadRequest."""
    check_peer_state(peer, stream.output.context.prompt_length, delta, model)
    stream.role_sent = peer.role_sent
    stream.text_offset = peer.logprob_text_offset
    output = stream.output
    machine = output.machine
    if peer.output_token_ids:
        read = _read(peer.output_token_ids, model.vocabulary)
        events = machine.feed(peer.output_token_ids[:read])
        machine.let_go_of_blanks()
        known = len(peer.last_tool_call_ids)
        missed: list[Event] = [
            event for event in events if isinstance(event, CallStart | CallArguments) and event.index >= known
        ]
        missed += (unread := machine.feed(peer.output_token_ids[read:]))
        output.count(events + unread)
        stream.named_before = known
        stream.tokens = machine.tokens
        if output.context.hides_reasoning:
            output.hidden.extend([None] * machine.open_tokens)
    else:
        ids = [model.vocabulary.token_id(token) for token in peer.prev_tokens[peer.read_offset :]]
        missed = machine.feed([token_id for token_id in ids if token_id is not None])
    output.speller.resume(peer.output_token_ids[-4:] or peer.logprob_context_token_ids)
    return missed


def _read(token_ids: list[int], vocabulary: Vocabulary) -> int:
    """How many of the tokens vLLM has shown: it keeps a token back whole while it ends inside a character."""
    detokenizer = Detokenizer(replace_each_byte=vocabulary.byte_fallback)
    read = 0
    for position, token_id in enumerate(token_ids, 1):
        detokenizer.feed(vocabulary.pieces[token_id])
        if not detokenizer.pending:
            read = position
    return read


def check_peer_state(peer: PeerStreamState, prompt_length: int, delta: int, model: ServedModel) -> None:
    limit = model.max_model_len
    output = peer.output_token_ids
    lengths = peer.output_chunk_lens
    if min(lengths, default=1) <= 0:
        raise _wrong("output_chunk_lens must be positive")
    if sum(lengths) != len(output):
        raise _wrong(
            "output_chunk_lens must sum to len(output_token_ids) "
            f"(got sum={sum(lengths)}, len(output_token_ids)={len(output)})"
        )
    if len(peer.prev_tokens) > MAX_WINDOW or len(peer.logprob_context_token_ids) > 4:
        raise _wrong("prev_tokens or logprob_context_token_ids is too long")
    if not 0 <= peer.prefix_offset <= peer.read_offset or peer.logprob_text_offset < 0:
        raise _wrong("offsets out of range")
    if prompt_length + len(output) + delta > limit:
        raise BadRequest(
            f"prompt_token_ids length ({prompt_length}) plus output_token_ids length ({len(output)}) "
            f"plus delta ({delta}) exceeds max_model_len ({limit})."
        )
    check_ids(model, output, "stream_state.output_token_ids")
    check_ids(model, peer.logprob_context_token_ids, "stream_state.logprob_context_token_ids")


def _wrong(why: str) -> BadRequest:
    return misshapen(
        [{"type": "value_error", "loc": ("stream_state",), "msg": f"invalid stream_state: {why}"}]
    )
