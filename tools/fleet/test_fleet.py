"""Conversations of many clients with two replicas behind each router; see tools/test-fleet."""

import asyncio
import signal
import sys
import time
from pathlib import Path

import aiohttp
import zmq
from conversation import Conversation, hits, talk
from events import Subscriber
from processes import BLOCK_SIZE, Replica, smg, vllm_router

N_CLIENTS = 32
N_TURNS = 3


async def requests(replicas):
    return [(await r.metrics())["realizar_requests_total"] for r in replicas]


async def test_affinity(session, router, replicas, numbers):
    """Each turn goes to the replica that has the one before, and both have about as much to do."""
    before = await requests(replicas)
    conversations = [Conversation(session, router, next(numbers)) for _ in range(N_CLIENTS)]
    await talk(conversations, 1)
    # Some routers give up prefixes to even out what is under way, which by chance differs. That is theirs to weigh, so nothing else is under way.
    await talk(conversations, N_TURNS - 1, at_once=1 if router.weighs_load else None)
    share = hits(conversations)
    counts = [after - b for after, b in zip(await requests(replicas), before)]
    print(f"   cached {share:.1%} of what is shared; requests {counts[0]:.0f} and {counts[1]:.0f}", flush=True)
    assert share >= 0.9, share
    assert sum(counts) == N_CLIENTS * N_TURNS, counts
    assert min(counts) >= 0.25 * sum(counts), counts
    if router.weighs_load:
        await talk(conversations, 1)
        print(f"   {hits(conversations):.1%} with {N_CLIENTS} requests under way", flush=True)


async def test_kill(session, router, replicas, numbers):
    """A replica that dies takes with it what it was computing, and nothing else."""
    conversations = [Conversation(session, router, next(numbers)) for _ in range(N_CLIENTS)]
    await talk(conversations, 1)
    for conversation in conversations:
        conversation.streams = True
    talking = asyncio.create_task(talk(conversations, N_TURNS, may_fail=True))
    metrics = await replicas[0].metrics()
    generated = metrics["realizar_generated_tokens_total"]
    while metrics["realizar_generated_tokens_total"] < generated + 20:
        metrics = await replicas[0].metrics()
    replicas[0].kill()
    await talking
    errors = [e for c in conversations for e in c.errors]
    print(f"   {len(errors)} of {N_CLIENTS * N_TURNS} streams broke off, and their next try worked", flush=True)
    # Each client has at most one request under way, and about half of them had it there.
    assert all(len(c.errors) <= 1 for c in conversations) and len(errors) <= 0.75 * N_CLIENTS, errors


async def test_rejoin(session, router, replicas, numbers):
    """A replica that is back gets its share of new conversations."""
    await replicas[0].up()
    for _ in range(20):
        await talk([Conversation(session, router, next(numbers)) for _ in range(8)], 1)
        if (await requests(replicas[:1]))[0] > 0:
            break
        await asyncio.sleep(0.5)
    await test_affinity(session, router, replicas, numbers)


async def test_drain(session, router, replicas, numbers):
    """A replica that is told to stop loses no request."""
    conversations = [Conversation(session, router, next(numbers)) for _ in range(N_CLIENTS)]
    talking = asyncio.create_task(talk(conversations, N_TURNS))
    while (await replicas[1].metrics())["realizar_running"] == 0:
        pass
    replicas[1].signal(signal.SIGTERM)
    code = await replicas[1].ended(30)
    await talking
    print(f"   none of {N_CLIENTS * N_TURNS} requests failed; exit code {code}", flush=True)
    assert code == 0, code
    await replicas[1].up()


def test_events(early, slow, restarted):
    """Whoever was there all the time, came late, reads slowly, or saw the replica restart knows the same."""
    for followed in [[early, slow], [restarted]]:
        late = Subscriber(early.context, followed[0].replica)
        late.catch_up()
        late.receive()
        for subscriber in followed:
            subscriber.receive()
            assert subscriber.blocks == late.blocks and len(late.blocks) > 50, (len(subscriber.blocks), len(late.blocks))
        late.close()
    print(f"   {early.n_batches} batches, {len(early.blocks)} blocks; {restarted.n_restarts} restart", flush=True)
    assert early.n_asked == 0 and restarted.n_restarts == 1, (early.n_asked, restarted.n_restarts)


async def follow(subscribers):
    while True:
        for subscriber in subscribers:
            subscriber.receive(0)
        await asyncio.sleep(0.02)


async def main(binary, folder):
    start = time.monotonic()
    numbers = iter(range(1, 1_000_000))
    context = zmq.Context()
    for name, make in [("vllm-router, kv_aware", lambda r: vllm_router(folder, "kv_aware", r))] + [
        ("vllm-router, cache_aware", lambda r: vllm_router(folder, "cache_aware", r)),
        ("smg, cache_aware", lambda r: smg(folder, "cache_aware", r)),
    ]:
        replicas = [Replica(binary, folder, f"replica-{i}") for i in range(2)]
        router = make(replicas)
        early, slow, restarted = (Subscriber(context, replicas[i], queue) for i, queue in [(1, 0), (1, 1), (0, 0)])
        following = asyncio.create_task(follow([early, restarted]))
        try:
            await asyncio.gather(*(r.up() for r in replicas))
            await router.up()
            timeout = aiohttp.ClientTimeout(total=60)
            async with aiohttp.ClientSession(timeout=timeout) as session:
                for test in [test_affinity, test_kill, test_rejoin]:
                    print(f"== {name}: {test.__doc__} ({time.monotonic() - start:.0f} s)", flush=True)
                    await test(session, router, replicas, numbers)
                print(f"== {name}: {test_events.__doc__} ({time.monotonic() - start:.0f} s)", flush=True)
                test_events(early, slow, restarted)
                print(f"== {name}: {test_drain.__doc__} ({time.monotonic() - start:.0f} s)", flush=True)
                await test_drain(session, router, replicas, numbers)
        finally:
            following.cancel()
            for subscriber in [early, slow, restarted]:
                subscriber.close()
            router.kill()
            for r in replicas:
                r.kill()
    context.destroy(0)
    print(f"the fleet works ({time.monotonic() - start:.0f} s)")


asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
