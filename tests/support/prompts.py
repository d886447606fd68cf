"""What real engines are asked: questions, beginnings of texts, and prompts of given lengths made of them."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer

# Around the size of a cache block (16, and 128 on the CPU) too.
LENGTHS = (
    *(20, 24, 28, 31, 32, 33, 40, 47, 48, 49, 56, 63, 64, 65, 72, 80, 96, 112),
    *(127, 128, 129, 144, 160, 192, 255, 256, 257, 320, 420, 640, 1024, 1500),
)

QUESTIONS = [
    "What is the capital of France?",
    "Explain why the sky is blue to a child of six.",
    "Write a haiku about a lighthouse in winter.",
    "List three differences between TCP and UDP.",
    "Translate 'good morning' into Spanish, German and Japanese.",
    "What is 17 times 23? Show each step.",
    "Give me a recipe for lentil soup with six ingredients.",
    "Summarise the plot of Romeo and Juliet in two sentences.",
    "How does a bicycle stay upright?",
    "Name the planets in order of their distance from the sun.",
    "Why do cats purr?",
    "Describe a sunset without naming a colour.",
    "What should I pack for a week of hiking in the rain?",
    "Is it safe to eat honey that has crystallised?",
    "Write a polite email that declines an invitation.",
    "What does the word 'serendipity' mean?",
]

TEXTS = [
    "Once upon a time there was a",
    "The three laws of thermodynamics are",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "import json\nfrom pathlib import Path\n\ndef load(path):\n",
    "SELECT name, COUNT(*) FROM orders WHERE",
    "<html>\n<head>\n<title>",
    '{"name": "Ada", "born": 1815, "fields": [',
    "| city | country | people |\n|---|---|---|\n| Oslo |",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 1, 2, 3, 5, 8, 13,",
    "A B C D E F G",
    "The quick brown fox",
    "Der Zug nach München fährt",
    "El niño comió una manzana y",
    "Il était une fois, dans un",
    "東京は日本の首都で、",
    "Привет! Как",
    "🙂🙃🙂🙃🙂",
    "aaaaaaaaaaaaaaaaaaaaaaaa",
    "\n\n\n\n",
    "To be, or not to be, that is the",
    "Water boils at 100 degrees",
    "Q: Who wrote 'War and Peace'?\nA:",
    "In 1969, the first humans",
]


def distinct_prompts(model: Path, lengths: tuple[int, ...] = LENGTHS, seed: int = 11) -> list[list[int]]:
    """One for each length; no two begin alike, so that no prefix cache answers for the engines."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    draw = random.Random(seed)
    made = []
    for i, length in enumerate(lengths):
        ids = tokenizer.encode(f"{seed}.{i}. ").ids
        while len(ids) < length:
            ids += tokenizer.encode(" " + draw.choice(QUESTIONS + TEXTS)).ids
        made.append(ids[:length])
    return made
