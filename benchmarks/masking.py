"""Measure how long masking of secrets takes: in a log of 10 MB, and in texts made to be slow.

    python benchmarks/masking.py

It prints seconds of processor time for the log; for each slow text, nanoseconds per character and
the factor for four times the text.
"""

from __future__ import annotations

import time

from pytest_vllm_regress.util.masking import mask

LINE = (
    'INFO 05-03 12:00:00 [engine.py:{n}] request cmpl-{n}: max_tokens=16, stop_token_ids=[1], key="model.layers.{n}", url http://127.0.0.1:8000/v1 '
    "KeyError in /usr/lib/python3.11/site-packages/vllm/v1/engine/core.py, line {n}, in step\n"
)
HOSTILE = {
    "one letter": "a",
    "addresses": "a://b:c@",
    "an address without end": "://x:",
    "names": "password",
    "names and signs": "password=",
    "quotes": "password='",
    "escaped quotes": "password=\\'",
    "quotes in turn": "password=\"password='",
    "dots": "...",
    "a key's beginning": "-----BEGIN PRIVATE KEY-----",
    "hyphens": "-----",
    "blanks behind a name": "token= \t ",
    "tokens": "eyJaaaaaaaaaaaa.",
    "options": "--password ",
    "hooks": "://a/webhooks/",
    "questions": "://a?token=",
    "tokens without end": "eyJ-",
    "prefixes": "sk-re_hf_-",
    "runs": "-_.",
    "short runs": "aaaaaaaaaaaaaaaa ",
    "commands": "curl ",
    "commands with options": "curl -u mysql -p",
    "logins": "login a password ",
    "bearers": "bearer ",
    "bearers on lines": "bearer\n",
    "weak names": '"token": "',
    "sentences": "token: a a a ",
    "queries": "?sig=&",
    "passphrases": "passin pass:",
    "paths": "/password: ",
}


def log(size: int) -> str:
    """Return ``size`` characters of a log like vLLM's."""
    lines: list[str] = []
    length = 0
    while length < size:
        lines.append(LINE.format(n=len(lines)))
        length += len(lines[-1])
    return "".join(lines)[:size]


def seconds(text: str) -> float:
    """Return the processor time (seconds) that masking ``text`` takes."""
    began = time.process_time()
    mask(text)
    return time.process_time() - began


def main() -> None:
    print(f"{'10 MB of a log':24}{seconds(log(10_000_000)):6.2f} s")
    for name, part in HOSTILE.items():
        small, large = (seconds(part * (size // len(part))) for size in (250_000, 1_000_000))
        print(
            f"{name:24}{large * 1000:6.0f} ns a character, {large / max(small, 1e-3):4.1f} times as long for 4 times the text"
        )


if __name__ == "__main__":
    main()
