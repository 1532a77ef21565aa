"""Requests, and clients that send them: some read the answer, some go away before it."""

import collections
import json
import socket

from .server import TIMEOUT, error_of

SUBJECTS = ["fox", "owl", "snail", "tree", "river", "moon", "boat", "cat", "girl", "baker"]
BAD = [
    (b"{", 400),
    (b'{"messages": "hello"}', 400),
    (b'{"messages": [{"role": "user", "content": "x"}], "temperature": -1}', 400),
    (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', 400),
    (b'{"messages": [{"role": "user", "content": "\xff"}]}', 400),
    (b'{"messages": [{"role": "user", "content": "x"}], "model": "no-such-model"}', 404),
    (b'{"messages": [{"role": "user", "content": "x"}], "n": 1000000}', 400),
    (b'{"messages": [{"role": "user", "content": "' + b"fox " * 3000 + b'"}]}', 400),
    (b"[" * 50000, 400),
]


class Refused(RuntimeError):
    """An error from the server, as the answer or as an event of a stream (`status` is 200)."""

    def __init__(self, status, text, what=""):
        self.status, (self.code, self.message) = status, error_of(text)
        super().__init__(f"{what}{status} {self.code}: {self.message}")


class BrokenOff(RuntimeError):
    """A stream ended without its last event."""


def chat(question, **more):
    return {"messages": [{"role": "user", "content": question}], "temperature": 0, **more}


def requests(rng):
    """Greedy requests for the demo model: (path, body)."""
    all_requests = []
    for i in range(40):
        subject, other = rng.sample(SUBJECTS, 2)
        question = f"Tell me a story about a {subject} and a {other}."
        all_requests.append(("/v1/chat/completions", chat(question, max_tokens=rng.randint(1, 120))))
    for i in range(10):
        text = " ".join(f"The {rng.choice(SUBJECTS)} saw the {rng.choice(SUBJECTS)}." for _ in range(100))
        n = rng.randint(100, len(text))
        body = {"prompt": text[:n], "temperature": 0, "max_tokens": rng.randint(1, 60)}
        all_requests.append(("/v1/completions", body))
    for i in range(10):
        body = chat(f"What does the {rng.choice(SUBJECTS)} do?", max_tokens=200, stop=["the", "\n"], n=2)
        all_requests.append(("/v1/chat/completions", body))
    return all_requests


def text_of(choice):
    return choice["text"] if "text" in choice else choice["message"]["content"]


def whole(server, path, body):
    connection, response = server.post(path, json.dumps(body))
    text = response.read().decode()
    connection.close()
    if response.status != 200:
        raise Refused(response.status, text)
    answer = json.loads(text)
    if "data" in answer:
        return [item["embedding"] for item in answer["data"]]
    return [(text_of(c), c["finish_reason"]) for c in answer["choices"]]


def streamed(server, path, body):
    connection, response = server.post(path, json.dumps({**body, "stream": True}))
    if response.status != 200:
        raise Refused(response.status, response.read().decode())
    texts, reasons, ended = collections.defaultdict(str), {}, False
    for line in response:
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            ended = True
            break
        event = json.loads(line[6:])
        if "error" in event:
            raise Refused(200, line[6:].decode(), "in the stream: ")
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            reasons[choice["index"]] = choice["finish_reason"] or reasons.get(choice["index"])
    connection.close()
    if not ended:
        raise BrokenOff("a stream broke off")
    return [(texts[i], reasons[i]) for i in sorted(texts)]


def long_request(rng):
    """The bytes of a request for a long answer."""
    body = json.dumps(chat("Tell me a story.", max_tokens=900, ignore_eos=True, stream=rng.random() < 0.7, n=rng.choice([1, 1, 3])))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


def go_away(server, rng):
    """Leaves in the headers, in the body, before the answer, or in the middle of it."""
    data = long_request(rng)
    with socket.create_connection((server.host, server.port), timeout=TIMEOUT) as connection:
        if rng.random() < 0.3:
            connection.sendall(data[: rng.randint(1, len(data) - 1)])
            return
        connection.sendall(data)
        connection.settimeout(rng.random())
        try:
            for _ in range(rng.randint(0, 50)):
                if not connection.recv(200):
                    break
        except TimeoutError:
            pass


def do_wrong(server, rng):
    body, status = rng.choice(BAD)
    connection, response = server.post("/v1/chat/completions", body)
    answer = response.read().decode()
    connection.close()
    if response.status != status:
        raise Refused(response.status, answer, f"{body[:60]} is to get {status} and got ")


def sampled(server, rng):
    body = chat("Tell me a story.", max_tokens=60, n=rng.choice([1, 2, 4]))
    body.update(temperature=rng.choice([0.5, 1, 2]), top_p=0.9, logprobs=True, top_logprobs=3)
    if any(reason not in ("stop", "length") for _, reason in whole(server, "/v1/chat/completions", body)):
        raise RuntimeError("an answer without an end")
