"""A language model on a text file: predict each next character or word."""

from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from polyrhythm.errors import DataError
from polyrhythm.training.config import Tokens
from polyrhythm.training.data.task import Split, Task
from polyrhythm.training.models import text_model

CONTEXT = 35
"""Tokens of one sample, as in SelSync."""
VOCABULARY = 10_000
"""Most frequent tokens that are told apart; all others are one token."""
TEST_SHARE = 0.1
"""The end of the text is what the model is tested on."""


def text_task(path: str | None, tokens: Tokens = "char", model: str = "transformer") -> Task:
    """The task on a text file in UTF-8: its first nine tenths to learn from, the rest to test.

    A sample is 35 tokens, and its target the 35 tokens that stand one further.

    Raises:
        DataError: for a missing file or one that is too short.
    """
    words = read_tokens(path, tokens)
    numbers, vocabulary = encode(words)
    cut = round(len(numbers) * (1 - TEST_SHARE))
    train, test = (samples(part) for part in (numbers[:cut], numbers[cut:]))
    if not len(train) or not len(test):
        raise DataError(f"text file {path!r} has {len(words)} {tokens}s; give at least {(CONTEXT + 1) * 10}")
    return Task("text", train, test, build=text_model(model, vocabulary, CONTEXT))


def read_tokens(path: str | None, tokens: Tokens) -> list[str]:
    """The file's characters or blank-separated words."""
    if path is None:
        raise DataError("task text needs training.data, a text file")
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"text file {path!r} cannot be read: {error}") from error
    return list(content) if tokens == "char" else content.split()


def encode(words: list[str]) -> tuple[Tensor, int]:
    """Numbers of tokens, the most frequent first, and how many there are.

    >>> encode(list("abab"))
    (tensor([0, 1, 0, 1]), 3)
    """
    known = {word: number for number, (word, _) in enumerate(Counter(words).most_common(VOCABULARY))}
    return torch.tensor([known.get(word, len(known)) for word in words]), len(known) + 1


def samples(numbers: Tensor) -> Split:
    """Consecutive pieces of the text; what is left at the end is dropped."""
    pieces = max(0, len(numbers) - 1) // CONTEXT
    used = pieces * CONTEXT
    inputs, targets = numbers[:used], numbers[1 : used + 1]
    return Split(inputs.view(pieces, CONTEXT), targets.view(pieces, CONTEXT))
