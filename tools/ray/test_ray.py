"""Clients of the deployment with the demo model: streams, scaling both ways, servers and actors that die; see tools/test-ray."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import aiohttp
import ray
from deployment import Options, app
from ray import serve

# Tells the servers of this test from all others.
NAME = f"demo-{os.getpid()}"
MAX_SEQS = 6
ARGUMENTS = f"--device cpu --threads 1 --kv-memory 64M --served-name {NAME}"
BODY = {"messages": [{"role": "user", "content": "Tell me a story."}], "ignore_eos": True, "stream": True, "seed": 7}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


URL = f"http://127.0.0.1:{free_port()}"


def n_running():
    deployment = serve.status().applications["realizar"].deployments["Realizar"]
    return deployment.replica_states.get("RUNNING", 0)


def servers():
    """Process ids of all servers of this test."""
    found = subprocess.run(["pgrep", "-f", f"^[^ ]+ serve .*--served-name {NAME}"], capture_output=True, text=True)
    return {int(pid) for pid in found.stdout.split()}


def parent(pid):
    with open(f"/proc/{pid}/stat") as f:
        return int(f.read().rpartition(")")[2].split()[1])


async def metric(session, name):
    async with session.get(URL + "/metrics") as reply:
        return sum(float(line.rsplit(" ", 1)[1]) for line in (await reply.text()).splitlines() if line.startswith(name + "{"))


async def wait_for(what, condition, seconds=90):
    start = time.monotonic()
    while True:
        met = condition()
        if asyncio.iscoroutine(met):
            met = await met
        if met:
            break
        assert time.monotonic() - start < seconds, f"not after {seconds} s: {what}"
        await asyncio.sleep(0.2)
    print(f"   {what}: {time.monotonic() - start:.1f} s", flush=True)


async def stream(session, n_tokens, url=URL):
    """A whole stream: its pieces as they came."""
    pieces = []
    body = BODY | {"max_tokens": n_tokens}
    async with session.post(url + "/v1/chat/completions", json=body, headers={"X-Request-Id": "test"}) as reply:
        async for piece in reply.content.iter_any():
            pieces.append(piece)
    text = b"".join(pieces)
    if reply.status != 200 or not text.endswith(b"data: [DONE]\n\n") or text.count(b'"content":"') < n_tokens / 2:
        raise aiohttp.ClientError(f"{reply.status}: {text[-200:]}")
    return reply, pieces


class Client:
    """Asks for one stream after another."""

    def __init__(self, session, n_tokens):
        self.session, self.n_tokens = session, n_tokens
        self.n_answers, self.errors, self.asks = 0, [], True
        self.task = asyncio.create_task(self.talk())

    async def talk(self):
        while self.asks:
            try:
                await stream(self.session, self.n_tokens)
                self.n_answers += 1
            except aiohttp.ClientError as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.1)


async def end(clients):
    for client in clients:
        client.asks = False
    await asyncio.gather(*(c.task for c in clients))
    return sum(c.n_answers for c in clients), [e for c in clients for e in c.errors]


async def test_streams(session, binary):
    """What a server sends arrives unchanged, piece by piece; a client that goes away ends its request."""
    with tempfile.TemporaryFile("r+") as log:
        direct = subprocess.Popen([binary, "serve", "demo", "--port", "0", *ARGUMENTS.split()], stderr=log)
        try:

            def address():
                log.seek(0)
                return re.search(r" is ready at (\S+):", log.read())

            await wait_for("a server of its own", address)
            expected, expected_pieces = await stream(session, 64, address()[1])
        finally:
            direct.kill()
            direct.wait()
    reply, pieces = await stream(session, 64)

    def comparable(pieces):
        # Without what differs from request to request.
        return re.sub(rb'"(id":"[^"]*|created":\d+|timings":{[^}]*})', b"", b"".join(pieces))

    assert comparable(pieces) == comparable(expected_pieces)
    for name in ("Content-Type", "Cache-Control", "X-Request-Id"):
        assert reply.headers.get(name) == expected.headers.get(name), name
    assert len(pieces) > 8, f"{len(pieces)} pieces"

    body = BODY | {"stream": False, "max_tokens": 8}
    async with session.post(URL + "/v1/chat/completions", json=body) as reply:
        assert (await reply.json())["usage"]["completion_tokens"] == 8
    async with session.get(URL + "/v1/models?all=1") as reply:
        assert (await reply.json())["data"][0]["id"] == NAME
    async with session.post(URL + "/v1/chat/completions", json={"messages": 5}) as reply:
        assert reply.status == 400 and "messages" in (await reply.json())["error"]["message"]

    async with session.post(URL + "/v1/chat/completions", json=BODY | {"max_tokens": 900}) as reply:
        await reply.content.readany()
        assert await metric(session, "vllm:num_requests_running") == 1
    before = await metric(session, "realizar_generated_tokens_total")

    async def none_running():
        return await metric(session, "vllm:num_requests_running") == 0

    await wait_for("a request ends whose client is gone", none_running)
    assert await metric(session, "realizar_generated_tokens_total") < before + 800


async def main(binary):
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        print("== streams", flush=True)
        await test_streams(session, binary)

        print("== a second replica while requests wait", flush=True)
        (first,) = servers()
        clients = [Client(session, 128) for _ in range(4 * MAX_SEQS)]
        await wait_for("two replicas", lambda: n_running() == 2)

        print("== a server that dies under load is replaced", flush=True)
        # By then both have work.
        n_answers = sum(c.n_answers for c in clients)
        await wait_for("more answers", lambda: sum(c.n_answers for c in clients) >= n_answers + len(clients))
        os.kill(first, signal.SIGKILL)
        await wait_for("two servers again", lambda: len(servers() - {first}) == 2)
        await wait_for("two replicas again", lambda: n_running() == 2)
        n_answers, errors = await end(clients)
        print(f"   {n_answers} answers, {len(errors)} streams broke off: {set(errors)}", flush=True)
        assert errors and all(len(c.errors) <= 1 for c in clients), errors

        print("== one replica when there is less to do", flush=True)
        # Less than half of one replica's room, on both.
        clients = [Client(session, 900) for _ in range(MAX_SEQS // 2 - 1)]
        await wait_for("one replica", lambda: n_running() == 1)
        await wait_for("one server", lambda: len(servers()) == 1)
        n_answers, errors = await end(clients)
        print(f"   {n_answers} answers, {len(errors)} streams broke off", flush=True)
        assert not errors, errors

        print("== an actor that dies takes its server with it and is replaced", flush=True)
        (pid,) = servers()
        os.kill(parent(pid), signal.SIGKILL)
        await wait_for("its server has ended", lambda: pid not in servers())
        clients = [Client(session, 8)]
        await wait_for("answers again", lambda: clients[0].n_answers > 0)
        print(f"   {len((await end(clients))[1])} requests failed meanwhile", flush=True)
        assert len(servers()) == 1


if __name__ == "__main__":
    start = time.monotonic()
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        # Whatever runs on this machine is left alone.
        ray.init("local", num_cpus=4, num_gpus=0, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        serve.start(http_options={"port": int(URL.rpartition(":")[2])})
        options = Options(binary=binary, max_replicas=2, max_seqs=MAX_SEQS, upscale_seconds=1, arguments=ARGUMENTS)
        serve.run(app(options), name="realizar")
        print(f"== ready after {time.monotonic() - start:.1f} s", flush=True)
        try:
            asyncio.run(main(binary))
        finally:
            serve.shutdown()
            ray.shutdown()
        assert not servers(), "a server is left over"
    print(f"Ray Serve works ({time.monotonic() - start:.0f} s)")
