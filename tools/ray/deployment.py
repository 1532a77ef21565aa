"""Replicas of `realizar serve` under Ray Serve: each is a process that is watched, drained, and replaced when it ends.

    serve run deployment:app model=/models/qwen3-8b.gguf gpus=1 max_replicas=4

A replica's actor starts the server on a free port of its machine and forwards requests and streams to it unchanged. Replicas are added while
requests wait in the servers. With `gpus`, Ray gives each actor cards of its own in CUDA_VISIBLE_DEVICES, which the server's driver follows; with
two or more, add `arguments="--tp 2"`.
"""

import asyncio
import collections
import ctypes
import logging
import os
import shlex
import signal
import sys

import aiohttp
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse

# Headers that belong to one connection.
HOP_BY_HOP = {"connection", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}

log = logging.getLogger("ray.serve")


class Options(BaseModel):
    """Arguments of the application, as `name=value`."""

    model_config = ConfigDict(extra="forbid")

    binary: str = "realizar"
    # As `realizar serve` takes it, on each machine.
    model: str = "demo"
    # Further options of `realizar serve`.
    arguments: str = ""
    # Sequences that a server computes at the same time; more wait in it.
    max_seqs: int = 64
    # What Ray sets aside for a replica.
    gpus: float = 0
    cpus: float = 1
    min_replicas: int = 1
    max_replicas: int = 1
    # How long requests must wait, in seconds, before a replica is added; one is removed after six times as long.
    upscale_seconds: float = 10
    # How long a removed replica may finish its answers, in seconds.
    drain_seconds: int = 30


def replicas_by_waiting(context: AutoscalingContext):
    """One replica more while requests wait, one fewer once half the room of the others holds all that run."""
    metrics = context.aggregated_metrics or {}
    waiting, running, max_seqs = (metrics.get(name, {}).values() for name in ("waiting", "running", "max_seqs"))
    n = context.target_num_replicas
    # A replica that still loads its model will take requests, too.
    if sum(waiting) > 0 and context.current_num_replicas >= n:
        n += 1
    elif sum(waiting) == 0 and sum(running) <= 0.5 * max(max_seqs, default=0) * (n - 1):
        n -= 1
    return min(max(n, context.capacity_adjusted_min_replicas), context.capacity_adjusted_max_replicas), {}


def end_with_parent():
    """Lets the kernel end this process when its actor is killed; without it the server would keep its memory and its GPU."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


@serve.deployment
class Realizar:
    """One `realizar serve`."""

    async def __init__(self, options: Options):
        self.options = options
        self.draining = False
        self.url = asyncio.get_running_loop().create_future()
        command = [options.binary, "serve", options.model, "--port", "0", "--max-seqs", str(options.max_seqs)]
        command += ["--drain-seconds", str(options.drain_seconds), *shlex.split(options.arguments)]
        self.process = await asyncio.create_subprocess_exec(
            *command, stderr=asyncio.subprocess.PIPE, preexec_fn=end_with_parent if sys.platform == "linux" else None
        )
        self.watching = asyncio.create_task(self.watch())
        url = await self.url
        self.session = aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False)

    async def watch(self):
        """Logs what the server says, and ends with it."""
        last = collections.deque(maxlen=20)
        async for line in self.process.stderr:
            line = line.decode(errors="replace").rstrip()
            last.append(line)
            log.info("%s", line)
            if " is ready at " in line and not self.url.done():
                self.url.set_result(line.split(" is ready at ")[1].split()[0].rstrip(":"))
        code = await self.process.wait()
        if not self.url.done():
            self.url.set_exception(RuntimeError(f"realizar ended with exit code {code}: " + "\n".join(last)))
        elif not self.draining:
            log.error("realizar ended with exit code %s", code)
            # Ray replaces an actor that ends at once, and sends requests that it has not begun to another one.
            os._exit(1)

    async def __call__(self, request: Request):
        headers = [(k, v) for k, v in request.headers.items() if k not in HOP_BY_HOP]
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        try:
            reply = await self.session.request(request.method, path, headers=headers, data=await request.body() or None)
        except aiohttp.ClientError as error:
            return PlainTextResponse(f"the replica does not answer: {error}", 502)

        async def body():
            # Ray closes this when the client has gone; that closes the connection, and the server stops computing.
            async with reply:
                async for piece in reply.content.iter_any():
                    yield piece

        return StreamingResponse(body(), reply.status, {k: v for k, v in reply.headers.items() if k.lower() not in HOP_BY_HOP})

    async def check_health(self):
        """Ray replaces a replica for which this fails several times."""
        async with self.session.get("/health") as reply:
            if reply.status != 200:
                raise RuntimeError(f"/health answers {reply.status}: {await reply.text()}")

    async def record_autoscaling_stats(self):
        """What `replicas_by_waiting` decides by."""
        async with self.session.get("/metrics") as reply:
            lines = (await reply.text()).splitlines()

        def gauge(name):
            return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))

        waiting, running = gauge("vllm:num_requests_waiting"), gauge("vllm:num_requests_running")
        return {"waiting": waiting, "running": running, "max_seqs": float(self.options.max_seqs)}

    async def __del__(self):
        """Ends the server. Ray calls this once the replica's requests are answered, or have had their time."""
        self.draining = True
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            await self.process.wait()
        await self.session.close()


def app(options: Options):
    """The application."""
    scaling = AutoscalingConfig(
        min_replicas=options.min_replicas,
        max_replicas=options.max_replicas,
        upscale_delay_s=options.upscale_seconds,
        downscale_delay_s=6 * options.upscale_seconds,
        metrics_interval_s=min(options.upscale_seconds / 2, 5),
        look_back_period_s=options.upscale_seconds,
        policy=AutoscalingPolicy(policy_function=replicas_by_waiting),
    )
    deployment = Realizar.options(
        # More than run at a time, so that requests wait in the servers, where they are counted.
        max_ongoing_requests=4 * options.max_seqs,
        autoscaling_config=scaling,
        health_check_period_s=2,
        # Ray waits for the replica's answers, then the server ends.
        graceful_shutdown_timeout_s=options.drain_seconds + 10,
        ray_actor_options={"num_gpus": options.gpus, "num_cpus": options.cpus},
    )
    return deployment.bind(options)
