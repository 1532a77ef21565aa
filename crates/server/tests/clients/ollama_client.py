"""What the official Python client of Ollama's API can do with a server of the demo model: python ollama_client.py BASE_URL."""

import json
import re
import sys
from pathlib import Path

import ollama

base_url = sys.argv[1]
client = ollama.Client(host=base_url, headers={"Authorization": "Bearer secret"}, timeout=120)
USER = [{"role": "user", "content": "Tell me a story about a fox."}]
GREEDY = {"temperature": 0, "num_predict": 30}


def get_weather(city: str) -> str:
    """The weather at a place.

    Args:
        city: the place
    """
    return "Sunny in " + city


def test_models():
    assert [model.model for model in client.list().models] == ["demo"]
    assert client.ps().models[0].context_length == 512
    shown = client.show("demo")
    assert "tools" in shown.capabilities and shown.template and shown.modelinfo
    assert client.pull("demo").status == "success"


def test_chat():
    answer = client.chat("demo", USER, options=GREEDY)
    assert answer.message.role == "assistant" and answer.message.content and answer.done_reason == "length"
    assert answer.eval_count == 30 and answer.total_duration > 0 and answer.prompt_eval_count > 0
    pieces = list(client.chat("demo:latest", USER, options=GREEDY, stream=True))
    assert "".join(piece.message.content for piece in pieces) == answer.message.content
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_generate():
    answer = client.generate("demo", "Tell me a story.", options=GREEDY)
    pieces = client.generate("demo", "Tell me a story.", options=GREEDY, stream=True)
    assert answer.response and "".join(piece.response for piece in pieces) == answer.response
    assert client.generate("demo", "Once upon a", raw=True, options=GREEDY).response


def test_format():
    schema = {"type": "object", "properties": {"legs": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["legs"]}
    # The likeliest tokens of a small model may be spaces, as many as a form allows; drawn ones are not.
    answer = client.chat("demo", USER, format=schema, options={"temperature": 1, "seed": 1, "top_k": 0, "min_p": 0, "top_p": 1, "num_predict": 200})
    assert 0 <= json.loads(answer.message.content)["legs"] <= 9


def test_tools():
    messages = USER + [
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}]},
        {"role": "tool", "tool_name": "get_weather", "content": get_weather("Rome")},
    ]
    assert client.chat("demo", messages, tools=[get_weather], options=GREEDY).message.content is not None


def test_logprobs():
    answer = client.chat("demo", USER, logprobs=True, top_logprobs=2, options=GREEDY)
    assert len(answer.logprobs) == 30 and len(answer.logprobs[0].top_logprobs) == 2


def test_every_field_of_the_client_is_listed():
    docs = (Path(__file__).parents[4] / "docs/serving.md").read_text()
    listed = {}
    for name, endpoints in re.findall(r"^\| `(\w+)` \| ([a-z, ]+) \|", docs, re.M):
        for endpoint in endpoints.split(", "):
            listed.setdefault(endpoint, set()).add(name)
    for endpoint, model in [("chat", ollama._types.ChatRequest), ("generate", ollama._types.GenerateRequest), ("options", ollama.Options)]:
        names = set(model.model_fields)
        assert names <= listed[endpoint], names - listed[endpoint]


def test_errors():
    for status, call in [
        (404, lambda: client.chat("no-such-model", USER)),
        (400, lambda: client.chat("demo", USER, options={"temperature": -1})),
        (400, lambda: client.chat("demo", USER, options={"num_ctx": 100_000})),
        (400, lambda: client.embed("demo", "text")),
        (501, lambda: client.pull("no-such-model")),
        (501, lambda: client.delete("demo")),
        (401, lambda: ollama.Client(host=base_url).list()),
    ]:
        try:
            call()
            raise AssertionError(f"{status} was expected")
        except ollama.ResponseError as error:
            assert error.status_code == status and error.error, error


for name, test in [(n, t) for n, t in globals().items() if n.startswith("test_")]:
    test()
    print(f"ok {name}", flush=True)
