"""What clients of embedding models and rerankers can do with a server of both beside a chat model: python encoders_client.py BINARY."""

import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import cohere
import httpx
import ollama
import openai

binary = sys.argv[1]
fixtures = Path(__file__).parents[3] / "model/tests/data/encoders"
config = tempfile.NamedTemporaryFile("w", suffix=".toml")
config.write(
    f"""
port = 0
device = "cpu"
exact = true
kv_type = "f32"
kv_memory = "32M"

[models.demo]
model = "demo"

[models.bert]
model = "{fixtures}/bert/model.gguf"

[models.reranker]
model = "{fixtures}/xlm-roberta-reranker/model.gguf"
"""
)
config.flush()


def golden(name):
    texts = json.loads((fixtures / name / "golden.json").read_text())["texts"]
    return [text["text"] for text in texts], [text["output"] for text in texts]


def is_near(got, want):
    assert len(got) == len(want) and all(abs(g - w) < 1e-4 for g, w in zip(got, want)), (got, want)


def test_openai(url):
    client = openai.OpenAI(base_url=url + "/v1", api_key="none")
    texts, vectors = golden("bert")
    # The client asks for base64 unless it is told otherwise.
    for more in [{}, {"encoding_format": "float"}]:
        answer = client.embeddings.create(model="bert", input=texts, **more)
        assert [row.index for row in answer.data] == list(range(len(texts))) and answer.usage.total_tokens == 28
        for row, vector in zip(answer.data, vectors):
            is_near(row.embedding, vector)
    assert len(client.embeddings.create(model="bert", input=[[2, 24, 3]], dimensions=8).data[0].embedding) == 8
    for model in ["demo", "reranker"]:
        try:
            client.embeddings.create(model=model, input="a")
            raise AssertionError(f"{model} embedded a text")
        except openai.BadRequestError as error:
            assert error.code == "unsupported" and model in error.body["message"], error
    question = [{"role": "user", "content": "Tell me a story about a fox."}]
    assert client.chat.completions.create(model="demo", messages=question, max_tokens=8).choices[0].message.content


def test_ollama(url):
    client = ollama.Client(host=url)
    texts, vectors = golden("bert")
    answer = client.embed("bert", texts)
    assert answer.prompt_eval_count == 28
    for row, vector in zip(answer.embeddings, vectors):
        is_near(row, vector)
    is_near(client.embeddings("bert", texts[0]).embedding, vectors[0])
    assert client.show("bert").capabilities == ["embedding"]


def test_cohere(url):
    texts, rows = golden("xlm-roberta-reranker")
    best = sorted(enumerate(logistic(row[0]) for row in rows), key=lambda pair: -pair[1])[:2]
    answer = cohere.ClientV2(api_key="none", base_url=url).rerank(model="reranker", query="who?", documents=texts, top_n=2)
    assert [result.index for result in answer.results] == [index for index, _ in best]
    is_near([result.relevance_score for result in answer.results], [score for _, score in best])


def test_text_embeddings_inference(url):
    texts, rows = golden("xlm-roberta-reranker")
    answer = httpx.post(url + "/rerank", json={"model": "reranker", "query": "who?", "texts": texts}).json()
    for row in answer:
        is_near([row["score"]], [logistic(rows[row["index"]][0])])
    assert len(answer) == len(texts)


def logistic(x):
    return 1 / (1 + math.exp(-x))


server = subprocess.Popen([binary, "serve", "--config", config.name], stderr=subprocess.PIPE, text=True)
try:
    seen = ""
    while not (url := re.search(r"http://[0-9.:]*\d", seen)):
        line = server.stderr.readline()
        assert line, seen
        seen += line
    for name, test in [(n, t) for n, t in globals().items() if n.startswith("test_")]:
        test(url[0])
        print(f"ok {name}", flush=True)
finally:
    server.terminate()
    server.wait()
