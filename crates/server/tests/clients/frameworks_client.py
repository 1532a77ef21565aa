"""Tools, streams and structured output through the usual Python frameworks: python frameworks_client.py SCRIPTED_SERVER."""

import asyncio
import os
import sys
from typing import Literal

# Prices are nothing that a test should fetch.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import agents
import dspy
import instructor
import litellm
import openai
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

import scripted

QUESTION = "How is the weather in Rome?"
ANSWER = "The sun shines in Rome."
CITY_QUESTION = "Describe the capital of Italy."
KEY = "none"
calls = []


class City(BaseModel):
    """A city."""

    name: str
    size: Literal["small", "large"]


ROME = City(name="Rome", size="large")

RULES = [
    # As DSPy asks.
    {"contains": ["[[ ## question ## ]]"], "answer": f"[[ ## answer ## ]]\n{ANSWER}\n\n[[ ## completed ## ]]"},
    # What the tool returned is there.
    {"contains": [QUESTION, "<tool_response>\nsunny"], "answer": ANSWER},
    {"contains": [QUESTION, '"name": "get_weather"'], "answer": scripted.call("get_weather", city="Rome")},
    {"contains": [QUESTION], "answer": ANSWER},
    # Frameworks ask for structured output by a tool, or by a format.
    {"contains": [CITY_QUESTION, '"name": "final_result"'], "answer": scripted.call("final_result", **ROME.model_dump())},
    {"contains": [CITY_QUESTION, '"name": "City"'], "answer": scripted.call("City", **ROME.model_dump())},
    {"contains": [CITY_QUESTION], "answer": ROME.model_dump_json()},
]


def get_weather(city: str) -> str:
    """The weather in a city."""
    calls.append(city)
    return "sunny, 21 degrees"


def called():
    """Checks that the tool was called once since the last look."""
    assert calls == ["Rome"], calls
    calls.clear()


def test_openai_agents(url):
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY)
    for kind in [agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel]:
        model = kind(model="scripted", openai_client=client)
        agent = agents.Agent(name="helper", tools=[agents.function_tool(get_weather)], model=model)
        assert agents.Runner.run_sync(agent, QUESTION).final_output == ANSWER
        called()

        async def streamed():
            result = agents.Runner.run_streamed(agent, QUESTION)
            kinds = [event.type async for event in result.stream_events()]
            return result.final_output, kinds

        final, kinds = asyncio.run(streamed())
        assert final == ANSWER and "raw_response_event" in kinds and "run_item_stream_event" in kinds
        called()
        agent = agents.Agent(name="helper", output_type=City, model=model)
        assert agents.Runner.run_sync(agent, CITY_QUESTION).final_output == ROME


def test_langchain(url):
    weather = langchain_tool(get_weather)
    models = [
        ChatOpenAI(base_url=f"{url}/v1", api_key=KEY, model="scripted", stream_usage=True),
        ChatOpenAI(base_url=f"{url}/v1", api_key=KEY, model="scripted", use_responses_api=True),
        ChatAnthropic(base_url=url, api_key=KEY, model="scripted"),
    ]
    for model in models:
        messages = [HumanMessage(QUESTION)]
        bound = model.bind_tools([weather])
        reply = bound.invoke(messages)
        [request] = reply.tool_calls
        assert request["name"] == "get_weather" and request["args"] == {"city": "Rome"}
        result = weather.invoke(request)
        assert isinstance(result, ToolMessage)
        called()
        pieces = list(bound.stream([*messages, reply, result]))
        assert "".join(piece.text for piece in pieces) == ANSWER
        assert sum((piece.usage_metadata or {}).get("output_tokens", 0) for piece in pieces) > 0
        assert model.with_structured_output(City).invoke(CITY_QUESTION) == ROME


def test_pydantic_ai(url):
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key=KEY)
    for kind in [OpenAIChatModel, OpenAIResponsesModel]:
        model = kind("scripted", provider=provider)
        assert Agent(model, tools=[get_weather]).run_sync(QUESTION).output == ANSWER
        called()
        assert Agent(model, output_type=City).run_sync(CITY_QUESTION).output == ROME

        async def streamed():
            async with Agent(model, tools=[get_weather]).run_stream(QUESTION) as result:
                return [text async for text in result.stream_text(delta=True, debounce_by=None)]

        pieces = asyncio.run(streamed())
        assert "".join(pieces) == ANSWER and len(pieces) > 1
        called()


def test_litellm(url):
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    messages = [{"role": "user", "content": QUESTION}]
    for model, base in [("openai/scripted", f"{url}/v1"), ("hosted_vllm/scripted", f"{url}/v1"), ("anthropic/scripted", url)]:
        options = {"model": model, "api_base": base, "api_key": KEY}
        reply = litellm.completion(messages=messages, tools=[tool], **options)
        [request] = reply.choices[0].message.tool_calls
        assert request.function.name == "get_weather" and reply.choices[0].finish_reason == "tool_calls"
        result = {"role": "tool", "tool_call_id": request.id, "content": get_weather("Rome")}
        called()
        again = [*messages, reply.choices[0].message.model_dump(), result]
        stream = litellm.completion(messages=again, tools=[tool], stream=True, **options)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == ANSWER


def test_llama_index(url):
    model = OpenAILike(
        api_base=f"{url}/v1", api_key=KEY, model="scripted", is_chat_model=True, is_function_calling_model=True
    )
    assert model.chat([ChatMessage(role="user", content=QUESTION)]).message.content == ANSWER
    assert "".join(piece.delta for piece in model.stream_chat([ChatMessage(role="user", content=QUESTION)])) == ANSWER
    reply = model.predict_and_call([FunctionTool.from_defaults(get_weather)], QUESTION)
    assert str(reply) == "sunny, 21 degrees"
    called()
    assert model.as_structured_llm(City).complete(CITY_QUESTION).raw == ROME


def test_instructor(url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY)
    for mode in [instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA]:
        create = instructor.from_openai(client, mode=mode).chat.completions.create
        messages = [{"role": "user", "content": CITY_QUESTION}]
        city = create(model="scripted", response_model=City, messages=messages, max_retries=0)
        assert city.model_dump() == ROME.model_dump(), mode


def test_dspy(url):
    dspy.configure(lm=dspy.LM("openai/scripted", api_base=f"{url}/v1", api_key=KEY, cache=False))
    assert dspy.Predict("question -> answer")(question=QUESTION).answer == ANSWER


with scripted.server(sys.argv[1], RULES) as url:
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test(url)
            print(name, "passed")
