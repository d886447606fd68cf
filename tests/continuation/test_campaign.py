"""The randomized campaign (`campaign.py`) over every family.

CONTINUATIONS (default 330) conversations with CONTINUATION_SEED (by default always the same); 10,000 of them,
with a new seed each time, by `make continuation-campaign`.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.continuation.campaign import Campaign
from tests.continuation.families import FAMILIES, load

COUNT = int(os.environ.get("CONTINUATIONS", "330"))
SEED = int(os.environ.get("CONTINUATION_SEED", "20301130"))


@pytest.mark.timeout(300 + COUNT)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_prompt_goes_on_exactly_or_says_why_not(name: str, tmp_path: Path) -> None:
    campaign = Campaign(FAMILIES[name], load(FAMILIES[name], tmp_path), SEED)
    for number in range(-(-COUNT // len(FAMILIES))):
        campaign.run(number)
    turns = campaign.outcomes.total()
    print(f"\nCONTINUATION_SEED={SEED} {name}: {campaign.conversations} conversations, {turns} turns")
    for outcome, count in Counter(campaign.outcomes).most_common():
        print(f"  {outcome:28}{count:6}{100 * count / turns:7.1f}%")
    print(f"  refused by the template: {campaign.refused_by_template}")
    assert campaign.outcomes["exact"], "nothing went on"
