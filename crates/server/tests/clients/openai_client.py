"""What the official Python client can do with a server of the demo model: python openai_client.py BASE_URL."""

import json
import re
import sys
from pathlib import Path

import openai
from openai.types import Completion, Model, completion_create_params
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import Response, ResponseStreamEvent, response_create_params
from pydantic import BaseModel, TypeAdapter

base_url = sys.argv[1]
client = openai.OpenAI(base_url=base_url, api_key="secret", max_retries=0, timeout=120)
USER = [{"role": "user", "content": "Tell me a story about a fox."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


def chat(**more):
    return client.chat.completions.create(**{"model": "demo", "messages": USER, "temperature": 0, "max_tokens": 30, **more})


def test_models():
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").owned_by == "realizar"


def test_chat():
    answer = chat()
    assert answer.object == "chat.completion" and answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content and answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 30 and answer.usage.prompt_tokens_details.cached_tokens >= 0


def test_chat_streamed():
    stream = chat(stream=True, stream_options={"include_usage": True})
    text, reason, usage = "", None, None
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
        usage = chunk.usage or usage
    assert text == chat().choices[0].message.content and reason == "length" and usage.completion_tokens == 30


def test_stream_helper():
    question = [{"role": "user", "content": "Is a fox an animal? Answer yes or no."}]
    arguments = {"model": "demo", "messages": question, "temperature": 0, "max_tokens": 200}
    with client.chat.completions.stream(**arguments) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    whole = client.chat.completions.create(**arguments)
    assert "content.delta" in kinds and final.choices[0].message.content == whole.choices[0].message.content


def test_choices_and_seed():
    a, b = (chat(n=3, temperature=1, seed=7) for _ in range(2))
    assert [c.index for c in a.choices] == [0, 1, 2]
    assert [c.message.content for c in a.choices] == [c.message.content for c in b.choices]


def test_stop():
    answer = chat(stop=["fox"])
    assert answer.choices[0].finish_reason == "stop" and "fox" not in answer.choices[0].message.content


def test_logprobs():
    answer = chat(logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == 30 and all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in content)
    assert bytes(b for token in content for b in token.bytes).decode() == answer.choices[0].message.content


def test_completions():
    answer = client.completions.create(model="demo", prompt=["Once upon a", "The"], max_tokens=5, temperature=0, logprobs=1)
    assert len(answer.choices) == 2 and answer.object == "text_completion"
    assert len(answer.choices[0].logprobs.tokens) == 5
    stream = client.completions.create(model="demo", prompt="Once upon a", max_tokens=5, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == answer.choices[0].text


def test_echo():
    answer = client.completions.create(model="demo", prompt="Once upon a time", max_tokens=0, echo=True, logprobs=0)
    assert answer.choices[0].text == "Once upon a time" and answer.choices[0].logprobs.token_logprobs[0] is None


def test_extensions():
    extra = {"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.0, "ignore_eos": True}
    answer = chat(temperature=1, extra_body=extra)
    assert answer.choices[0].message.content == chat().choices[0].message.content
    assert answer.timings["first_token_ms"] > 0


def test_json():
    answer = chat(response_format={"type": "json_object"}, temperature=1, seed=1, max_tokens=300)
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)


class Animal(BaseModel):
    name: str
    legs: int
    wild: bool


def test_parse():
    # Without limits on its strings, a small model may write one without end.
    schema = Animal.model_json_schema()
    schema["additionalProperties"] = False
    schema["properties"]["name"]["maxLength"] = 10
    schema["properties"]["legs"].update(minimum=0, maximum=9)
    form = {"type": "json_schema", "json_schema": {"name": "animal", "schema": schema, "strict": True}}
    answer = chat(response_format=form, temperature=1, seed=3, max_tokens=200, extra_body=ALL_TOKENS)
    assert answer.choices[0].finish_reason == "stop"
    Animal.model_validate_json(answer.choices[0].message.content)


# The likeliest tokens of a small model may be spaces, as many as a form allows; those drawn of all are not.
ALL_TOKENS = {"top_k": 0, "min_p": 0, "top_p": 1}


def test_tool_required():
    for choice in ["required", {"type": "function", "function": {"name": "get_weather"}}]:
        more = {"temperature": 1, "seed": 3, "max_tokens": 200, "extra_body": ALL_TOKENS}
        answer = chat(tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False, **more)
        call = answer.choices[0].message.tool_calls[0]
        assert answer.choices[0].finish_reason == "tool_calls" and call.type == "function" and call.id
        assert call.function.name == "get_weather"
        arguments = json.loads(call.function.arguments)
        assert set(arguments) == {"city", "unit"} and arguments["unit"] in ("celsius", "fahrenheit")


def test_tool_streamed():
    name, arguments, reason = "", "", None
    more = {"temperature": 1, "seed": 3, "max_tokens": 200, "stream": True, "extra_body": ALL_TOKENS}
    stream = chat(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, **more)
    for chunk in stream:
        choice = chunk.choices[0]
        for call in choice.delta.tool_calls or []:
            assert call.index == 0
            name += call.function.name or ""
            arguments += call.function.arguments or ""
        reason = choice.finish_reason or reason
    assert name == "get_weather" and reason == "tool_calls" and "city" in json.loads(arguments)


def test_tool_result():
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome", "unit": "celsius"}'}}
    messages = USER + [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
    ]
    assert chat(messages=messages, tools=[WEATHER], tool_choice="none").choices[0].message.content is not None


# The client itself reads answers leniently; here every field has to have the type of OpenAI's reference.
def test_answers_have_the_reference_s_types():
    def raw(create, **arguments):
        return json.loads(create(**arguments).text)

    create = client.chat.completions.with_raw_response.create
    functions = {"name": "now"}
    for more in [
        {},
        {"logprobs": True, "top_logprobs": 2, "n": 2},
        {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 200, "temperature": 1, "seed": 3},
        {"functions": [functions], "function_call": functions, "max_tokens": 100},
        {"tools": [{"type": "custom", "custom": functions}], "tool_choice": {"type": "custom", "custom": functions}, "max_tokens": 200,
         "temperature": 1, "seed": 3},
    ]:
        arguments = {"model": "demo", "messages": USER, "temperature": 0, "max_tokens": 20, **more}
        answer = ChatCompletion.model_validate(raw(create, **arguments), strict=True)
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        if "custom" in str(more):
            continue  # The package's types of pieces know no calls of custom tools.
        stream = client.chat.completions.with_streaming_response.create
        with stream(**arguments, stream=True, stream_options={"include_usage": True}) as response:
            pieces = [line[6:] for line in response.iter_lines() if line.startswith("data: {")]
        assert pieces
        for piece in pieces:
            ChatCompletionChunk.model_validate_json(piece, strict=True)
    create = client.completions.with_raw_response.create
    for more in [{}, {"logprobs": 2, "n": 2}]:
        arguments = {"model": "demo", "prompt": "Once upon a", "max_tokens": 5, "temperature": 0, **more}
        Completion.model_validate(raw(create, **arguments), strict=True)
    for model in raw(client.models.with_raw_response.list)["data"]:
        Model.model_validate(model, strict=True)


RESPONSES_WEATHER = {"type": "function", **WEATHER["function"]}


def respond(**more):
    arguments = {"model": "demo", "input": USER[0]["content"], "temperature": 0, "max_output_tokens": 30, **more}
    return client.responses.create(**arguments)


def test_responses():
    response = respond()
    assert response.output_text == chat().choices[0].message.content
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    text, kinds = "", []
    with client.responses.stream(model="demo", input=USER, temperature=0, max_output_tokens=30) as stream:
        for event in stream:
            kinds.append(event.type)
            text += event.delta if event.type == "response.output_text.delta" else ""
    assert text == response.output_text and kinds[0] == "response.created"


def test_responses_stored():
    one = respond()
    assert client.responses.retrieve(one.id).output_text == one.output_text
    two = respond(input="Go on.", previous_response_id=one.id)
    assert two.previous_response_id == one.id and two.usage.input_tokens > one.usage.input_tokens
    client.responses.delete(one.id)
    for call in [lambda: client.responses.retrieve(one.id), lambda: respond(previous_response_id=one.id)]:
        try:
            call()
            raise AssertionError("a response that was deleted is there")
        except (openai.NotFoundError, openai.BadRequestError) as error:
            assert error.code in ("response_not_found", "previous_response_not_found")


def test_responses_tools():
    extra = {"seed": 3, **ALL_TOKENS}
    arguments = {"tools": [RESPONSES_WEATHER, {"type": "web_search"}], "tool_choice": "required", "parallel_tool_calls": False}
    response = respond(**arguments, temperature=1, max_output_tokens=200, extra_body=extra, store=False)
    call = response.output[0]
    assert call.type == "function_call" and set(json.loads(call.arguments)) == {"city", "unit"}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    assert respond(input=USER + [call, output], tools=[RESPONSES_WEATHER], tool_choice="none").output_text is not None


def test_responses_parse():
    schema = {"type": "object", "properties": {"legs": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["legs"],
              "additionalProperties": False}
    response = respond(text={"format": {"type": "json_schema", "name": "animal", "schema": schema, "strict": True}})
    assert 0 <= json.loads(response.output_text)["legs"] <= 9


def test_responses_have_the_reference_s_types():
    event_type = TypeAdapter(ResponseStreamEvent)
    tools = {"tools": [RESPONSES_WEATHER], "tool_choice": "required", "temperature": 1, "max_output_tokens": 200, "extra_body": {"seed": 3}}
    logprobs = {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}
    for more in [{}, tools, logprobs, {"reasoning": {"effort": "low"}, "metadata": {"a": "b"}, "instructions": "Be brief."}]:
        arguments = {"model": "demo", "input": USER, "temperature": 0, "max_output_tokens": 30, **more}
        raw = client.responses.with_raw_response.create(**arguments)
        Response.model_validate_json(raw.text, strict=True)
        with client.responses.with_streaming_response.create(**arguments, stream=True) as response:
            pieces = [line[6:] for line in response.iter_lines() if line.startswith("data: {")]
        assert pieces and [json.loads(piece)["sequence_number"] for piece in pieces] == list(range(len(pieces)))
        for piece in pieces:
            event_type.validate_json(piece, strict=True)


def test_every_field_of_the_reference_is_listed():
    docs = (Path(__file__).parents[4] / "docs/serving.md").read_text()
    listed = {endpoint: set() for endpoint in ("chat", "completions", "responses")}
    for name, endpoint in re.findall(r"^\| `(\w+)` \| (chat|completions|both|responses) \|", docs, re.M):
        for one in ("chat", "completions") if endpoint == "both" else [endpoint]:
            listed[one].add(name)
    for endpoint, params in [
        ("chat", chat_create_params.CompletionCreateParamsBase),
        ("completions", completion_create_params.CompletionCreateParamsBase),
        ("responses", response_create_params.ResponseCreateParamsBase),
    ]:
        names = set(params.__annotations__) | {"stream"}
        assert names <= listed[endpoint], (endpoint, names - listed[endpoint])


def test_errors():
    for error, more in [
        (openai.NotFoundError, {"model": "no-such-model"}),
        (openai.BadRequestError, {"temperature": -1}),
        (openai.BadRequestError, {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}, "strict": True}}}),
    ]:
        try:
            chat(**more)
            raise AssertionError(f"{more} was taken")
        except error as e:
            assert e.body["message"] and e.type == e.body["type"]
    try:
        openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0).models.list()
        raise AssertionError("a wrong key was taken")
    except openai.AuthenticationError:
        pass


for name, test in [(n, t) for n, t in globals().items() if n.startswith("test_")]:
    test()
    print(f"ok {name}", flush=True)
