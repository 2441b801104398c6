"""Check that lm-format-enforcer's state survives a process boundary. Runs in the target interpreter.

``carry_over`` lets the installed vLLM build its state for one request with a JSON schema, pickles it, sends it to a new interpreter, and
compares there, step by step along a seeded walk, which tokens are allowed. The receiving interpreter runs this same file with ``--receive``
and is kept for later calls, because importing vLLM again for every schema would dominate the run time.

Standard library at module level, Python 3.9 and later.
"""

import atexit
import contextlib
import hashlib
import importlib
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import tempfile
import types

CLOSERS = frozenset('"}],')
"""Closing characters. A walk that prefers them usually ends before its step limit."""

_tokenizers = {}
_receivers = []


# State as built by the installed vLLM -------------------------------------------------------------------------------------


class _Processor:
    """V0: a logits processor inside the request's SamplingParams, which a V0 executor sends to a pipeline stage."""

    def __init__(self, carrier, vocab_size):
        self._processor = carrier.logits_processors[0]
        self._vocab_size = vocab_size

    def allowed(self, tokens):
        import torch

        scores = self._processor(list(tokens), torch.zeros(self._vocab_size))
        return torch.nonzero(torch.isfinite(scores)).flatten().tolist()

    def accept(self, token):
        """Do nothing: a V0 processor gets all tokens at every step."""


class _Grammar:
    """V1: a grammar object that accepts one token at a time and fills a bitmask."""

    def __init__(self, carrier, vocab_size):
        self._grammar = carrier
        self._vocab_size = vocab_size

    def allowed(self, tokens):
        import torch

        bitmask = torch.zeros((1, (self._vocab_size + 31) // 32), dtype=torch.int32)
        self._grammar.fill_bitmask(bitmask, 0)
        words = [word & 0xFFFFFFFF for word in bitmask[0].tolist()]
        return [i for i in range(self._vocab_size) if words[i // 32] >> (i % 32) & 1]

    def accept(self, token):
        if not self._grammar.accept_tokens("lmfe-124", [token]):
            raise AssertionError(f"the grammar rejected token {token}, which it had just allowed")


class _Enforcer:
    """lm-format-enforcer's integration with transformers, for a vLLM that cannot build its own state."""

    def __init__(self, carrier, vocab_size):
        self._enforcer = carrier

    def allowed(self, tokens):
        allowed = self._enforcer.get_allowed_tokens(list(tokens))
        return sorted(set(getattr(allowed, "allowed_tokens", allowed)))

    def accept(self, token):
        """Do nothing: an enforcer gets all tokens at every step."""


_VIEWS = {"processor": _Processor, "grammar": _Grammar, "enforcer": _Enforcer}


def _v0_carrier(tokenizer, schema, vocab_size):
    from vllm import SamplingParams

    decoding = importlib.import_module("vllm.model_executor.guided_decoding.lm_format_enforcer_decoding")
    try:
        from vllm.sampling_params import GuidedDecodingParams

        options = GuidedDecodingParams(json=schema)
    except ImportError:
        fields = importlib.import_module("vllm.model_executor.guided_decoding.guided_fields")
        options = fields.GuidedDecodingRequest(guided_json=schema)
    processor = decoding.get_local_lm_format_enforcer_guided_decoding_logits_processor(options, tokenizer)
    return SamplingParams(logits_processors=[processor])


class _NoSpeculation:
    """The one attribute of VllmConfig that the V1 backend reads."""

    speculative_config = None


def _v1_carrier(tokenizer, schema, vocab_size):
    backend = importlib.import_module("vllm.v1.structured_output.backend_lm_format_enforcer")
    integration = importlib.import_module("lmformatenforcer.integrations.vllm")
    if not isinstance(getattr(integration, "MistralTokenizer", object), type):
        raise ImportError("vLLM has moved MistralTokenizer and gives None by its old name")  # 0.14 and 0.15: vllm-52614
    options = importlib.import_module("vllm.v1.structured_output.backend_types").StructuredOutputOptions
    built = backend.LMFormatEnforcerBackend(vllm_config=_NoSpeculation(), tokenizer=tokenizer, vocab_size=vocab_size)
    return built.compile_grammar(options.JSON, json.dumps(schema))


_REMOVED = (
    ("transformers.generation.logits_process", "LogitsWarper"),  # until transformers 4.48
    ("transformers.tokenization_utils", "PreTrainedTokenizerBase"),  # the module was there until transformers 4
)
"""Names that lm-format-enforcer's integration imports for annotations and base classes, and that transformers removed."""


def _supply_removed_names():
    """Give transformers the names of ``_REMOVED`` that it lacks, so that the integration can be imported with any version."""
    import transformers

    for module_name, name in _REMOVED:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError:
            module = sys.modules[module_name] = types.ModuleType(module_name)
        if not hasattr(module, name):
            setattr(module, name, getattr(transformers, name, object))


def _enforcer_carrier(tokenizer, schema, vocab_size):
    from lmformatenforcer import JsonSchemaParser, TokenEnforcer

    integration = importlib.import_module("lmformatenforcer.integrations.transformers")
    return TokenEnforcer(integration.build_token_enforcer_tokenizer_data(tokenizer), JsonSchemaParser(schema))


_WAYS = (
    ("vllm.model_executor.guided_decoding.lm_format_enforcer_decoding", "processor", _v0_carrier),
    ("vllm.v1.structured_output.backend_lm_format_enforcer", "grammar", _v1_carrier),
    ("lmformatenforcer.integrations.transformers", "enforcer", _enforcer_carrier),
)


def _build(tokenizer, schema, vocab_size):
    """Build the state in the first way that the installed packages support. Only a failed import leads to the next."""
    _supply_removed_names()
    skipped = []
    for name, view, carrier in _WAYS:
        try:
            return name, view, carrier(tokenizer, schema, vocab_size), skipped
        except ImportError as error:
            skipped.append({"way": name, "why": f"{type(error).__name__}: {error}"})
    raise ImportError(f"no way to build lm-format-enforcer's state: {skipped}")


# The tokenizer ------------------------------------------------------------------------------------------------------


def _vllm_tokenizer(model):
    for module in ("vllm.transformers_utils.tokenizer", "vllm.tokenizers"):
        try:
            return importlib.import_module(module).get_tokenizer(model)
        except (ImportError, AttributeError):
            continue
    return None


def _pickling_error(value):
    """Return why ``value`` cannot be pickled, or None."""
    try:
        pickle.dumps(value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _tokenizer(model):
    """Return the tokenizer, the package it comes from, and why vLLM's own was not usable (else None).

    vLLM's tokenizer wrapper could not be pickled before 0.8.5 (vllm-project/vllm#7557). That is a different failure,
    so a plain transformers tokenizer replaces it there, as in lm-format-enforcer's own vLLM sample.
    """
    if model not in _tokenizers:
        tokenizer = _vllm_tokenizer(model)
        error = "not found in this vLLM" if tokenizer is None else _pickling_error(tokenizer)
        if error is not None:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(model)
        _tokenizers[model] = (tokenizer, "vllm" if error is None else "transformers", error)
    return _tokenizers[model]


# The walk -----------------------------------------------------------------------------------------------------------


def _digest(allowed):
    return hashlib.sha256(json.dumps(sorted(allowed)).encode()).hexdigest()


def _choose(rng, tokenizer, allowed, eos):
    if eos in allowed:
        return eos
    closing = [token for token in allowed if tokenizer.decode([token]).strip() in CLOSERS]
    return rng.choice(closing if closing and rng.random() < 0.6 else sorted(allowed))


def _walk(view, tokenizer, seed, max_steps):
    """Follow the mask. Return the tokens taken and the tokens allowed at each step."""
    rng = random.Random(seed)
    tokens, allowed_at = [], []
    while len(allowed_at) < max_steps:
        allowed = view.allowed(tokens)
        allowed_at.append(allowed)
        if not allowed:
            break
        token = _choose(rng, tokenizer, allowed, tokenizer.eos_token_id)
        tokens.append(token)
        if token == tokenizer.eos_token_id:
            break
        view.accept(token)
    return tokens, allowed_at


def first_step(model, schema):
    """Return how many tokens the state allows first, and the size of the vocabulary. Nothing is sent."""
    tokenizer = _tokenizer(model)[0]
    _, kind, carrier, _ = _build(tokenizer, schema, len(tokenizer))
    return {"allowed": len(_VIEWS[kind](carrier, len(tokenizer)).allowed([])), "vocabulary": len(tokenizer)}


def carry_over(model, schema, seed=0, max_steps=48, hand_over_at=(0, 6)):
    """Build the state, hand it over at each of the given steps, and compare every later step. Raises what pickling raises.

    The reply holds how the state was built, the tokenizer's package, the size of each pickle, the number of compared
    steps, and the first step where the two sides disagree, if any.
    """
    tokenizer, owner, tokenizer_error = _tokenizer(model)
    vocab_size = len(tokenizer)
    way, kind, carrier, skipped = _build(tokenizer, schema, vocab_size)
    pickle.dumps(carrier)  # before any step: the documented failure shows here
    tokens, allowed_at = _walk(_VIEWS[kind](carrier, vocab_size), tokenizer, seed, max_steps)
    hand_overs = []
    for start in sorted({min(at, len(allowed_at) - 1) for at in hand_over_at}):
        carrier = _build(tokenizer, schema, vocab_size)[2]
        view = _VIEWS[kind](carrier, vocab_size)
        for step in range(start):
            view.allowed(tokens[:step])
            view.accept(tokens[step])
        pickled = pickle.dumps(carrier)
        request = {
            "kind": kind,
            "vocab_size": vocab_size,
            "start": start,
            "tokens": tokens,
            "digests": [_digest(allowed) for allowed in allowed_at[start:]],
        }
        answer = _receiver().ask(request, pickled)
        difference = answer["difference"]
        if difference is not None:
            sent, received = set(allowed_at[difference["step"]]), set(difference.pop("allowed"))
            difference["lost"], difference["gained"] = sorted(sent - received)[:20], sorted(received - sent)[:20]
        hand_overs.append(
            {"at": start, "bytes": len(pickled), "compared": answer["compared"], "difference": difference}
        )
    return {
        "way": way,
        "skipped": skipped,
        "tokenizer": owner,
        "tokenizer_error": tokenizer_error,
        "steps": len(allowed_at),
        "distinct_masks": len({_digest(allowed) for allowed in allowed_at}),
        "finished": bool(tokens) and tokens[-1] == tokenizer.eos_token_id,
        "text": tokenizer.decode([token for token in tokens if token != tokenizer.eos_token_id]),
        "hand_overs": hand_overs,
        "sender_pid": os.getpid(),
        "receiver_pid": answer["pid"],
    }


# The receiving process --------------------------------------------------------------------------------------------------


def _write_frame(stream, *parts):
    for part in parts:
        stream.write(struct.pack(">Q", len(part)))
        stream.write(part)
    stream.flush()


def _read_frame(stream):
    head = stream.read(8)
    if len(head) < 8:
        return None
    size = struct.unpack(">Q", head)[0]
    body = stream.read(size)
    return body if len(body) == size else None


class _Receiver:
    """A new interpreter that unpickles states. It ends when this process closes its standard input or dies."""

    def __init__(self):
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        read_end, write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), "--receive", __name__, str(write_end)],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(write_end,),
            )
        finally:
            os.close(write_end)
        self._replies = os.fdopen(read_end, "rb")

    def ask(self, request, pickled):
        try:
            _write_frame(self._process.stdin, json.dumps(request).encode(), pickled)
            body = _read_frame(self._replies)
        except BrokenPipeError:
            body = None
        if body is None:
            code = self.close()
            raise RuntimeError(f"the receiving process ended with status {code}: {self._log_tail()}")
        answer = json.loads(body)
        if "error" in answer:
            raise RuntimeError(f"the state was received but could not continue:\n{answer['error']}")
        return answer

    def _log_tail(self):
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 4000))
        return self._log.read().decode("utf-8", "replace")

    def close(self):
        if self in _receivers:
            _receivers.remove(self)
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            return self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def _receiver():
    if not _receivers:
        _receivers.append(_Receiver())
    return _receivers[0]


@atexit.register
def _close_receivers():
    for receiver in list(_receivers):
        receiver.close()


def _follow(request, pickled):
    _supply_removed_names()
    view = _VIEWS[request["kind"]](pickle.loads(pickled), request["vocab_size"])
    start, tokens = request["start"], request["tokens"]
    for compared, expected in enumerate(request["digests"]):
        step = start + compared
        if compared:
            view.accept(tokens[step - 1])
        allowed = view.allowed(tokens[:step])
        if _digest(allowed) != expected:
            return {"pid": os.getpid(), "compared": compared, "difference": {"step": step, "allowed": allowed}}
    return {"pid": os.getpid(), "compared": len(request["digests"]), "difference": None}


def _receive(sender_module, reply_fd):
    """Reply to states until standard input ends. ``sender_module`` is this file's module name in the pickles."""
    import traceback

    sys.modules[sender_module] = sys.modules[__name__]
    with os.fdopen(reply_fd, "wb") as replies:
        while True:
            header = _read_frame(sys.stdin.buffer)
            pickled = _read_frame(sys.stdin.buffer) if header is not None else None
            if header is None or pickled is None:
                return
            try:
                answer = _follow(json.loads(header), pickled)
            except Exception:
                answer = {"error": traceback.format_exc()}
            _write_frame(replies, json.dumps(answer).encode())


if __name__ == "__main__" and sys.argv[1:2] == ["--receive"]:
    _receive(sys.argv[2], int(sys.argv[3]))
