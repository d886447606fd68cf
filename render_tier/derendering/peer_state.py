"""vLLM's ``stream_state``, taken over: the output so far is read again, once, and ours goes back.

That lets a stream move from vLLM's derender to ours while a fleet is changed. Two things differ at the
seam: vLLM has sent white space that we would still hold back, and it may have sent the name of a call
before we are sure of it; both are remembered so that nothing is sent twice.
"""

from __future__ import annotations

from render_tier.core.events import CallArguments, CallStart, Event
from render_tier.derendering.served import ServedModel, check_ids
from render_tier.derendering.state import Stream
from render_tier.protocol.derender import PeerStreamState
from render_tier.protocol.errors import BadRequest

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
    missed: list[Event] = []
    if peer.output_token_ids:
        events = machine.feed(peer.output_token_ids)
        machine.let_go_of_blanks()
        known = len(peer.last_tool_call_ids)
        output.count(events)
        stream.named_before = known
        missed = [
            event for event in events if isinstance(event, CallStart | CallArguments) and event.index >= known
        ]
        stream.tokens = machine.tokens
        if output.context.hides_reasoning:
            output.hidden.extend([None] * machine.open_tokens)
    elif peer.prev_tokens:
        ids = [model.vocabulary.token_id(token) for token in peer.prev_tokens[peer.read_offset :]]
        machine.resume_character([token_id for token_id in ids if token_id is not None])
    context = peer.output_token_ids[-4:] or peer.logprob_context_token_ids
    output.speller.resume(context)
    return missed


def check_peer_state(peer: PeerStreamState, prompt_length: int, delta: int, model: ServedModel) -> None:
    limit = model.max_model_len
    output = peer.output_token_ids
    if min(peer.output_chunk_lens, default=1) <= 0:
        raise BadRequest("invalid stream_state: output_chunk_lens must be positive", param="stream_state")
    if sum(peer.output_chunk_lens) != len(output):
        raise BadRequest(
            "invalid stream_state: output_chunk_lens must sum to len(output_token_ids) "
            f"(got sum={sum(peer.output_chunk_lens)}, len(output_token_ids)={len(output)})",
            param="stream_state",
        )
    if len(peer.prev_tokens) > MAX_WINDOW or len(peer.logprob_context_token_ids) > 4:
        raise BadRequest(
            "invalid stream_state: prev_tokens or logprob_context_token_ids too long", param="stream_state"
        )
    if not 0 <= peer.prefix_offset <= peer.read_offset or peer.logprob_text_offset < 0:
        raise BadRequest("invalid stream_state: offsets out of range", param="stream_state")
    if prompt_length + len(output) + delta > limit:
        raise BadRequest(
            f"prompt_token_ids length ({prompt_length}) plus output_token_ids length ({len(output)}) "
            f"plus delta ({delta}) exceeds max_model_len ({limit})."
        )
    check_ids(model, output, "stream_state.output_token_ids")
    check_ids(model, peer.logprob_context_token_ids, "stream_state.logprob_context_token_ids")
