"""Events of the parser core folded into one message, held on the way to what every stream must keep."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from render_tier.core.events import CallArguments, CallEnd, CallStart, Event, Stopped, Text, Tokens
from render_tier.core.table import Region


@dataclass
class Call:
    name: str
    arguments: str = ""
    complete: bool | None = None


@dataclass
class Collected:
    """Equal when the client has seen the same, whatever the pieces were."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    """Region of each output token, in order."""
    stopped: str | None = None

    def add(self, events: Iterable[Event]) -> Collected:
        for event in events:
            match event:
                case Text(region=region, text=text):
                    assert text, "an event without text"
                    assert region in (Region.REASONING, Region.CONTENT)
                    if region is Region.REASONING:
                        self.reasoning += text
                    else:
                        self.content += text
                case CallStart(index=index, name=name):
                    assert index == len(self.calls), "indexes increment"
                    assert not self.calls or self.calls[-1].complete is not None, "the last call has ended"
                    self.calls.append(Call(name))
                case CallArguments(index=index, text=text):
                    assert text, "an event without text"
                    assert index == len(self.calls) - 1
                    assert self.calls[index].complete is None, "no text after the end"
                    self.calls[index].arguments += text
                case CallEnd(index=index, complete=complete):
                    assert index == len(self.calls) - 1
                    assert self.calls[index].complete is None, "ends once"
                    self.calls[index].complete = complete
                    if complete:
                        json.loads(self.calls[index].arguments)
                case Tokens(region=region, count=count):
                    assert count > 0
                    self.regions += [region] * count
                case Stopped(stop=stop):
                    assert self.stopped is None, "stops once"
                    self.stopped = stop
        return self
