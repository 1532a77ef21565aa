"""Clients of Dynamo's frontend with two workers of the demo model; see tools/test-dynamo."""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path

import aiohttp
from conversation import Conversation, hits, talk
from demo_folder import write_demo_folder
from processes import BLOCK_SIZE, Process, free_port

N_CLIENTS = 16
N_TURNS = 3


def free_system_port():
    """Below 32768: Dynamo reads it as a number of 16 bits with a sign."""
    while True:
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", random.randrange(20000, 32768)))
            return s.getsockname()[1]


class Worker(Process):
    """`realizar-dynamo` with the demo model."""

    def __init__(self, binary, folder, name):
        super().__init__(folder / f"{name}.log")
        self.port = free_system_port()
        self.command = [binary, "--model-path", str(folder / "demo"), "--weights", "assets/demo.gguf", "--device", "cpu", "--threads", "1"]
        self.command += ["--kv-memory", "64", "--block-size", str(BLOCK_SIZE), "--drain-seconds", "30"]

    async def up(self):
        os.environ["DYN_SYSTEM_PORT"] = str(self.port)
        self.start(self.command)
        del os.environ["DYN_SYSTEM_PORT"]
        await self.answers(f"http://127.0.0.1:{self.port}/health", 60)

    async def metrics(self):
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}/metrics") as reply:
            lines = (await reply.text()).splitlines()
        values = {}
        for line in lines:
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = name.split("{")[0]
                values[name] = values.get(name, 0) + float(value)
        return values

    async def requests(self):
        return (await self.metrics()).get("dynamo_component_requests_total", 0)


class Frontend(Process):
    """Dynamo's frontend, which routes by what the workers say that they have cached."""

    def __init__(self, folder):
        super().__init__(folder / "frontend.log")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(self.port)]
        # A request whose worker ends goes on at the other one.
        self.command += ["--router-mode", "kv", "--migration-limit", "2"]

    async def up(self):
        self.start(self.command)
        await self.answers(self.url + "/health", 60)

    async def has_workers(self, session, n):
        for _ in range(600):
            async with session.get(self.url + "/health") as reply:
                instances = (await reply.json()).get("instances", [])
            async with session.get(self.url + "/v1/models") as reply:
                models = [model["id"] for model in (await reply.json())["data"]]
            if len([i for i in instances if i["endpoint"] == "generate"]) == n and "demo" in models:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"not {n} workers after 60 s: {instances}")


async def post(session, frontend, body, status=200):
    async with session.post(frontend.url + "/v1/chat/completions", json={"model": "demo", **body}) as reply:
        answer = await reply.json()
    assert reply.status == status, f"{reply.status}: {answer}"
    return answer


async def test_answers(session, frontend, workers):
    """Answers, log-probabilities, formats and errors arrive."""
    ask = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "temperature": 0, "max_tokens": 32}
    answer = await post(session, frontend, ask)
    text = answer["choices"][0]["message"]["content"]
    assert len(text) > 40 and answer["usage"]["completion_tokens"] == 32, answer
    print(f"   {text!r}", flush=True)
    entries = (await post(session, frontend, ask | {"logprobs": True, "top_logprobs": 2}))["choices"][0]["logprobs"]["content"]
    assert "".join(e["token"] for e in entries) == text, entries
    assert all(len(e["top_logprobs"]) == 2 and e["top_logprobs"][0]["token"] == e["token"] for e in entries), entries
    # Without objects, whose white space a small model likes too much.
    response_format = {"type": "json_schema", "json_schema": {"name": "animal", "schema": {"enum": ["fox", "bear"]}}}
    answer = await post(session, frontend, ask | {"response_format": response_format})
    assert json.loads(answer["choices"][0]["message"]["content"]) in ["fox", "bear"], answer
    stop = text.split()[3]
    answer = await post(session, frontend, ask | {"stop": [stop]})
    assert answer["choices"][0]["message"]["content"] == text[: text.index(stop)] and answer["choices"][0]["finish_reason"] == "stop", answer
    answer = await post(session, frontend, ask | {"n": 2, "temperature": 1}, 400)
    assert "does not support n above 1" in json.dumps(answer), answer


async def test_affinity(session, frontend, workers, numbers):
    """Each turn goes to the worker that has the one before, and both have about as much to do."""
    before = [await w.requests() for w in workers]
    conversations = [Conversation(session, frontend, next(numbers)) for _ in range(N_CLIENTS)]
    await talk(conversations, 1)
    await talk(conversations, N_TURNS - 1, at_once=1)
    share = hits(conversations)
    counts = [await w.requests() - b for w, b in zip(workers, before)]
    print(f"   cached {share:.1%} of what is shared; requests {counts[0]:.0f} and {counts[1]:.0f}", flush=True)
    assert share >= 0.9, share
    assert min(counts) >= 0.25 * sum(counts), counts
    await talk(conversations, 1)
    print(f"   {hits(conversations):.1%} with {N_CLIENTS} requests under way", flush=True)
    metrics = await workers[0].metrics()
    assert metrics["dynamo_component_total_blocks"] > 0 and metrics["dynamo_component_kv_cache_hit_rate"] > 0, metrics


async def busy(worker):
    """Waits until it has requests under way."""
    while (await worker.metrics()).get("dynamo_component_inflight_requests", 0) == 0:
        pass


async def test_end(session, frontend, workers, numbers, number):
    """Runs conversations while a worker is sent a signal, and starts it again."""
    conversations = [Conversation(session, frontend, next(numbers)) for _ in range(N_CLIENTS)]
    for conversation in conversations:
        conversation.streams = True
    talking = asyncio.create_task(talk(conversations, N_TURNS, may_fail=number == signal.SIGKILL))
    await busy(workers[0])
    workers[0].signal(number)
    code = await workers[0].ended(60)
    await talking
    errors = [e for c in conversations for e in c.errors]
    print(f"   exit code {code}; {len(errors)} of {N_CLIENTS * N_TURNS} streams broke off", flush=True)
    await frontend.has_workers(session, 1)
    await workers[0].up()
    await frontend.has_workers(session, 2)
    return code, errors


async def test_drain(session, frontend, workers, numbers):
    """A worker that is told to end fails no request."""
    code, errors = await test_end(session, frontend, workers, numbers, signal.SIGTERM)
    assert code == 0 and not errors, (code, errors)


async def test_kill(session, frontend, workers, numbers):
    """Requests of a worker that is killed go on at the other one, or their next try works."""
    await test_end(session, frontend, workers, numbers, signal.SIGKILL)


async def main(binary, folder):
    start = time.monotonic()
    # All processes of this test find each other here, and nobody else.
    store = folder / f"store-{os.getpid()}"
    os.environ |= {"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": str(store), "DYN_REQUEST_PLANE": "tcp", "DYN_EVENT_PLANE": "zmq"}
    # Ends without the usual wait for routers that are slow to hear of it, and with time to drain in a debug build, too.
    os.environ |= {"DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "1", "DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT": "40"}
    write_demo_folder("assets/demo.gguf", folder / "demo")
    numbers = iter(range(1, 1_000_000))
    workers = [Worker(binary, folder, f"worker-{i}") for i in range(2)]
    frontend = Frontend(folder)
    try:
        await asyncio.gather(*(w.up() for w in workers), frontend.up())
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
            await frontend.has_workers(session, 2)
            for test, *more in [(test_answers,), (test_affinity, numbers), (test_drain, numbers), (test_kill, numbers), (test_affinity, numbers)]:
                print(f"== {test.__doc__} ({time.monotonic() - start:.0f} s)", flush=True)
                await test(session, frontend, workers, *more)
    finally:
        frontend.kill()
        for w in workers:
            w.kill()
    print(f"Dynamo works ({time.monotonic() - start:.0f} s)")


asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
