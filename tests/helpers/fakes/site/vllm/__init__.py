"""A fake vLLM with an offline engine, whose core is another process that holds GPU memory and
generates the requested number of tokens."""

import subprocess
import sys
from types import SimpleNamespace

import torch  # noqa: F401

from .engine.arg_utils import EngineArgs

__version__ = "0.22.1"
CORE = """
import sys, torch
kept = torch.empty(int(sys.argv[1]), torch.uint8, "cuda")
print("INFO 01-01 00:00:00 [cuda.py:1] Using STAND_IN attention backend", file=sys.stderr, flush=True)
print("ready", flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
"""


class SamplingParams:
    def __init__(self, max_tokens=16, n=1, temperature=1.0, ignore_eos=False):
        self.max_tokens, self.n = max_tokens, n


class Engine:
    """A V1 engine, according to its module as in real vLLM."""

    __module__ = "vllm.v1.engine.llm_engine"


class LLM:
    def __init__(self, **arguments):
        size = str(EngineArgs(**arguments).kv_cache_memory_bytes + (2 << 30))
        self.llm_engine = Engine()
        pipe = subprocess.PIPE
        self._core = subprocess.Popen(
            [sys.executable, "-c", CORE, size], stdin=pipe, stdout=pipe, text=True
        )
        self.llm_engine.shutdown = self._core.kill
        self._answer()

    def _answer(self):
        line = self._core.stdout.readline()
        if not line:
            raise RuntimeError("the engine core is dead")
        return line

    def generate(self, prompts, params, use_tqdm):
        return [self._generate_one(param) for param in params]

    def _generate_one(self, params):
        choices = []
        for index in range(params.n):
            self._core.stdin.write(f"{params.max_tokens}\n")
            self._core.stdin.flush()
            tokens = [7] * int(self._answer())
            about = {
                "text": "",
                "finish_reason": "length",
                "stop_reason": None,
                "cumulative_logprob": None,
            }
            choices.append(SimpleNamespace(index=index, token_ids=tokens, logprobs=None, **about))
        about = {
            "request_id": "1",
            "finished": True,
            "prompt_token_ids": [1],
            "prompt_logprobs": None,
        }
        return SimpleNamespace(outputs=choices, **about)
