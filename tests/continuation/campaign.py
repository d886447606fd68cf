"""Random conversations of several turns, each turn held against a whole render of the same messages.

A turn: the prompt; an output, whose text is cut into tokens at random and which may end with another stop
token or be cut off; the message that derender makes of it; what the client says next, which may also change
the history. Whether the new prompt may go on from the IDs is told apart from the code under test: by the
texts that the IDs decode to.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.errors import ApiError
from render_tier.protocol.generate import ContinuationReport, GenerateRequest
from render_tier.rendering.continuation import ends_inside_character
from render_tier.server.service import Service
from tests.continuation.families import Answer, Family
from tests.families import values
from tests.families.writers import Call

Json = dict[str, Any]
EDIT_SHARE = 0.3
TURNS = 4
HEAD_OF_REASONING = 6
"""Tokens that a model takes at most to begin its reasoning."""
UNTOUCHED = {
    *(
        "reasoning_dropped",
        "generation_prompt_dropped",
        "answer_rewritten",
        "stop_token",
        "partial_character",
    ),
    "cut_inside_token",
}
"""Reasons that need no change of the history."""


@dataclass(frozen=True)
class Edit:
    """A change of the history, and what a refusal may say of it."""

    kind: str
    messages: list[Json]
    tools: list[Json] | None
    reasons: tuple[str, ...]
    places: tuple[int, ...]


Maker = Callable[[list[Json], int], Edit | None]


class Wrong(AssertionError):
    """A continuation that drifted, was refused without need, or for a wrong reason."""


class Campaign:
    """Of one family. ``outcomes`` counts "exact" and the reasons."""

    def __init__(self, family: Family, service: Service, seed: int) -> None:
        self.family = family
        self.service = service
        self.seed = seed
        self.outcomes: Counter[str] = Counter()
        self.conversations = 0
        self.refused_by_template = 0
        self.specials = service.assets.vocabulary.special_ids

    def run(self, number: int) -> None:
        """Conversation ``number``, the same each time. Raises Wrong."""
        rng = Random(f"{self.seed}/{self.family.name}/{number}")
        self.conversations += 1
        try:
            _Conversation(self, rng).run()
        except Wrong as wrong:
            raise Wrong(f"{self.family.name}, seed {self.seed}, conversation {number}: {wrong}") from wrong


class _Conversation:
    def __init__(self, campaign: Campaign, rng: Random) -> None:
        self.campaign = campaign
        self.family = campaign.family
        self.renderer = campaign.service.renderer
        self.assets = campaign.service.assets
        self.rng = rng
        self.hollow = False
        """Some output was cut off before the first word of its reasoning."""
        self.tools: list[Json] | None = None
        if self.family.calls and rng.random() < 0.7:
            named = [t for t in values.TOOLS if t["function"]["name"].isidentifier()]
            self.tools = rng.sample(named, rng.randint(1, 3))
        self.switches = rng.choice(self.family.switches)
        self.messages: list[Json] = [self._user()]
        if rng.random() < 0.5:
            self.messages.insert(0, {"role": "system", "content": self._text()})

    def run(self) -> None:
        prompt = self._render(self.messages, self.tools).token_ids
        for turn in range(self.rng.randint(1, TURNS)):
            output, finish = self._output()
            message = self._derendered(prompt, output, finish, turn)
            history = [*self.messages, message, *self._said_next(message)]
            edit = self._edit(history) if self.rng.random() < EDIT_SHARE else None
            messages, tools = (history, self.tools) if edit is None else (edit.messages, edit.tools)
            try:
                whole = self._render(messages, tools).token_ids
            except ApiError:  # mistral-common and Gemma's template refuse some orders of messages
                self.campaign.refused_by_template += 1
                return
            prompt = self._checked(prompt, output, messages, tools, whole, edit)
            self.messages, self.tools = messages, tools

    def _checked(
        self,
        prompt: list[int],
        output: list[int],
        messages: list[Json],
        tools: list[Json] | None,
        whole: list[int],
        edit: Edit | None,
    ) -> list[int]:
        before = {"prompt_token_ids": prompt, "output_token_ids": output}
        reply = self._render(messages, tools, continuation=before)
        report, given = reply.continuation, prompt + output
        assert isinstance(report, ContinuationReport)
        self.campaign.outcomes["exact" if report.exact else str(report.reason)] += 1
        kept = report.kept_tokens
        self._expect(reply.token_ids[:kept] == given[:kept], "kept_tokens are not there", report)
        may = self._may_go_on(given, whole)
        if report.exact:
            self._expect(kept == len(given), "not all IDs are kept", report)
            self._expect(self._decoded(reply.token_ids) == self._decoded(whole), "silent drift", report)
            self._expect(may, "the texts differ", report)
            return reply.token_ids
        self._expect(not may, "refused without need", report)
        if report.reason == "stop_token":
            self._expect(self._decoded(reply.token_ids) == self._decoded(whole), "silent drift", report)
        else:
            self._expect(reply.token_ids == whole, "not a whole render", report)
        self._check_reason(report, edit)
        return reply.token_ids

    def _check_reason(self, report: ContinuationReport, edit: Edit | None) -> None:
        moved = self.family.moves_head and (self.tools or self.messages[0]["role"] == "system")
        by_itself = UNTOUCHED | ({"frame_differs", "message_differs"} if moved else set())
        if report.reason in by_itself or (self.hollow and report.reason == "reasoning_missing"):
            return
        self._expect(edit is not None, "nothing was edited", report)
        if edit is not None:
            self._expect(report.reason in edit.reasons, f"{edit.kind} is {edit.reasons}", report)
            self._expect(report.message in edit.places, f"{edit.kind} of {edit.places}", report)

    def _expect(self, holds: bool, what: str, report: ContinuationReport) -> None:
        if not holds:
            raise Wrong(f"{what}: {report}")

    def _may_go_on(self, given: list[int], whole: list[int]) -> bool:
        """Told from decoded texts, of special tokens and of what stands between them."""
        if ends_inside_character(given, self.assets.vocabulary):
            return False
        return self._decoded(whole).startswith(self._decoded(given))

    def _decoded(self, ids: list[int]) -> str:
        """The text, with special tokens told from what merely spells them."""
        decode, specials = self.assets.vocabulary.text, self.campaign.specials
        pieces, run = [], list[int]()
        for token in ids:
            if token in specials:
                pieces += [decode(run), f"\x00{token}\x00"]
                run = []
            else:
                run.append(token)
        return "".join([*pieces, decode(run)])

    def _render(self, messages: list[Json], tools: list[Json] | None, **fields: Any) -> GenerateRequest:
        body: Json = {"messages": messages, **self.switches, **fields}
        if tools is not None:
            body["tools"] = tools
        return self.renderer.chat(ChatCompletionRequest.parse(body))

    def _output(self) -> tuple[list[int], str]:
        """Token IDs, and the engine's finish reason."""
        rng, family = self.rng, self.family
        calls: list[Call] = []
        if self.tools and rng.random() < 0.5:
            for tool in rng.choices(self.tools, k=rng.randint(1, family.calls)):
                name = tool["function"]["name"]
                calls.append(Call(name, values.arguments(rng, self.tools, name, values.ValueKnobs())))
        content = self._text() if not calls or (family.content_with_calls and rng.random() < 0.3) else ""
        quiet = "chat_template_kwargs" in self.switches
        reasoning = self._text() if family.thinks and not quiet and rng.random() < 0.75 else None
        text = family.write(
            rng, Answer(reasoning, content, calls), "json" if rng.random() < 0.7 else "compact"
        )
        ids = self._cut_at_random(text)
        draw = rng.random()
        if draw < 0.2 and len(ids) > 1:
            kept = rng.randint(1, len(ids))
            self.hollow |= reasoning is not None and kept <= HEAD_OF_REASONING
            return ids[:kept], "length"
        stop = family.stops[1 if calls else 0] if draw < 0.9 else rng.choice(family.stops)
        return [*ids, self._special(stop)], "stop"

    def _cut_at_random(self, text: str) -> list[int]:
        """IDs of the text, encoded in pieces half of the time: what a model samples is not always what a
        tokenizer would make of it."""
        encode = self._encode
        if self.rng.random() < 0.5:
            return encode(text)
        places = sorted(self.rng.randrange(len(text) + 1) for _ in range(self.rng.randint(1, 4)))
        ids: list[int] = []
        for start, end in zip([0, *places], [*places, len(text)], strict=True):
            ids += encode(text[start:end])
        return ids

    def _encode(self, text: str) -> list[int]:
        if self.assets.mistral is None:
            return self.assets.tokenizer.ids(text, add_special_tokens=False)
        ids: list[int] = []
        marks = ("[TOOL_CALLS]", "[ARGS]")
        while text:
            place, mark = min(((text.find(m), m) for m in marks if m in text), default=(len(text), ""))
            if place:
                ids += self.assets.tokenizer.ids(text[:place], add_special_tokens=False)
            if mark:
                ids.append(self._special(mark))
            text = text[place + len(mark) :]
        return ids

    def _special(self, text: str) -> int:
        token = self.assets.vocabulary.token_id(text)
        assert token is not None, text
        return token

    def _derendered(self, prompt: list[int], output: list[int], finish: str, turn: int) -> Json:
        request: Json = {"messages": self.messages, **self.switches}
        if self.tools is not None:
            request["tools"] = self.tools
        choice = {"index": 0, "token_ids": output, "finish_reason": finish}
        body = {
            "generate_response": {"request_id": f"chatcmpl-{turn}", "choices": [choice]},
            "chat_request": request,
            "prompt_token_ids": prompt,
        }
        answer = json.loads(self.campaign.service.derenderer.chat(json.dumps(body).encode()))
        message = answer["choices"][0]["message"]
        told: Json = {"role": "assistant", "content": message.get("content") or ""}
        if self.family.leads_with_space and self.rng.random() < 0.7:
            told["content"] = told["content"].removeprefix(" ")
        if message.get("reasoning"):
            told["reasoning"] = message["reasoning"]
        if message.get("tool_calls"):
            told["tool_calls"] = message["tool_calls"]
        return told

    def _said_next(self, message: Json) -> list[Json]:
        calls = message.get("tool_calls") or []
        results = [{"role": "tool", "tool_call_id": call["id"], "content": self._text()} for call in calls]
        if results and self.rng.random() < 0.8:
            return results
        return [*results, self._user()] if not (results and self.family.alternates) else results

    def _user(self) -> Json:
        return {"role": "user", "content": self._text()}

    def _text(self) -> str:
        return values.text(self.rng, self.family.text)

    def _edit(self, history: list[Json]) -> Edit | None:
        """Of what stands before the client's last words."""
        rng = self.rng
        last = max(i for i, message in enumerate(history) if message["role"] == "assistant")
        makers: tuple[Maker, ...] = (
            self._other_text,
            self._other_answer,
            self._left_out,
            self._put_in,
            self._no_reasoning,
            self._cut_short,
        )
        return rng.choice(makers)(history, last)

    def _other_text(self, history: list[Json], last: int) -> Edit | None:
        """Another beginning, end or whole of an earlier message that no model wrote."""
        place = self.rng.choice([i for i in range(last) if history[i]["role"] != "assistant"])
        old = history[place]["content"]
        new = self.rng.choice([f"{old} indeed", f"Well, {old}", "Something else", old[: len(old) // 2] + "Q"])
        changed = [*history[:place], {**history[place], "content": new}, *history[place + 1 :]]
        return Edit("another text", changed, self.tools, ("message_differs",), (place,))

    def _other_answer(self, history: list[Json], last: int) -> Edit | None:
        message = history[last]
        if not message["content"]:
            return None
        changed = [*history[:last], {**message, "content": "Zq " + message["content"]}, *history[last + 1 :]]
        return Edit("another answer", changed, self.tools, ("answer_differs",), (last,))

    def _left_out(self, history: list[Json], last: int) -> Edit | None:
        """A question and its answer."""
        pairs = [
            i for i in range(last)
            if history[i]["role"] == "user" and history[i + 1]["role"] == "assistant" and i + 1 < last
            and not history[i + 1].get("tool_calls") and history[i + 2]["role"] == "user"
        ]  # fmt: skip
        if not pairs:
            return None
        place = self.rng.choice(pairs)
        changed = history[:place] + history[place + 2 :]
        reasons = ("message_differs", "frame_differs", "answer_differs", "reasoning_missing")
        # What is written of earlier reasoning may hang on what comes later.
        first = 0 if self.family.thinks else place
        return Edit("a pair left out", changed, self.tools, reasons, tuple(range(first, place + 2)))

    def _put_in(self, history: list[Json], last: int) -> Edit | None:
        if self.family.alternates or history[0]["role"] == "system":
            return None
        changed = [{"role": "system", "content": "Zq rules."}, *history]
        return Edit("instructions put in", changed, self.tools, ("message_differs", "frame_differs"), (0,))

    def _no_reasoning(self, history: list[Json], last: int) -> Edit | None:
        message = history[last]
        if not message.get("reasoning"):
            return None
        changed = [
            *history[:last],
            {k: v for k, v in message.items() if k != "reasoning"},
            *history[last + 1 :],
        ]
        return Edit("reasoning left out", changed, self.tools, ("reasoning_missing",), (last,))

    def _cut_short(self, history: list[Json], last: int) -> Edit | None:
        reasons = ("history_ends_early",)
        return Edit("the answer left out", history[:last], self.tools, reasons, (last,))
