"""What a model generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Usage:
    """Sizes of a request, in tokens."""

    prompt_tokens: int
    """Of the prompt."""
    completion_tokens: int
    """Generated, without the token that ended it."""
    cached_tokens: int
    """Of the prompt, found in the cache of earlier requests and not computed."""


@dataclass(frozen=True)
class Logprob:
    """Log-probabilities in the place of one generated token: natural logarithms, under the model's own distribution."""

    token: int
    """Id of the token that was chosen."""
    logprob: float
    """Its log-probability."""
    top: dict[int, float]
    """As many of the likeliest tokens as were asked for, likeliest first, by their ids."""


@dataclass(frozen=True)
class Completion:
    """A whole continuation or answer."""

    text: str
    """Its text, without special tokens and without the stop string that ended it."""
    tokens: list[int]
    """Ids of its tokens; those of a stop string are among them, a token that ends a turn is not."""
    finish_reason: Literal["stop", "length", "cancelled"]
    """Why it ended: the model or a stop string ended it, `max_tokens` or the context was reached, or it was cancelled."""
    stop: str | None
    """The stop string that was found, if that is why."""
    logprobs: list[Logprob] | None
    """Per token, if `logprobs` was asked for."""
    usage: Usage
    """Its size."""

    def __str__(self) -> str:
        return self.text
