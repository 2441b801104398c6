"""Logits that make the simulated model follow the script in its prompt.

The script is found in the prompt's own tokens, or in a file that the id of the request names, and
the position in it is the number of tokens generated so far. Preemption, chunked prefill, prefix
caching and parallel workers cannot change it. The rest of vLLM is unaffected: grammars still mask,
and penalties and biases still apply. If they make the model deviate from its script, that is
recorded for the controller.
"""

import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from vllm.logger import init_logger

from .. import script_format, vocabularies
from .synthetic_logits import SyntheticLogits, tokenizer_of

logger = init_logger("vllm.vllm_regress_sim")

LEAD = 80.0  # advantage of a scripted token: enough against a temperature of 4, not against a bias of -100
_SHOWN = 40  # tokens of the output that a record shows
_SHOWN_ALLOWED = 8  # tokens that a grammar allows, of those that a record shows
_SPACES = {0x120: " ", 0x10A: "\n"}  # in byte-level BPE's alphabet


class ScriptedLogits:
    """Logits that follow the request's script if it has one, and synthetic ones otherwise.

    ``report_deviations``: whether this worker reports deviations from a script; one rank of each
    group does.
    """

    def __init__(
        self, synthetic: SyntheticLogits, model_config: Any, report_deviations: bool
    ) -> None:
        self._synthetic = synthetic
        self._report_deviations = report_deviations
        self._reported: set[str] = set()
        document = tokenizer_of(model_config)
        self._numbers = vocabularies.Numbers(document)
        added = self._numbers.added
        self._markers = (added.get(script_format.START), added.get(script_format.END))
        self._texts: dict[int, str] = {
            number: text for text, number in (document.get("model") or {}).get("vocab", {}).items()
        }
        self._texts.update({number: text for text, number in added.items()})
        self._decode = functools.lru_cache(maxsize=4096)(self._read)
        self._notes = os.environ.get(script_format.NOTES_VARIABLE, "")
        self._of_request = functools.lru_cache(maxsize=4096)(self._read_file)

    def row(
        self, request_id: str, prompt: list[int], output: list[int], adapter: bytes = b""
    ) -> np.ndarray:
        """Return the logits after `output` of the request."""
        row = self._synthetic.after(prompt + output, adapter)
        step = self._step(request_id, prompt, len(output))
        if step is None:
            return row
        row -= row.max() + LEAD
        for token, share in step:
            row[token] = np.log(share)
        return row

    def check_sampled(
        self, request_id: str, prompt: list[int], output: list[int], token: int, row: Any
    ) -> None:
        """Compare the sampled token with the script. `row` are the logits that the sampler got."""
        if not self._report_deviations or request_id in self._reported:
            return
        step = self._step(request_id, prompt, len(output))
        if step is None or any(token == expected for expected, _ in step):
            return
        if not self._follows(
            request_id, prompt, output
        ):  # V0 also asks for the token after a draft
            return
        masked = all(float(row[expected]) == float("-inf") for expected, _ in step)
        self._report(
            request_id,
            position=len(output),
            wanted=" or ".join(self._show([int(expected)]) for expected, _ in step),
            got=self._show([token]),
            said=self._show(output[-_SHOWN:]),
            why="masked" if masked else "sampled",
            allowed=self._allowed(row) if masked else [],
        )

    def _allowed(self, row: Any) -> list[str]:
        """Return some of the tokens that are not masked, and "..." if there are more."""
        tokens = np.flatnonzero(np.asarray(row, dtype=np.float32) > -np.inf).tolist()
        shown = [self._show([token]) for token in tokens[:_SHOWN_ALLOWED]]
        return shown + ["..."] * (len(tokens) > len(shown))

    def _follows(self, request_id: str, prompt: list[int], output: list[int]) -> bool:
        steps = (self._step(request_id, prompt, position) for position in range(len(output)))
        return all(
            step and any(token == expected for expected, _ in step)
            for token, step in zip(output, steps)
        )

    def _step(
        self, request_id: str, prompt: list[int], position: int
    ) -> Optional[script_format.Step]:
        start, end = self._markers
        if start is None or end is None:
            return None
        try:
            named = script_format.named_in(request_id)
            if named is not None:
                answers = self._of_request(*named)
            else:
                payload = script_format.find(prompt, start, end)
                if payload is None:
                    return None
                answers = self._decode(tuple(payload))
            choice = script_format.choice_of(request_id) if len(answers) > 1 else 0
            if choice >= len(answers):
                raise ValueError(f"choice {choice} has no script: {len(answers)} were given")
            return answers[choice].at(position, self._synthetic.end)
        except ValueError as error:
            self._report(request_id, problem=str(error))
            return None

    def _read_file(self, name: str, request: str) -> tuple[script_format.ScriptedAnswer, ...]:
        """Return the script that the id of a request names. The mark says that it is followed."""
        folder = Path(self._notes + script_format.FOLDER_SUFFIX)
        try:
            text = (folder / name).read_text(encoding="ascii")
            if self._report_deviations:
                (folder / (request + script_format.USED_SUFFIX)).touch()
        except OSError as error:
            raise ValueError("its script cannot be read: {}".format(error)) from None
        return self._numbered(text)

    def _read(self, payload: tuple[int, ...]) -> tuple[script_format.ScriptedAnswer, ...]:
        return self._numbered("".join(self._texts.get(token, "\ufffd") for token in payload))

    def _numbered(self, text: str) -> tuple[script_format.ScriptedAnswer, ...]:
        answers = script_format.decode(text)
        numbered = tuple(map(self._numbers.of, answers))
        for token in (token for answer in numbered for step in answer.steps for token, _ in step):
            if not int(token) < self._synthetic.vocab_size:
                raise ValueError(
                    f"token {token} is not in the vocabulary of {self._synthetic.vocab_size}"
                )
        return numbered

    def _show(self, tokens: Sequence[int]) -> str:
        """Return tokens as text, with invalid UTF-8 as escapes."""
        encoded = (
            bytes([token - self._numbers.first])
            if 0 <= token - self._numbers.first < 256
            else self._texts.get(token, f"<{token}>").translate(_SPACES).encode()
            for token in tokens
        )
        return b"".join(encoded).decode(errors="backslashreplace")

    def _report(self, request_id: str, **facts: Any) -> None:
        if not self._report_deviations or request_id in self._reported:
            return
        self._reported.add(request_id)
        line = json.dumps({"request": request_id, **facts})
        logger.error("the model cannot follow its script: %s", line)
        if self._notes:
            with open(
                self._notes, "a", encoding="utf-8"
            ) as file:  # one short write, so that lines of several workers do not mix
                file.write(line + "\n")
