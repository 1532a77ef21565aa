"""Replicas of a server and routers in front of them, as processes."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp

BLOCK_SIZE = 16


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Process:
    """A program whose output goes to a file."""

    def __init__(self, log: Path):
        self.log = log
        self.process = None

    def start(self, command):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    async def ended(self, seconds):
        """The exit code."""
        for _ in range(int(seconds * 20)):
            if self.process.poll() is not None:
                return self.process.returncode
            await asyncio.sleep(0.05)
        raise AssertionError(f"{self.log} has not ended after {seconds} s")

    async def answers(self, url, seconds=30):
        """Waits until it answers at an address."""
        async with aiohttp.ClientSession() as session:
            for _ in range(int(seconds * 20)):
                assert self.process.poll() is None, f"it has ended: {self.log.read_text(errors='replace')[-2000:]}"
                try:
                    async with session.get(url) as reply:
                        if reply.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.05)
        raise AssertionError(f"{url} does not answer after {seconds} s: {self.log.read_text(errors='replace')[-2000:]}")


class Replica(Process):
    """`realizar serve` with the demo model."""

    def __init__(self, binary, folder, name):
        super().__init__(folder / f"{name}.log")
        self.binary = binary
        self.port, self.events_port, self.replay_port = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.events = f"tcp://127.0.0.1:{self.events_port}"
        self.replay = f"tcp://127.0.0.1:{self.replay_port}"

    async def up(self):
        self.start(
            [self.binary, "serve", "demo", "--port", str(self.port), "--device", "cpu", "--threads", "1", "--kv-memory", "64M"]
            + ["--block-size", str(BLOCK_SIZE), "--kv-events", self.events, "--kv-events-replay", self.replay]
        )
        await self.answers(self.url + "/ready")

    async def metrics(self):
        """Values by name, without labels."""
        async with aiohttp.ClientSession() as session, session.get(self.url + "/metrics") as reply:
            lines = (await reply.text()).splitlines()
        values = {}
        for line in lines:
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = name.split("{")[0]
                values[name] = values.get(name, 0) + float(value)
        return values


class Router(Process):
    """A router over replicas."""

    def __init__(self, folder, name, command, weighs_load=False):
        super().__init__(folder / f"{name}.log")
        # Whether it gives up a prefix to even out what is under way.
        self.weighs_load = weighs_load
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        programs = Path(sys.executable).parent
        self.command = [str(programs / command[0]), *command[1:], "--port", str(self.port), "--prometheus-port", str(free_port())]
        # As soon as possible: a replica that drains is not ready.
        self.command += ["--health-check-endpoint", "/ready", "--health-check-interval-secs", "1"]
        self.command += ["--health-failure-threshold", "1", "--health-success-threshold", "1"]
        # A replica that is back is used at once.
        self.command += ["--cb-timeout-duration-secs", "1", "--cb-success-threshold", "1"]

    async def up(self):
        self.start(self.command)
        await self.answers(self.url + "/health")
        await self.answers(self.url + "/readiness")


def vllm_router(folder, policy, replicas):
    command = ["vllm-router", "--policy", policy, "--worker-urls", *(r.url for r in replicas)]
    if policy == "kv_aware":
        command += ["--kv-event-model", "demo", "--kv-event-block-size", str(BLOCK_SIZE)]
        for r in replicas:
            command += ["--kv-event-source", f"{r.url}={r.events}", "--kv-event-replay-source", f"{r.url}={r.replay}"]
    return Router(folder, f"vllm-router-{policy}", command, weighs_load=policy == "kv_aware")


def smg(folder, policy, replicas):
    command = ["smg", "launch", "--policy", policy, "--worker-urls", *(r.url for r in replicas)]
    return Router(folder, f"smg-{policy}", command)
