"""What the official Python client of Anthropic's API can do with a server of the demo model: python anthropic_client.py BASE_URL."""

import json
import re
import sys
from pathlib import Path

import anthropic
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent, message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from pydantic import TypeAdapter

base_url = sys.argv[1]
client = anthropic.Anthropic(base_url=base_url, api_key="secret", max_retries=0, timeout=120)
USER = [{"role": "user", "content": "Tell me a story about a fox."}]
GREEDY = {"temperature": 0}
# The likeliest tokens of a small model may be spaces, as many as a form allows; those drawn of all are not.
DRAWN = {"temperature": 1, "seed": 5, "top_k": 0, "min_p": 0, "top_p": 1}
WEATHER = {
    "name": "get_weather",
    "description": "The weather at a place.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}
CALL = {"tools": [WEATHER], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "max_tokens": 200}


def message(**more):
    return client.messages.create(**{"model": "demo", "messages": USER, "max_tokens": 30, "extra_body": GREEDY, **more})


def test_models():
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").display_name == "demo"


def test_message():
    answer = message()
    assert answer.type == "message" and answer.role == "assistant" and answer.stop_reason == "max_tokens"
    assert answer.content[0].type == "text" and answer.content[0].text
    assert answer.usage.output_tokens == 30 and answer._request_id


def test_streamed():
    with client.messages.stream(model="demo", messages=USER, max_tokens=30, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == message().content[0].text
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 30
    kinds = [event.type for event in message(stream=True)]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]


def test_stop_sequences():
    answer = message(stop_sequences=["fox"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "fox")


def test_tools():
    extra = DRAWN
    answer = message(**CALL, extra_body=extra)
    call = answer.content[0]
    assert answer.stop_reason == "tool_use" and call.type == "tool_use" and call.name == "get_weather"
    assert set(call.input) == {"city", "unit"} and call.input["unit"] in ("celsius", "fahrenheit")
    with client.messages.stream(model="demo", messages=USER, extra_body=extra, **CALL) as stream:
        assert stream.get_final_message().content[0].input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Sunny."}]}
    messages = USER + [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert message(messages=messages, tools=[WEATHER], tool_choice={"type": "none"}).content is not None


def test_structured():
    schema = {"type": "object", "properties": {"legs": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["legs"],
              "additionalProperties": False}
    answer = message(output_config={"format": {"type": "json_schema", "schema": schema}})
    assert 0 <= json.loads(answer.content[0].text)["legs"] <= 9


def test_count_tokens():
    count = client.messages.count_tokens(model="demo", messages=USER)
    usage = message().usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_beta():
    answer = client.beta.messages.create(
        model="demo", messages=USER, max_tokens=30, betas=["unheard-of-2026-01-01"], extra_body=GREEDY,
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}]})
    assert answer.content[0].text == message().content[0].text


# The client itself reads answers leniently; here every field has to have the type of the reference.
def test_answers_have_the_reference_s_types():
    event_type = TypeAdapter(RawMessageStreamEvent)
    for more in [{}, {**CALL, "extra_body": DRAWN}, {"stop_sequences": ["fox"]}]:
        arguments = {"model": "demo", "messages": USER, "max_tokens": 30, "extra_body": GREEDY, **more}
        raw = client.messages.with_raw_response.create(**arguments)
        Message.model_validate_json(raw.http_response.text, strict=True)
        with client.messages.with_streaming_response.create(**arguments, stream=True) as response:
            pieces = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
        assert pieces
        for piece in pieces:
            if piece["type"] != "ping":
                event_type.validate_json(json.dumps(piece), strict=True)
    raw = client.messages.with_raw_response.count_tokens(model="demo", messages=USER)
    MessageTokensCount.model_validate_json(raw.http_response.text, strict=True)


def test_every_field_of_the_reference_is_listed():
    docs = (Path(__file__).parents[4] / "docs/serving.md").read_text()
    listed = set(re.findall(r"^\| `(\w+)` \| messages \|", docs, re.M))
    for params in (message_create_params, beta_message_create_params):
        names = set(params.MessageCreateParamsBase.__annotations__) | {"stream"}
        assert names <= listed, names - listed


def test_errors():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    for error, kind, more in [
        (anthropic.NotFoundError, "not_found_error", {"model": "no-such-model"}),
        (anthropic.BadRequestError, "invalid_request_error", {"extra_body": {"temperature": -1}}),
        (anthropic.BadRequestError, "invalid_request_error", {"messages": [{"role": "user", "content": [image]}]}),
        (anthropic.BadRequestError, "invalid_request_error", {"messages": [{"role": "user", "content": "fox " * 1000}]}),
    ]:
        try:
            message(**more)
            raise AssertionError(f"{more} was taken")
        except error as e:
            assert e.type == kind and e.api_message and e.request_id, e
    try:
        anthropic.Anthropic(base_url=base_url, api_key="wrong", max_retries=0).models.list()
        raise AssertionError("a wrong key was taken")
    except anthropic.AuthenticationError:
        pass


for name, test in [(n, t) for n, t in globals().items() if n.startswith("test_")]:
    test()
    print(f"ok {name}", flush=True)
