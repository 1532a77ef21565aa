"""The package on the demo model, on a tiny encoder, and on what is none of them."""

from __future__ import annotations

import json
import linecache
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
from pathlib import Path
from typing import Any

from realizar import LLM, Completion, RealizarError

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "assets/demo.gguf"
ENCODERS = ROOT / "crates/model/tests/data/encoders"
FOX = [{"role": "user", "content": "Tell me a story about a fox."}]
# Far more than is computed while the test waits for something else: all texts go on to the end of the context.
MANY = ["Once upon a time"] * 20_000

llm = LLM(device="cpu", cache_tokens=8192)


class Text(unittest.TestCase):
    def test_a_chat_is_answered(self) -> None:
        answer = llm.chat(FOX, temperature=0, max_tokens=40)
        self.assertTrue(answer.text.startswith("Once upon a time"), answer)
        self.assertEqual(str(answer), answer.text)
        self.assertEqual((len(answer.tokens), answer.finish_reason), (40, "length"))
        self.assertEqual((answer.usage.completion_tokens, answer.stop, answer.logprobs), (40, None, None))
        self.assertEqual(llm.detokenize(answer.tokens), answer.text)
        self.assertEqual(llm.chat([FOX, FOX], temperature=0, max_tokens=40)[1].text, answer.text)

    def test_earlier_turns_are_part_of_the_prompt(self) -> None:
        more = [{"role": "system", "content": "Be brief."}, *FOX]
        one, other = (llm.chat(messages, max_tokens=1).usage.prompt_tokens for messages in (FOX, more))
        self.assertLess(one, other)

    def test_lists_give_what_each_prompt_gives_alone(self) -> None:
        prompts = ["Once upon a time", "The owl said", "In the forest"]
        for prompt, together in zip(prompts, llm.generate(prompts, seed=7, max_tokens=20)):
            self.assertEqual(llm.generate(prompt, seed=7, max_tokens=20).text, together.text)
        self.assertEqual(llm.generate(list[str](), max_tokens=1), [])

    def test_token_ids_are_a_prompt(self) -> None:
        tokens = llm.tokenize("Once upon a time")
        self.assertEqual(llm.detokenize(tokens), "Once upon a time")
        text = llm.generate("Once upon a time", temperature=0, max_tokens=10)
        self.assertEqual(llm.generate(tokens, temperature=0, max_tokens=10).tokens, text.tokens)
        self.assertEqual(llm.generate([tokens, tokens], temperature=0, max_tokens=10)[1].tokens, text.tokens)

    def test_a_seed_repeats_a_text(self) -> None:
        first, second, other = (llm.generate("Once", seed=seed, temperature=1, max_tokens=30).text for seed in (1, 1, 2))
        self.assertEqual(first, second)
        self.assertNotEqual(first, other)

    def test_texts_end_before_a_stop_string(self) -> None:
        answer = llm.chat(FOX, temperature=0, stop="upon", max_tokens=40)
        self.assertEqual((answer.text, answer.finish_reason, answer.stop), ("Once ", "stop", "upon"))
        self.assertEqual(llm.chat(FOX, temperature=0, stop=["x!", "upon"], max_tokens=40).text, "Once ")

    def test_log_probabilities_are_of_the_tokens(self) -> None:
        answer = llm.chat(FOX, temperature=0, max_tokens=5, logprobs=3)
        assert answer.logprobs is not None
        self.assertEqual([place.token for place in answer.logprobs], answer.tokens)
        for place in answer.logprobs:
            self.assertEqual(len(place.top), 3)
            self.assertEqual(list(place.top), sorted(place.top, key=lambda token: -place.top[token]))
            # The likeliest token is chosen.
            self.assertEqual(place.logprob, max(place.top.values()))
            self.assertEqual(place.logprob, place.top[place.token])

    def test_sampling_parameters_reach_the_sampler(self) -> None:
        greedy = llm.generate("Once", temperature=0, max_tokens=10).tokens
        self.assertEqual(llm.generate("Once", temperature=2, top_k=1, max_tokens=10).tokens, greedy)
        self.assertEqual(llm.generate("Once", temperature=2, top_p=0, max_tokens=10).tokens, greedy)
        self.assertEqual(llm.generate("Once", temperature=2, min_p=1, max_tokens=10).tokens, greedy)
        without = llm.generate("Once", temperature=0, max_tokens=10, logit_bias={greedy[0]: -100}).tokens
        self.assertNotIn(greedy[0], without)
        self.assertNotEqual(llm.generate("Once", temperature=0, repetition_penalty=5, max_tokens=10).tokens, greedy)
        # What is None is as if it were not given.
        self.assertEqual(llm.generate("Once", temperature=0, seed=None, top_k=-1, max_tokens=10).tokens, greedy)

    def test_the_context_bounds_prompt_and_answer(self) -> None:
        with LLM(DEMO, device="cpu", context=64, threads=1) as small:
            self.assertEqual(small.context, 64)
            answer = small.generate("Once", ignore_eos=True)
            self.assertEqual(answer.usage.prompt_tokens + answer.usage.completion_tokens, 64)
            with self.assertRaisesRegex(ValueError, "maximum context length is 64"):
                small.generate("word " * 100)


class Streams(unittest.TestCase):
    def test_pieces_are_the_whole_text(self) -> None:
        whole = llm.chat(FOX, seed=3, max_tokens=40)
        stream = llm.stream(FOX, seed=3, max_tokens=40)
        self.assertIsNone(stream.completion)
        pieces = list(stream)
        self.assertGreater(len(pieces), 1)
        self.assertNotIn("", pieces)
        assert stream.completion is not None
        self.assertEqual(("".join(pieces), stream.completion.tokens), (whole.text, whole.tokens))
        self.assertEqual(list(stream), [])
        whole = llm.generate("Once", seed=3, max_tokens=40)
        self.assertEqual("".join(llm.stream("Once", seed=3, max_tokens=40)), whole.text)
        self.assertEqual("".join(llm.stream(llm.tokenize("Once"), seed=3, max_tokens=40)), whole.text)

    def test_a_stream_keeps_its_model(self) -> None:
        self.assertTrue("".join(LLM(device="cpu").stream("Once", max_tokens=20)))

    def test_a_closed_stream_is_cancelled(self) -> None:
        with llm.stream("Once", ignore_eos=True) as stream:
            first = next(stream)
        assert stream.completion is not None
        self.assertEqual(stream.completion.finish_reason, "cancelled")
        self.assertTrue(stream.completion.text.startswith(first))
        self.assertEqual(list(stream), [])

    def test_abandoned_streams_are_cancelled(self) -> None:
        with LLM(device="cpu", max_seqs=1) as alone:
            # Each would hold the only place until its reader counts as gone.
            for _ in range(50):
                next(alone.stream("Once", ignore_eos=True))
            self.assertEqual(len(alone.generate("Once", ignore_eos=True, max_tokens=5).tokens), 5)


class Embeddings(unittest.TestCase):
    def test_vectors_are_those_of_the_reference(self) -> None:
        golden = json.loads((ENCODERS / "bert/golden.json").read_text())["texts"]
        for form in ("model.gguf", "hf"):
            with LLM(ENCODERS / "bert" / form, device="cpu", exact=True) as encoder:
                vectors = encoder.embed([case["text"] for case in golden])
                self.assertEqual(len(vectors), len(golden))
                for vector, case in zip(vectors, golden):
                    length = math.hypot(*case["output"])
                    self.assertTrue(all(abs(x - y / length) < 2e-3 for x, y in zip(vector, case["output"], strict=True)))
                    self.assertEqual(encoder.embed(case["text"]), vector)
                self.assertEqual(encoder.embed(list[str]()), [])
                with self.assertRaisesRegex(ValueError, "maximum context length"):
                    encoder.embed("t " * (encoder.context + 1))

    def test_models_do_what_they_are_for(self) -> None:
        with self.assertRaisesRegex(RealizarError, "not an embedding model"):
            llm.embed("a red fox")
        with LLM(ENCODERS / "bert/model.gguf", device="cpu") as encoder:
            with self.assertRaisesRegex(RealizarError, "makes vectors and no text"):
                encoder.generate("Once")
        with self.assertRaisesRegex(RealizarError, "reranker"):
            LLM(ENCODERS / "bert-reranker/hf", device="cpu")


class Errors(unittest.TestCase):
    def test_what_cannot_be_loaded(self) -> None:
        with self.assertRaisesRegex(RealizarError, "could not open no/such/model.gguf"):
            LLM("no/such/model.gguf")
        with self.assertRaisesRegex(RealizarError, "could not open .*no-model"):
            LLM(Path("no-model"))
        with self.assertRaisesRegex(RealizarError, 'there is no file "no-model"'):
            LLM("no-model")
        with self.assertRaises(RealizarError):
            LLM(__file__)

    def test_wrong_options(self) -> None:
        with self.assertRaisesRegex(ValueError, '"tpu" is not one of auto, cpu'):
            LLM(device="tpu")
        with self.assertRaisesRegex(ValueError, "context is -1, which is out of range"):
            LLM(context=-1)
        with self.assertRaisesRegex(ValueError, "context of 0 cannot be"):
            LLM(context=0, device="cpu")
        with self.assertRaisesRegex(ValueError, "max_seqs of 0 cannot be"):
            LLM(max_seqs=0, device="cpu")
        wrong: Any = {"context": "long"}
        with self.assertRaisesRegex(TypeError, "context: .*str"):
            LLM(**wrong)

    def test_wrong_parameters(self) -> None:
        with self.assertRaisesRegex(ValueError, "temperature is -1 but must be at least 0"):
            llm.generate("Once", temperature=-1)
        with self.assertRaisesRegex(ValueError, "max_tokens is -1, which is out of range"):
            llm.generate("Once", max_tokens=-1)
        with self.assertRaisesRegex(ValueError, "stop string is empty"):
            llm.generate("Once", stop="")
        with self.assertRaisesRegex(ValueError, "top_p is NaN"):
            llm.generate("Once", top_p=math.nan)
        wrong: Any = {"temprature": 1}
        with self.assertRaisesRegex(TypeError, 'no parameter "temprature"'):
            llm.generate("Once", **wrong)
        wrong = {"seed": "x"}
        with self.assertRaisesRegex(TypeError, "seed: .*str"):
            llm.chat(FOX, **wrong)

    def test_wrong_prompts(self) -> None:
        wrong: Any = 7
        with self.assertRaises(TypeError):
            llm.generate(wrong)
        with self.assertRaisesRegex(TypeError, "a prompt must be"):
            llm.generate([-1])
        with self.assertRaisesRegex(ValueError, "empty prompt"):
            llm.generate([list[int]()])
        with self.assertRaisesRegex(ValueError, "names token 4000000000"):
            llm.generate([4_000_000_000])
        with self.assertRaises(ValueError):
            llm.generate("\ud800")
        with self.assertRaisesRegex(TypeError, "cannot have a set"):
            llm.chat([{"role": "user", "content": set[str]()}])
        # One that is wrong cancels the others.
        with self.assertRaisesRegex(ValueError, "names token"):
            llm.generate([[300], [4_000_000_000]], ignore_eos=True)

    def test_nothing_works_after_close(self) -> None:
        closed = LLM(device="cpu")
        stream = closed.stream("Once", ignore_eos=True)
        next(stream)
        closed.close()
        closed.close()
        with self.assertRaisesRegex(RealizarError, "closed"):
            closed.generate("Once")
        with self.assertRaisesRegex(RealizarError, "closed"):
            print(closed.device)
        with self.assertRaisesRegex(RealizarError, "shutting down"):
            list(stream)


class Threads(unittest.TestCase):
    def test_threads_share_a_model(self) -> None:
        def generate(seed: int) -> Completion:
            return llm.generate("Once", seed=seed, temperature=1, max_tokens=20)

        together: dict[int, Completion] = {}
        threads = [
            threading.Thread(target=lambda seed=seed: together.update({seed: generate(seed)})) for seed in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for seed in range(8):
            self.assertEqual(together[seed].tokens, generate(seed).tokens)

    def test_closing_ends_what_other_threads_wait_for(self) -> None:
        model, errors = LLM(device="cpu"), list[RealizarError]()

        def generate() -> None:
            try:
                model.generate(MANY, ignore_eos=True)
            except RealizarError as error:
                errors.append(error)

        thread = threading.Thread(target=generate)
        thread.start()
        # While the one that waits held the interpreter's lock, this would not go on.
        until_it_calls(thread.ident, "wait")
        model.close()
        thread.join()
        self.assertEqual(len(errors), 1)

    @unittest.skipUnless(os.name == "posix", "signals")
    def test_an_interrupt_cancels(self) -> None:
        # A process of its own, since a signal goes to the main thread.
        output = subprocess.check_output([sys.executable, __file__, "--interrupted"], text=True, timeout=120)
        self.assertEqual(output.split(), ["interrupted", "interrupted", "5"])

    @unittest.skipUnless(hasattr(os, "fork"), "fork")
    def test_a_forked_child_gets_an_error(self) -> None:
        stream = llm.stream("Once", max_tokens=500, ignore_eos=True)
        next(stream)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                llm.generate("Once")
            except RealizarError as error:
                code = 0 if "forked" in str(error) else 2
            try:
                next(stream)
                code = 3
            except RealizarError:
                pass
            # Nothing of the model is dropped here, and closing does nothing.
            llm.close()
            del stream
            os._exit(code)
        _, status = os.waitpid(child, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 0)
        self.assertTrue(list(stream))


class Hub(unittest.TestCase):
    def test_names_are_looked_up_in_the_cache_of_the_hub(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            repository = Path(folder, "hub/models--owner--name")
            snapshot = repository / "snapshots/0123abc"
            snapshot.mkdir(parents=True)
            (repository / "refs").mkdir()
            (repository / "refs/main").write_text("0123abc")
            (snapshot / "demo-Q8_0.gguf").write_bytes(DEMO.read_bytes())
            with unittest.mock.patch.dict(os.environ, HF_HOME=folder, HF_HUB_OFFLINE="1"):
                with LLM("owner/name:q8_0", device="cpu") as model:
                    self.assertTrue(model.generate("Once", max_tokens=3).text)
                with self.assertRaisesRegex(RealizarError, "HF_HUB_OFFLINE is set"):
                    LLM("owner/other")


def until_it_calls(thread: int | None, function: str) -> None:
    """Returns while that thread is in a call of this function of the extension module."""
    assert thread is not None
    while True:
        # A function that is not Python's has no frame: this is its caller's.
        frame = sys._current_frames().get(thread)
        if frame and f".{function}(" in linecache.getline(frame.f_code.co_filename, frame.f_lineno):
            return
        time.sleep(0.001)


def interrupted() -> None:
    """Interrupts waiting for many texts and for the next piece of one, and shows that neither goes on."""

    # A shell starts what runs in its background with interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(function: str) -> None:
        until_it_calls(threading.main_thread().ident, function)
        os.kill(os.getpid(), signal.SIGINT)

    def read() -> None:
        while True:
            for _ in llm.stream("Once", ignore_eos=True):
                pass

    for function, work in (("wait", lambda: llm.generate(MANY, ignore_eos=True)), ("next", read)):
        threading.Thread(target=interrupt, args=[function]).start()
        try:
            work()
        except KeyboardInterrupt:
            print("interrupted")
    print(llm.generate("Once", max_tokens=5, ignore_eos=True).usage.completion_tokens)


if __name__ == "__main__":
    if sys.argv[1:] == ["--interrupted"]:
        interrupted()
    else:
        unittest.main()
