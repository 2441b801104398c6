"""Does the simulated device keep its promises under this vLLM? Runs in a target interpreter, standard library and vLLM only.

    VLLM_REGRESS_DEVICE=sim PYTHONPATH=pytest_vllm_regress/target_site PYTHON tests/sim/conformance.py CHECKPOINT \
        [--engine V0|V1] [--groups llm,xgrammar,async,tp2,pp2,serve] [--deadline 60]

vLLM is imported once and the model class inspected once; each group of checks then runs in a forked child with its own engine.
One JSON line per check: engine, group, check, ok, seconds, detail. ok is null where this version cannot do it, or is known to do it
wrong by itself (KNOWN). The exit status is 0 if no check failed.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
import traceback
from typing import Any, Callable, Dict, Iterator, List

os.environ.setdefault("VLLM_REGRESS_DEVICE", "sim")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}


# What vLLM itself does wrong or not at all: (version, engine, group or *, check or *) -> why.
KNOWN = {
    ("0.7.3", "V1", "llm", "n8"): "one result of n (vllm-project/vllm#17173)",
    ("0.7.3", "V1", "async", "n8-final"): "one result of n (vllm-project/vllm#17173)",
    ("0.7.3", "V1", "llm", "min-tokens"): "decoding SamplingParams in the engine core forgets the end-of-text token",
    ("0.7.3", "V1", "llm", "logprobs"): "no prompt_logprobs with prefix caching",
    ("0.7.3", "V1", "llm", "allowed-token-ids"): "ignored",
    ("0.7.3", "V1", "llm", "bad-words"): "ignored",
    ("0.7.3", "V1", "*", "structured"): "ignored",
    ("0.7.3", "V1", "*", "json"): "ignored",
    ("0.7.3", "V1", "*", "regex"): "ignored",
    ("0.7.3", "V1", "*", "choice"): "ignored",
    ("0.7.3", "V1", "serve", "response-format"): "ignored",
    ("0.7.3", "V1", "serve", "chat-n8"): "one result of n (vllm-project/vllm#17173)",
    ("0.7.3", "V1", "pp2", "exit"): "no pipeline parallelism; the engine core's death kills the caller too",
    ("0.7.3", "V1", "*", "exit"): "stopping races with the client's output thread",
}


def known(engine: str, group: str, check: str) -> str:
    """Why this check cannot pass under this vLLM, or nothing."""
    import vllm

    for (version, *where), reason in KNOWN.items():
        if version == vllm.__version__ and all(
            pattern in ("*", name) for pattern, name in zip(where, (engine, group, check))
        ):
            return reason
    return ""


class Report:
    """Collects checks of one group and writes them to the parent as JSON lines."""

    def __init__(self, engine: str, group: str, out: Any) -> None:
        self.engine, self.group, self.out = engine, group, out

    def write(self, check: str, ok: Any, seconds: float, detail: str = "") -> None:
        line = {"engine": self.engine, "group": self.group, "check": check, "ok": ok, "seconds": round(seconds, 3)}
        self.out.write(json.dumps(dict(line, detail=detail[-600:])) + "\n")
        self.out.flush()

    @contextlib.contextmanager
    def check(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        except NotImplementedError as error:
            self.write(name, None, time.monotonic() - start, f"not in this version: {error}")
        except BaseException as error:
            reason = known(self.engine, self.group, name)
            detail = f"known: {reason}" if reason else f"{type(error).__name__}: {error}"
            self.write(name, None if reason else False, time.monotonic() - start, detail)
            if not reason:
                traceback.print_exc()
        else:
            self.write(name, True, time.monotonic() - start)


def engine_fields() -> set:
    import dataclasses

    from vllm.engine.arg_utils import EngineArgs

    return {field.name for field in dataclasses.fields(EngineArgs)}


def engine_arguments(model: str, **more: Any) -> Dict[str, Any]:
    arguments = {"model": model, "max_model_len": 1024, "seed": 0, "disable_log_stats": True, "max_num_seqs": 64}
    arguments.update(more)
    backend = arguments.pop("backend", None)
    if backend:
        arguments.update(backend_arguments(backend))
    fields = engine_fields()
    return {name: value for name, value in arguments.items() if name in fields}


def backend_arguments(backend: str) -> Dict[str, Any]:
    if "guided_decoding_backend" in engine_fields():
        return {"guided_decoding_backend": backend}
    return {"structured_outputs_config": {"backend": backend}}


def structured(engine: str, backend: str, **kind: Any) -> Dict[str, Any]:
    from vllm import sampling_params

    if hasattr(sampling_params, "StructuredOutputsParams"):
        return {"structured_outputs": sampling_params.StructuredOutputsParams(**kind)}
    params = dict(kind, backend=backend) if engine == "V0" else kind
    return {"guided_decoding": sampling_params.GuidedDecodingParams(**params)}


def make_llm(model: str, **more: Any) -> Any:
    from vllm import LLM

    return LLM(**engine_arguments(model, **more))


def stop_llm(llm: Any) -> None:
    """vLLM's own shutdown, whatever this version calls it.

    In a thread: in 0.8.x the engine core's client now and then waits for ever for its own output thread, the core already gone.
    """
    import threading

    engine = llm.llm_engine
    owners = [getattr(engine, "engine_core", None), getattr(engine, "model_executor", None)]

    def stop() -> None:
        for owner in owners:
            if owner is not None and hasattr(owner, "shutdown"):
                owner.shutdown()

    stopper = threading.Thread(target=stop, daemon=True)
    stopper.start()
    stopper.join(5)


def params(**named: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(**dict({"max_tokens": 16}, **named))


def texts(outputs: Any) -> List[str]:
    return [completion.text for output in outputs for completion in output.outputs]


def tokens(outputs: Any) -> List[List[int]]:
    return [list(completion.token_ids) for output in outputs for completion in output.outputs]


def group_llm(report: Report, model: str) -> None:
    llm = None
    with report.check("start"):
        llm = make_llm(model)
    if llm is None:
        return

    def run(prompt: Any = "Hello", **named: Any) -> Any:
        prompts = prompt if isinstance(prompt, list) else [prompt]
        return llm.generate(prompts, params(**named), use_tqdm=False)

    with report.check("generate"):
        (output,) = run()
        assert output.finished and output.outputs[0].token_ids
    with report.check("vocabulary"):
        drawn = {token for row in tokens(run(n=4, max_tokens=200, ignore_eos=True, temperature=2.0)) for token in row}
        width = llm.llm_engine.model_config.get_vocab_size()
        assert drawn and max(drawn) < width and len(drawn) > 50, (max(drawn), width, len(drawn))
    with report.check("n8"):
        (output,) = run(n=8)
        assert len(output.outputs) == 8, len(output.outputs)
        assert len({tuple(c.token_ids) for c in output.outputs}) > 1
    with report.check("seed-repeats"):
        first, second, third = (tokens(run(seed=seed, temperature=1.0)) for seed in (5, 5, 6))
        assert first == second and first != third
    with report.check("temperature0-repeats"):
        alone = tokens(run(temperature=0.0))
        among = tokens(run(["a", "Hello", "b"], temperature=0.0))
        assert alone[0] == among[1] and among[0] != among[2]
    with report.check("ends-now-and-then"):
        reasons = [o.outputs[0].finish_reason for o in run([f"p{i}" for i in range(40)], max_tokens=100)]
        assert "stop" in reasons and reasons.count("stop") >= 20, reasons
    with report.check("stop-string"):
        (text,) = texts(run(temperature=0.0, ignore_eos=True, max_tokens=32))
        printable = next(character for character in text[3:] if character.isprintable() and ord(character) < 128)
        (output,) = run(temperature=0.0, ignore_eos=True, max_tokens=32, stop=[printable])
        assert output.outputs[0].finish_reason == "stop" and printable not in output.outputs[0].text
    with report.check("stop-token"):
        (row,) = tokens(run(temperature=0.0, ignore_eos=True, max_tokens=32))
        (output,) = run(temperature=0.0, max_tokens=32, ignore_eos=True, stop_token_ids=[row[5]])
        assert output.outputs[0].finish_reason == "stop" and len(output.outputs[0].token_ids) <= 6
    with report.check("max-tokens"):
        assert [len(row) for row in tokens(run(max_tokens=9, ignore_eos=True))] == [9]
    with report.check("min-tokens"):
        rows = tokens(run([f"p{i}" for i in range(40)], min_tokens=60, max_tokens=61))
        assert all(len(row) >= 60 for row in rows), sorted(map(len, rows))
    with report.check("logprobs"):
        (output,) = run(logprobs=3, prompt_logprobs=2, ignore_eos=True)
        assert len(output.outputs[0].logprobs) == 16
        assert all(3 <= len(one) <= 4 for one in output.outputs[0].logprobs)
        assert len(output.prompt_logprobs) == 5 and output.prompt_logprobs[0] is None
        assert all(2 <= len(one) <= 3 for one in output.prompt_logprobs[1:])
    with report.check("logit-bias"):
        assert tokens(run(logit_bias={70: 100.0}, max_tokens=5)) == [[70] * 5]
    with report.check("allowed-token-ids"):
        assert {t for row in tokens(run(allowed_token_ids=[65, 66], ignore_eos=True)) for t in row} <= {65, 66}
    with report.check("bad-words"):
        (text,) = texts(run(temperature=0.0, ignore_eos=True))
        bad = next(character for character in text if character.isprintable() and ord(character) < 128)
        assert bad not in texts(run(temperature=0.0, ignore_eos=True, bad_words=[bad]))[0]
    with report.check("penalties"):
        run(presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.3, top_p=0.9, top_k=20, min_p=0.05)
    with report.check("chunked-prefill"):
        long = "x" * 900
        assert tokens(run(long, temperature=0.0)) == tokens(run(["y" * 900, long, "z"], temperature=0.0))[1:2]
    with report.check("200-requests"):
        outputs = run([f"request {i}" for i in range(200)], max_tokens=32)
        assert len(outputs) == 200 and all(output.finished for output in outputs)
    with report.check("stop"):
        stop_llm(llm)


def structured_backend(backend: str) -> Callable[[Report, str], None]:
    """One group per backend: V1 takes the backend from the engine's arguments."""

    def group(report: Report, model: str) -> None:
        llm = None
        with report.check("start"):
            try:
                llm = make_llm(model, backend=backend)
            except (ValueError, NotImplementedError) as error:
                raise NotImplementedError(str(error)) from None
        if llm is None:
            return
        for kind, value in (("json", SCHEMA), ("regex", "[a-c]{3}-[0-9]{2}"), ("choice", ["yes", "no"])):
            with report.check(kind):
                try:
                    extra = structured(report.engine, backend, **{kind: value})
                    named = [params(max_tokens=200, temperature=t, **extra) for t in (1.0, 1.0, 1.0, 0.0)]
                    outputs = llm.generate(["a", "b", "c", "a"], named, use_tqdm=False)
                except (ValueError, ModuleNotFoundError) as error:
                    raise NotImplementedError(str(error)) from None
                except TypeError as error:
                    if "LLMatcher.validate_grammar" not in str(error):
                        raise
                    raise NotImplementedError("0.8.3 resolves to an llguidance it cannot call") from None
                for text in texts(outputs):
                    assert fits(kind, value, text), text
        with report.check("stop"):
            stop_llm(llm)

    return group


def fits(kind: str, value: Any, text: str) -> bool:
    import re

    if kind == "regex":
        return re.fullmatch(value, text) is not None
    if kind == "choice":
        return text in value
    got = json.loads(text)
    return set(got) == {"name", "ok"} and isinstance(got["name"], str) and isinstance(got["ok"], bool)


def make_async(model: str, **more: Any) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs

    more.setdefault("disable_log_requests", True)
    arguments = AsyncEngineArgs(**engine_arguments(model, **more))
    if os.environ.get("VLLM_USE_V1", "1") == "1":
        from vllm.v1.engine.async_llm import AsyncLLM

        return AsyncLLM.from_engine_args(arguments)
    from vllm.engine.async_llm_engine import AsyncLLMEngine

    return AsyncLLMEngine.from_engine_args(arguments)


def stop_async(engine: Any) -> None:
    for name in ("shutdown", "shutdown_background_loop"):
        if hasattr(engine, name):
            getattr(engine, name)()
            break
    inner = getattr(engine, "engine", None)
    executor = getattr(inner, "model_executor", None)
    if executor is not None and hasattr(executor, "shutdown"):
        executor.shutdown()


async def collect(engine: Any, prompt: str, request_id: str, **named: Any) -> Any:
    last = None
    async for output in engine.generate(prompt, params(**named), request_id):
        last = output
    return last


def run_async(report: Report, body: Callable[..., Any], *args: Any) -> None:
    import asyncio

    asyncio.run(body(report, *args))


async def checks_async(report: Report, model: str, more: Dict[str, Any]) -> None:
    import asyncio

    from vllm.sampling_params import RequestOutputKind

    engine = None
    with report.check("start"):
        engine = make_async(model, **more)
    if engine is None:
        return
    with report.check("generate"):
        output = await asyncio.wait_for(collect(engine, "Hello", "g", temperature=0.0), 30)
        assert output.finished and output.outputs[0].token_ids
    with report.check("n8-final"):
        output = await asyncio.wait_for(collect(engine, "Hi", "n", n=8, output_kind=RequestOutputKind.FINAL_ONLY), 30)
        assert len(output.outputs) == 8, len(output.outputs)
    with report.check("concurrent"):
        jobs = [collect(engine, f"prompt {i}", f"c{i}", max_tokens=24) for i in range(50)]
        assert all(output.finished for output in await asyncio.wait_for(asyncio.gather(*jobs), 60))
    with report.check("abort"):
        job = asyncio.ensure_future(collect(engine, "long", "abort", max_tokens=900, ignore_eos=True))
        await asyncio.sleep(0.15)
        assert not job.done()
        job.cancel()  # what vLLM's own server does when a client goes away
        await asyncio.wait([job], timeout=20)
        assert job.done()
        assert (await asyncio.wait_for(collect(engine, "after", "after"), 20)).finished
    with report.check("structured"):
        if more and report.engine == "V0":
            raise NotImplementedError("V0 sends the grammar to the last pipeline stage anew for each token: its state is lost")
        extra = structured(report.engine, "xgrammar", json=SCHEMA)
        output = await asyncio.wait_for(collect(engine, "s", "s", max_tokens=200, **extra), 60)
        json.loads(output.outputs[0].text)
    with report.check("stop"):
        stop_async(engine)


def group_async(report: Report, model: str) -> None:
    run_async(report, checks_async, model, {})


def group_tp2(report: Report, model: str) -> None:
    parallel_llm(report, model, tensor_parallel_size=2, distributed_executor_backend="mp")


def group_pp2(report: Report, model: str) -> None:
    more = {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"}
    if report.engine == "V0":
        run_async(report, checks_async, model, more)
    else:
        parallel_llm(report, model, **more)


def parallel_llm(report: Report, model: str, **more: Any) -> None:
    llm = None
    with report.check("start"):
        try:
            llm = make_llm(model, **more)
        except NotImplementedError:
            raise
    if llm is None:
        return
    with report.check("generate"):
        outputs = llm.generate(["a", "b", "c"], params(), use_tqdm=False)
        assert len(outputs) == 3 and all(output.finished for output in outputs)
    with report.check("repeats"):
        runs = [tokens(llm.generate(["a", "b"], params(temperature=t, seed=3), use_tqdm=False)) for t in (0, 1, 0, 1)]
        assert runs[:2] == runs[2:]
    with report.check("structured"):
        extra = structured(report.engine, "xgrammar", json=SCHEMA)
        json.loads(texts(llm.generate(["a"], params(max_tokens=200, **extra), use_tqdm=False))[0])
    with report.check("100-requests"):
        outputs = llm.generate([f"r{i}" for i in range(100)], params(), use_tqdm=False)
        assert len(outputs) == 100
    with report.check("stop"):
        stop_llm(llm)


def group_serve(report: Report, model: str) -> None:
    """The OpenAI server in a fork of its own, as ``vllm serve`` runs it."""
    import socket
    import urllib.request

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = os.fork()
    if server == 0:
        try:
            serve(model, port)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def ask(path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": "Bearer key"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            content = answer.read()
        return json.loads(content) if content else None

    up = False
    with report.check("ready"):
        limit = time.monotonic() + 60
        while not up:
            assert os.waitpid(server, os.WNOHANG) == (0, 0), "the server ended"
            assert time.monotonic() < limit, "not ready after 60 s"
            try:
                ask("/health")
                up = True
            except OSError:
                time.sleep(0.05)
    if not up:
        return
    chat = {"model": "sim", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20}
    with report.check("chat-n8"):
        assert len(ask("/v1/chat/completions", dict(chat, n=8))["choices"]) == 8
    with report.check("completion"):
        assert ask("/v1/completions", {"model": "sim", "prompt": "x", "max_tokens": 5})["choices"]
    with report.check("response-format"):
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
        answer = ask("/v1/chat/completions", dict(chat, max_tokens=200, response_format=form))
        json.loads(answer["choices"][0]["message"]["content"])
    with report.check("stop"):
        os.kill(server, signal.SIGINT)
        limit = time.monotonic() + 20
        while os.waitpid(server, os.WNOHANG) == (0, 0):
            assert time.monotonic() < limit, "still alive 20 s after SIGINT"
            time.sleep(0.05)


def serve(model: str, port: int) -> None:
    import asyncio

    from vllm.entrypoints.openai import api_server, cli_args

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    parser = cli_args.make_arg_parser(FlexibleArgumentParser())
    words = ["--model", model, "--served-model-name", "sim", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--max-model-len", "1024", "--seed", "0", "--api-key", "key", "--max-num-seqs", "64"]
    arguments = parser.parse_args(words)
    cli_args.validate_parsed_serve_args(arguments)
    if getattr(arguments, "model_tag", None):
        arguments.model = arguments.model_tag
    asyncio.run(api_server.run_server(arguments))


GROUPS: Dict[str, Callable[[Report, str], None]] = {
    "llm": group_llm,
    "xgrammar": structured_backend("xgrammar"),
    "guidance": structured_backend("guidance"),
    "outlines": structured_backend("outlines"),
    "lm-format-enforcer": structured_backend("lm-format-enforcer"),
    "async": group_async,
    "tp2": group_tp2,
    "pp2": group_pp2,
    "serve": group_serve,
}


def warm(model: str) -> None:
    """Import vLLM and answer, in this process, what it would otherwise ask a subprocess for each engine."""
    import vllm  # noqa: F401
    from vllm.model_executor.models import ModelRegistry

    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        architectures = json.load(file)["architectures"]
    function = ModelRegistry.inspect_model_cls
    try:
        function(architectures)
    except TypeError:
        from vllm.config import ModelConfig

        function(architectures, ModelConfig(model=model))


def members(group: int) -> List[str]:
    """The living processes of a process group, as 'pid name'."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", encoding="utf-8") as file:
                name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
                if rest.split()[2] == str(group) and rest.split()[0] != "Z":
                    found.append(f"{entry} {name}")
    return found


def run_group(engine: str, group: str, model: str, deadline: float) -> bool:
    read, write = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.setpgid(0, 0)
        status = 0
        try:
            with os.fdopen(write, "w") as out:
                GROUPS[group](Report(engine, group, out), model)
        except BaseException:
            traceback.print_exc()
            status = 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(write)
    timer = signal.signal(signal.SIGALRM, lambda *_: os.killpg(child, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, deadline)
    good = True
    with os.fdopen(read) as lines:
        for line in lines:
            print(line, end="", flush=True)
            good = good and json.loads(line)["ok"] is not False
    _, status = os.waitpid(child, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, timer)
    report = Report(engine, group, sys.stdout)
    limit = time.monotonic() + 3
    while members(child) and time.monotonic() < limit:
        time.sleep(0.05)
    left = members(child)
    if left:
        os.killpg(child, signal.SIGKILL)
    ok = status == 0 and not left
    reason = "" if ok else known(engine, group, "exit")
    detail = f"status {status}, left processes: {left}" + (f", known: {reason}" if reason else "")
    report.write("exit", None if reason else ok, time.monotonic() - start, detail)
    return good and (ok or bool(reason))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--engine", default="V1", choices=("V0", "V1"), help="set before vLLM is imported: 0.7 decides then")
    parser.add_argument("--groups", default=",".join(GROUPS))
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds for one group")
    given = parser.parse_args()
    start = time.monotonic()
    os.environ["VLLM_USE_V1"] = "1" if given.engine == "V1" else "0"
    warm(given.checkpoint)
    Report(given.engine, "-", sys.stdout).write("import", True, time.monotonic() - start)
    good = True
    for group in given.groups.split(","):
        good = run_group(given.engine, group, given.checkpoint, given.deadline) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
