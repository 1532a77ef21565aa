"""Subscribers of KV events, by the official ZeroMQ library and the decoder that vLLM uses."""

import time
from typing import Union

import msgspec
import zmq


class Event(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    pass


class BlockStored(Event):
    block_hashes: list[Union[int, bytes]]
    parent_block_hash: Union[int, bytes, None]
    token_ids: list[int]
    block_size: int
    lora_id: Union[int, None]
    medium: Union[str, None]
    lora_name: Union[str, None]
    extra_keys: Union[list, None] = None
    group_idx: Union[int, None] = None
    kv_cache_spec_kind: Union[str, None] = None
    kv_cache_spec_sliding_window: Union[int, None] = None


class BlockRemoved(Event):
    block_hashes: list[Union[int, bytes]]
    medium: Union[str, None]
    group_idx: Union[int, None] = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
    data_parallel_rank: Union[int, None] = None


DECODER = msgspec.msgpack.Decoder(Batch)


class Subscriber:
    """Follows a replica. Where it has missed something it asks for that; after a restart of the replica it begins anew."""

    def __init__(self, context, replica, receive_queue=0):
        self.socket = context.socket(zmq.SUB)
        self.socket.set(zmq.RCVHWM, receive_queue)
        self.socket.set(zmq.RECONNECT_IVL, 50)
        self.socket.connect(replica.events)
        self.socket.subscribe(b"")
        self.context, self.replica = context, replica
        self.blocks = {}
        # The number of the next batch and when the last one was made.
        self.next, self.time = 0, 0.0
        self.n_batches = self.n_asked = self.n_restarts = 0

    def take(self, number, payload):
        """Follows one batch, unless it is known."""
        batch = DECODER.decode(payload)
        if number < self.next:
            if batch.ts <= self.time:
                return
            self.n_restarts += 1
            self.blocks.clear()
            self.next = 0
        if number > self.next:
            # Of what is missing; the replica's first batches come before anybody can subscribe.
            self.n_asked += self.next > 0
            self.catch_up(self.next)
            return
        self.next, self.time = number + 1, batch.ts
        self.n_batches += 1
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
            elif isinstance(event, BlockRemoved):
                for name in event.block_hashes:
                    del self.blocks[name]
            else:
                assert len(event.token_ids) == event.block_size * len(event.block_hashes)
                parent = event.parent_block_hash
                assert parent is None or parent in self.blocks
                for i, name in enumerate(event.block_hashes):
                    tokens = event.token_ids[i * event.block_size : (i + 1) * event.block_size]
                    self.blocks[name] = (parent, tuple(tokens))
                    parent = name

    def receive(self, quiet_ms=300):
        """Takes what comes until nothing has come for a while."""
        while self.socket.poll(quiet_ms):
            _, number, payload = self.socket.recv_multipart()
            self.take(int.from_bytes(number, "big"), payload)

    def catch_up(self, first=0):
        """Asks for what is kept from a number on."""
        socket = self.context.socket(zmq.DEALER)
        socket.connect(self.replica.replay)
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        deadline = time.monotonic() + 20
        while True:
            assert socket.poll(max(1, int((deadline - time.monotonic()) * 1000))), "no end of the replay"
            _, number, payload = socket.recv_multipart()
            number = int.from_bytes(number, "big", signed=True)
            if number < 0:
                break
            self.take(number, payload)
        socket.close(0)

    def close(self):
        self.socket.close(0)
