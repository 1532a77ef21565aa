"""Clients that talk on for several turns, and how much of what a turn shares with the one before was found in a prefix cache."""

import asyncio
import json
import random

import aiohttp
from processes import BLOCK_SIZE

WORDS = "fox bear wood river moon stone bird tree night day little old happy brave house garden star boat wind song".split()


class Conversation:
    """One client that talks on after each answer."""

    def __init__(self, session, router, number):
        self.session, self.router = session, router
        self.random = random.Random(number)
        self.messages = [{"role": "system", "content": f"You are narrator {number}. {self.words(80)}"}]
        # Tokens that the replica with the last turn has.
        self.known = 0
        self.shared = self.cached = 0
        self.errors = []
        self.streams = False

    def words(self, n):
        return " ".join(self.random.choice(WORDS) for _ in range(n))

    async def ask(self):
        """The answer's text and usage."""
        body = {"model": "demo", "messages": self.messages, "max_tokens": 24, "temperature": 0}
        if self.streams:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        async with self.session.post(self.router.url + "/v1/chat/completions", json=body) as reply:
            text = await reply.text()
        if reply.status != 200:
            raise aiohttp.ClientError(f"{reply.status}: {text}")
        if not self.streams:
            answer = json.loads(text)
            return answer["choices"][0]["message"]["content"], answer["usage"]
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        if not events or events[-1] != "[DONE]":
            raise aiohttp.ClientError("the stream broke off")
        chunks = [json.loads(event) for event in events[:-1]]
        if any("error" in chunk for chunk in chunks):
            raise aiohttp.ClientError(f"the stream ended with {chunks[-1]}")
        content = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
        return content, chunks[-1]["usage"]

    async def turn(self, may_fail=False):
        self.messages.append({"role": "user", "content": f"Tell me a story about a {self.words(8)}."})
        try:
            content, usage = await self.ask()
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            self.errors.append(str(error))
            assert may_fail, f"a request failed: {error}"
            # The next try works.
            content, usage = await self.ask()
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        self.shared += self.known
        self.cached += min(cached, self.known)
        # Whole blocks of what was computed; the last token of an answer was not.
        self.known = (usage["prompt_tokens"] + usage["completion_tokens"] - 1) // BLOCK_SIZE * BLOCK_SIZE
        self.messages.append({"role": "assistant", "content": content})


async def talk(conversations, n_turns, may_fail=False, at_once=None):
    """Turn by turn, with so many requests under way; by default one of each conversation."""
    for _ in range(n_turns):
        room = asyncio.Semaphore(at_once or len(conversations))

        async def turn(conversation):
            async with room:
                await conversation.turn(may_fail)

        await asyncio.gather(*(turn(c) for c in conversations))


def hits(conversations):
    shared, cached = sum(c.shared for c in conversations), sum(c.cached for c in conversations)
    for c in conversations:
        c.shared = c.cached = 0
    return cached / shared
