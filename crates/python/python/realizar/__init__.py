"""Run GGUF and safetensors language models on any CPU and on NVIDIA GPUs.

    >>> from realizar import LLM
    >>> llm = LLM("Qwen3-8B-Q4_K_M.gguf")
    >>> llm.chat([{"role": "user", "content": "Why is the sky blue?"}]).text

`LLM` loads a model. `LLM.generate` continues texts, `LLM.chat` answers conversations, `LLM.stream` gives the text of either as it is
generated, and `LLM.embed` turns texts into vectors.
"""

from importlib.metadata import version

from ._completion import Completion, Logprob, Usage
from ._llm import LLM, Message, Params, Stream
from ._native import RealizarError

__version__ = version("realizar")

__all__ = ["LLM", "Completion", "Logprob", "Message", "Params", "RealizarError", "Stream", "Usage"]
