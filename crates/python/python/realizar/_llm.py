"""A model and what can be asked of it."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeGuard, overload

from . import _native
from ._completion import Completion, Logprob, Usage

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

Message: TypeAlias = Mapping[str, Any]
"""A message of a conversation: a dict with `role` (`system`, `user`, `assistant`, …), `content`, and what else the chat template knows."""


class Params(TypedDict, total=False):
    """How text is generated. What is not given, or `None`, is as the model's files recommend."""

    max_tokens: int | None
    """Tokens to generate at most. Default: to the end of the context."""
    temperature: float | None
    """Divides the logits, at least 0; 0 takes the likeliest token."""
    top_p: float | None
    """Keeps the smallest set of likeliest tokens whose probabilities reach this sum, 0 to 1."""
    top_k: int | None
    """Keeps only this many of the likeliest tokens; 0 or -1 keeps all."""
    min_p: float | None
    """Drops tokens less likely than this share of the likeliest one's probability, 0 to 1."""
    repetition_penalty: float | None
    """Divides positive and multiplies negative logits of tokens in the prompt or the text so far, 0.01 to 100; 1 is off."""
    frequency_penalty: float | None
    """Subtracted from a token's logit for each time that it was generated, -2 to 2."""
    presence_penalty: float | None
    """Subtracted once from the logits of tokens that were generated, -2 to 2."""
    logit_bias: Mapping[int, float] | None
    """Added to the logits of these token ids, -100 to 100."""
    seed: int | None
    """The same seed and request give the same tokens again. Default: a random one."""
    stop: str | Sequence[str] | None
    """Strings that end the text; they are not part of it."""
    ignore_eos: bool | None
    """Goes on after tokens that end a turn. Default: False."""
    logprobs: int | None
    """Reports log-probabilities: of the chosen tokens and of this many of the likeliest. Default: none."""


class LLM:
    """A model on its device.

    Several threads may use one `LLM`: their requests share the engine's steps, and results do not depend on other requests (on a GPU to
    the bit only if `deterministic` or `exact`, otherwise but for tokens that are nearly tied). Methods release the interpreter's lock while they wait; Ctrl-C
    in the main thread raises `KeyboardInterrupt` and cancels what it waits for.

    `close`, or the end of a `with` block, frees the device; so does the last reference, and the end of the program. After `os.fork` an `LLM`
    works in the parent only: in the child, load another one, or start processes with the method "spawn" of `multiprocessing`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        context: int | None = None,
        device: str = "auto",
        threads: int | None = None,
        cache_tokens: int | None = None,
        max_seqs: int | None = None,
        deterministic: bool = False,
        exact: bool = False,
    ) -> None:
        """Loads a model.

        `model`: a GGUF file (any part of a split one), a folder with safetensors, or `OWNER/NAME[:FILE-OR-QUANT]` of the Hugging Face hub,
        which is downloaded into the hub's cache unless it is there; `None` is a small demo model that comes with the package.
        `context`: longest sequence, prompt and answer together, in tokens. Default: the model's own, or less where memory is short.
        `device`: `auto` (the first GPU if it can hold the model, else the CPU), `cpu`, `cuda`, `cuda:N`, or `cuda:N,M` for GPUs that share it.
        `threads`: threads of the CPU. Default: one per core.
        `cache_tokens`: tokens that the cache of keys and values holds, those of all sequences together. Default: one sequence of the longest.
        `max_seqs`: sequences that are computed at the same time at most. Default: 64 on the CPU, 256 on a GPU, within the cache.
        `deterministic`: the same answer whatever else runs, on a GPU, too, which is slower then; a CPU has it always.
        `exact`: computes with unrounded activations: slower, and the same tokens on every device and in every batch.

        Errors: `RealizarError` if the model is not there, is none, does not fit or cannot be downloaded; `ValueError` or `TypeError` for an
        option that is wrong.
        """
        # A path is never taken for a name of the hub.
        name = model if model is None or isinstance(model, str) else os.path.abspath(model)
        self._model = _native.Model(
            name,
            context=context,
            device=device,
            threads=threads,
            cache_tokens=cache_tokens,
            max_seqs=max_seqs,
            deterministic=deterministic,
            exact=exact,
        )
        # A GPU's driver may crash if the process ends while the device is still in use, so it is freed before that.
        self._close = weakref.finalize(self, self._model.close)

    @property
    def context(self) -> int:
        """Longest sequence, prompt and answer together, in tokens; of an embedding model the longest text."""
        return self._model.context()

    @property
    def device(self) -> str:
        """The device in words."""
        return self._model.device()

    @overload
    def generate(self, prompt: str | list[int], **params: Unpack[Params]) -> Completion: ...
    @overload
    def generate(self, prompt: list[str] | list[list[int]], **params: Unpack[Params]) -> list[Completion]: ...

    def generate(
        self, prompt: str | list[int] | list[str] | list[list[int]], **params: Unpack[Params]
    ) -> Completion | list[Completion]:
        """Continues a text or token ids, or a list of them side by side, and waits for all.

        Errors: `ValueError` if a prompt is empty, longer than the context, or has an unknown token, or if a parameter is out of range;
        `TypeError` for one that is unknown or of another type; `RealizarError` if the model makes no text or its device fails.
        """
        if _is_one_prompt(prompt):
            return self._complete([prompt], self._model.generate, params)[0]
        return self._complete(prompt, self._model.generate, params)

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **params: Unpack[Params],
    ) -> Completion: ...
    @overload
    def chat(
        self,
        messages: Sequence[Sequence[Message]],
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **params: Unpack[Params],
    ) -> list[Completion]: ...

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **params: Unpack[Params],
    ) -> Completion | list[Completion]:
        """Answers a conversation, or a list of them side by side, rendered by the model's chat template, and waits for all.

        `chat_template_kwargs`: further variables of the template, such as `{"enable_thinking": False}`.

        Errors: `ValueError` if the model has no chat template or it does not accept the messages; otherwise as `generate`.
        """
        if _is_one_conversation(messages):
            conversations = [_conversation(messages, chat_template_kwargs)]
            return self._complete(conversations, self._model.chat, params)[0]
        conversations = [_conversation(each, chat_template_kwargs) for each in messages]
        return self._complete(conversations, self._model.chat, params)

    def stream(
        self,
        prompt: str | list[int] | Sequence[Message],
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **params: Unpack[Params],
    ) -> Stream:
        """Continues a text or token ids, or answers a conversation, and gives the text piece by piece as it is generated.

        Errors: as `generate` and `chat`, when it is called; `RealizarError` from the iterator if the device fails, or if its reader falls
        behind by hundreds of tokens and takes nothing for 30 s.
        """
        if _is_one_prompt(prompt):
            return Stream(self, self._model.generate(prompt, **params))
        return Stream(self, self._model.chat(_conversation(prompt, chat_template_kwargs), **params))

    @overload
    def embed(self, text: str) -> list[float]: ...
    @overload
    def embed(self, text: list[str]) -> list[list[float]]: ...

    def embed(self, text: str | list[str]) -> list[float] | list[list[float]]:
        """The vector of a text, or those of a list of texts, in their order. They have length 1 if the model's files ask for it, as most do.

        Errors: `RealizarError` if the model is not an embedding model or its device fails; `ValueError` if a text has no tokens or more than
        `context`.
        """
        if isinstance(text, str):
            return self._model.embed([text])[0]
        return self._model.embed(text)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, with the special tokens that the model expects around it, such as BOS."""
        return self._model.tokenize(text)

    def detokenize(self, tokens: list[int]) -> str:
        """Text of token ids, without special tokens. Invalid UTF-8 becomes U+FFFD; ids outside the vocabulary are left out."""
        return self._model.detokenize(tokens)

    def close(self) -> None:
        """Cancels what is under way and frees the device. All other methods then raise `RealizarError`; closing twice is fine."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _complete(
        self, prompts: Sequence[Any], start: Callable[..., _native.Answer], params: Params
    ) -> list[Completion]:
        """Starts a request for each prompt before it waits for the first, so that they share steps."""
        answers: list[_native.Answer] = []
        try:
            for prompt in prompts:
                answers.append(start(prompt, **params))
            _native.wait(answers)
        except BaseException:
            # The traceback keeps the requests alive, which would go on.
            for answer in answers:
                answer.cancel()
            raise
        return [_completion(answer) for answer in answers]


class Stream(Iterator[str]):
    """Text as it is generated: an iterator of pieces that are not empty.

    The request is cancelled when the last reference to the stream is gone, by `close`, and at the end of a `with` block.
    """

    def __init__(self, llm: LLM, answer: _native.Answer) -> None:
        # The last reference to the model would close it.
        self._llm = llm
        self._answer = answer

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        try:
            piece = self._answer.next()
        except BaseException:
            # The traceback of a KeyboardInterrupt keeps the request alive, which would go on.
            self._answer.cancel()
            raise
        if piece is None:
            raise StopIteration
        return piece

    @property
    def completion(self) -> Completion | None:
        """All that was generated, once the stream has ended or was closed; `None` before."""
        return None if self._answer.completion() is None else _completion(self._answer)

    def close(self) -> None:
        """Cancels the request if it is still under way."""
        self._answer.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _is_one_prompt(prompt: Sequence[Any]) -> TypeGuard[str | list[int]]:
    return isinstance(prompt, str) or (len(prompt) > 0 and isinstance(prompt[0], int))


def _is_one_conversation(messages: Sequence[Any]) -> TypeGuard[Sequence[Message]]:
    return all(isinstance(message, Mapping) for message in messages)


def _conversation(messages: Iterable[Any], variables: Mapping[str, Any] | None) -> str:
    """The conversation as JSON.

    Errors: `TypeError` for what JSON cannot express.
    """
    return json.dumps({**(variables or {}), "messages": list(messages)}, default=_as_dict)


def _as_dict(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a conversation cannot have a {type(value).__name__}")


def _completion(answer: _native.Answer) -> Completion:
    done = answer.completion()
    assert done is not None, "it is asked for at the end"
    tokens, logprobs = done["tokens"], done["logprobs"]
    return Completion(
        text=done["text"],
        tokens=tokens,
        finish_reason=done["finish_reason"],
        stop=done["stop"],
        logprobs=None
        if logprobs is None
        else [Logprob(token, logprob, dict(top)) for token, (logprob, top) in zip(tokens, logprobs)],
        usage=Usage(done["prompt_tokens"], len(tokens), done["cached_tokens"]),
    )
