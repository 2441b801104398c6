"""A child process as the controller sees it: requests with deadlines, its life, and its end."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from ..errors import (
    ChildDied,
    DeadlineExceeded,
    LimitExceeded,
    ProtocolError,
    RemoteError,
    Unsupported,
    UsageError,
)
from ..target_site.vllm_regress_target.protocol import Frame, FrameSocket, FrameTimeout, PeerClosed, ProtocolViolation
from ..util.deadline import Deadline, wait_readable
from ..util.masking import mask
from . import dossier, family
from .dossier import Dossier
from .leftover import Leftover
from .sampling import Watch
from .stillness import LOOK_S, Awaited
from .witness import Witness

_GRACE_S = 1.0
_LEAVE_S = 3.0  # what is still there this long after the child ended was left behind; Ray's daemons take about a second
_LATE_S = 2.0
_NANNY_S = 8.0


class Child:
    """One engine, server or probe process and its nanny. Not shared between threads."""

    def __init__(
        self,
        *,
        name: str,
        nanny_pid: int,
        channel: FrameSocket,
        lifeline: FrameSocket,
        log: Path,
        start_method: str = "fork",
        ray_dir: Path | None = None,
        about: str = "",
    ) -> None:
        self.name = name
        self.log = log
        self.start_method = start_method
        self.pid: int | None = None
        self.exit_status: int | None = None
        self.limit = ""  # the limit its family was ended for, in words
        self.leftovers: tuple[Leftover, ...] = ()
        self.on_end: Callable[[], tuple[Leftover, ...]] | None = None
        """Gives back what the family held outside itself; the result is what could not be given back."""
        self.gpu: dict[str, str] = {}  # on a GPU, what a record says of it
        self._last_reply: tuple[str, float] | None = None
        self.on_reply: Callable[[str], None] | None = None
        self.border: Callable[[str, Deadline, dict[str, Any]], Any] | None = None
        """What requests go through instead of straight to the target; it may ask the target itself (``ask``)."""
        self.awaited: Awaited | None = None  # the text of a hang that may be told early
        self._nanny = nanny_pid
        self._channel = channel
        self._lifeline = lifeline
        self._ray_dir = ray_dir
        self._about = about  # what the target has installed, for dossiers
        self._shm: set[str] = set()
        self._closed = False
        self._interrupted = False
        self._orphaned = False
        self._process: psutil.Process | None = None
        self._watch: Watch | None = None
        self.witness = Witness(log, ray_dir)

    @property
    def alive(self) -> bool:
        """The child process has not ended, as far as its nanny reported; without its nanny it counts as ended."""
        try:
            self._read_lifeline()
        except (PeerClosed, ProtocolViolation):
            self._orphaned = True
        return not self._closed and self.exit_status is None and not self._orphaned

    def request(self, operation: str, deadline: Deadline, /, **arguments: Any) -> Any:
        """Send one request and wait for its reply.

        Raises ``RemoteError`` (the target raised), ``ChildDied``, ``ProtocolError``, ``DeadlineExceeded`` (with a dossier; the family
        is ended first), or ``Unsupported``. Except after ``RemoteError`` and ``Unsupported`` the child is gone.
        """
        if self.border is not None:
            return self.border(operation, deadline, arguments)
        return self.ask(operation, deadline, **arguments)

    def ask(self, operation: str, deadline: Deadline, /, **arguments: Any) -> Any:
        """As ``request``, whatever stands at the border."""
        self._check_open(deadline.phase)
        self.expect(deadline)
        try:
            self._channel.send({"op": operation, **arguments}, timeout_s=deadline.left_s)
        except FrameTimeout:
            raise self._hung(deadline, "the child does not read its requests") from None
        except PeerClosed:
            raise self._died(deadline, "it closed its channel") from None
        try:
            value = self._value(self.wait_frame(deadline, lambda frame: "ok" in frame), deadline)
        except KeyboardInterrupt:
            self._interrupted = True
            raise
        self.replied(deadline.phase)
        return value

    def take(self) -> None:
        """A test takes the engine that runs here: the log counts from now on, and the engine's processes must live."""
        self.witness.take(each for each in self.processes() if each.pid != self.pid)

    def failure(
        self, message: str, *, phase: str, type_name: str = "", detail: str = "", died: bool = False, **more: str
    ) -> RemoteError:
        """The error for what the target said went wrong; ``more`` are parts of it. The engine counts as dead when one of its processes is gone."""
        parts = self.witness.parts(**{"exception": message, **more})
        died = died or bool(self.witness.lost())
        return RemoteError(message, phase=phase, detail=detail, type_name=type_name, parts=parts, engine_died=died)

    def replied(self, phase: str) -> None:
        """Tell whoever watches that the target answered in ``phase``."""
        self._last_reply = (phase, time.monotonic())
        if self.on_reply is not None:
            self.on_reply(phase)

    def wait_ready(self, deadline: Deadline) -> None:
        """Wait until the child answers."""
        self.wait_frame(deadline, lambda frame: frame.get("event") == "ready")

    def wait_frame(self, deadline: Deadline, accept: Callable[[Frame], bool]) -> Frame:
        """The next frame that ``accept`` takes; every wait checks the deadline and the child's life."""
        while True:
            try:
                frame = self._channel.pop()
            except PeerClosed:
                raise self._died(deadline, "it closed its channel without the reply it owed") from None
            except ProtocolViolation as violation:
                raise self._garbled(deadline, str(violation)) from None
            if frame is not None:
                if accept(frame):
                    return frame
                continue
            if not wait_readable(
                deadline, self._channel, self._lifeline, at_most_s=LOOK_S if self._watch else deadline.left_s
            ):
                if deadline.passed:
                    raise self._hung(deadline, f"no answer within {deadline.allowed_s:g} s")
                self.check_still(deadline)
            if not self.alive:
                frame = self._last_frame()
                if frame is not None and accept(frame):
                    return frame
                raise self._died(deadline, "it ended without the reply it owed")

    def check_still(self, deadline: Deadline) -> None:
        """Raise ``DeadlineExceeded`` ahead of time, when the hang that the case documents is there: its text was seen and nothing moves."""
        words = self._watch.look() if self._watch is not None else ""
        if words and not wait_readable(deadline, self._channel, self._lifeline, at_most_s=0.0):
            raise self._hung(deadline, f"{words}; the deadline of {deadline.allowed_s:g} s was not waited for")

    def expect(self, deadline: Deadline) -> None:
        """A wait begins: what the family logs from now on may be the text of the documented hang."""
        self._watch = None
        if self.awaited is not None and deadline.phase in self.awaited.phases and self.alive and self.pid is not None:
            self._watch = Watch(self.awaited, self._nanny, self.pid, self.log, self._ray_dir)

    def check_alive(self, deadline: Deadline) -> None:
        """Raise ``ChildDied`` when the child has ended."""
        if not self.alive:
            raise self._died(deadline, "it ended")

    def pause(self, seconds: float) -> None:
        """Sleep, but no longer than the child lives."""
        wait_readable(Deadline.after("pause", seconds), self._lifeline)

    def hung(self, deadline: Deadline, why: str, **more: str) -> DeadlineExceeded:
        """Take the dossier, end the family, and return the error to raise; ``more`` are parts. For waits that do not go over the channel (HTTP)."""
        return self._hung(deadline, why, **more)

    def processes(self) -> list[psutil.Process]:
        """The child and everything below its nanny, or below itself when the nanny is gone."""
        if self._process is None or not self._orphaned:
            return family.below(self._nanny)
        return [*([self._process] if family.lives(self._process) else []), *family.below(self._process.pid)]

    def dossier(self, title: str) -> str:
        """Stacks, logs and resources of the family, now."""
        return str(self._look(title, resume=True))

    def _look(self, title: str, *, resume: bool = False) -> Dossier:
        """As ``dossier``; without ``resume`` the family stays stopped, for its end."""
        last = "nothing was answered"
        if self._last_reply is not None:
            phase, at = self._last_reply
            last = f"last answer {time.monotonic() - at:.1f} s ago, in phase {phase}"
        facts = [line for line in (self._about, f"progress: {last}", self.witness.room()) if line]
        return dossier.compile_dossier(
            title=title, processes=self.processes(), logs=[self.log], ray_dir=self._ray_dir, facts=facts, resume=resume
        )

    def log_tail(self) -> str:
        """The end of the family's log, masked, under a title; empty when nothing was logged."""
        return _section("log", mask(dossier.log_tail(self.log)))

    def stop(self, deadline: Deadline, *, by_signal: bool = False) -> tuple[Leftover, ...]:
        """Ask the child to shut down, wait until it has ended, then end and report whatever it left."""
        if self._closed:
            return self.leftovers
        if self._interrupted:  # it is still at work, and would not read the request to stop
            self.kill()
            return self.leftovers
        self.witness.begin()
        self.note_shared_memory()
        self.expect(deadline)
        try:
            if by_signal:
                self.terminate()
            elif self.alive:
                self._channel.send({"op": "stop"}, timeout_s=deadline.left_s)
                self._value(self.wait_frame(deadline, lambda frame: "ok" in frame), deadline)
            while self.alive:
                # Not the channel: once the child is gone that is readable for ever.
                if not wait_readable(deadline, self._lifeline, at_most_s=LOOK_S if self._watch else deadline.left_s):
                    if deadline.passed:
                        raise self._hung(deadline, f"still alive {deadline.allowed_s:g} s after it was asked to stop")
                    self.check_still(deadline)
        except (FrameTimeout, PeerClosed):
            pass
        finally:
            self.kill()
        return self.leftovers

    def note_shared_memory(self) -> None:
        """Remember what the family has mapped: should somebody kill all of it at once, nobody else knows whose that was."""
        self._shm |= family.shared_memory(self.processes())

    def terminate(self) -> None:
        """Send TERM to the child process alone."""
        if self.pid is not None:
            with contextlib.suppress(psutil.Error):
                psutil.Process(self.pid).send_signal(signal.SIGTERM)

    def kill(self, grace_s: float = _GRACE_S) -> None:
        """End the family now, after ``grace_s`` for TERM; what outlived the child is recorded as leftover. Idempotent."""
        if self._closed:
            return
        ended_by_itself = not self.alive and not self._orphaned
        self._closed = True
        left = self.processes()
        self._shm |= family.shared_memory(left)
        survivors = family.wait_gone(left, _LEAVE_S) if ended_by_itself else left
        found = [Leftover("process", family.describe(p)) for p in survivors] if ended_by_itself else []
        stubborn = family.end(survivors, grace_s=0.0 if ended_by_itself else grace_s)
        found += [Leftover("process that KILL did not end", family.describe(p)) for p in stubborn]
        with contextlib.suppress(psutil.Error):
            psutil.Process(self._nanny).resume()  # whoever has stopped it
        with contextlib.suppress(PeerClosed, FrameTimeout):
            self._lifeline.send({"op": "end"}, timeout_s=1.0)
        with contextlib.suppress(psutil.Error):
            family.end(family.wait_gone([psutil.Process(self._nanny)], _NANNY_S), grace_s=0.0)
        for path in sorted(self._shm):
            if Path(path).exists():
                if ended_by_itself:
                    found.append(Leftover("shared memory", path))
                Path(path).unlink(missing_ok=True)
        self._channel.close()
        self._lifeline.close()
        if self.on_end is not None:
            found += self.on_end()
        self.leftovers = tuple(found)

    def _read_lifeline(self) -> None:
        while not self._closed:
            frame = self._lifeline.pop()
            if frame is None:
                return
            if frame.get("event") == "started":
                self.pid = int(frame["pid"])
                with contextlib.suppress(psutil.Error):
                    self._process = psutil.Process(self.pid)
            elif frame.get("event") == "exit":
                self.exit_status = int(frame["code"])
            elif frame.get("event") == "limit":
                self.limit = str(frame["text"])

    def _last_frame(self) -> Frame | None:
        with contextlib.suppress(PeerClosed, ProtocolViolation):
            return self._channel.pop()
        return None

    def _value(self, frame: Frame, deadline: Deadline) -> Any:
        if frame["ok"]:
            return frame.get("value")
        message, kind = mask(str(frame.get("message"))), str(frame.get("type"))
        if kind == "vllm_regress_target.Unsupported":
            raise Unsupported(
                message, **{str(name): str(text) for name, text in dict(frame.get("claim") or {}).items()}
            )
        if kind == "vllm_regress_target.WrongRequest":
            raise UsageError(message)
        chain = "\n".join(mask(str(each)) for each in frame.get("chain") or [f"{kind}: {message}"])
        self._check_gap(chain)
        if deadline.phase in ("start", "ready"):  # what another process met, and could not always say
            message += self._root_cause() if "root cause" in message else self.witness.shortage()
        traceback = mask(str(frame.get("traceback", "")))
        raise self.failure(
            f"{self.name} raised {kind.removeprefix('builtins.')}: {message}",
            phase=deadline.phase,
            type_name=kind,
            detail=traceback + self.log_tail(),
            died=bool(frame.get("engine_died")),
            exception=chain,
            traceback=traceback,
        )

    def _check_open(self, phase: str) -> None:
        if self._closed:
            raise ChildDied(f"{self.name} has already ended ({self._how_it_ended()})", phase=phase)

    def _hung(self, deadline: Deadline, why: str, **more: str) -> DeadlineExceeded:
        looked = self._look(f"{self.name} gave no answer in phase {deadline.phase}")
        parts = self.witness.parts(stacks=looked.stack_text, **more)
        short = self.witness.shortage() if deadline.phase in ("start", "ready") else ""
        late = deadline.clock() - deadline.at
        self.kill(
            grace_s=min(_GRACE_S, max(0.0, _LATE_S - late))
        )  # a machine that is slow to tell gets no further time
        what = "missed its deadline" if deadline.passed else "hangs"
        return DeadlineExceeded(
            f"{self.name} {what}: {why}{short}", phase=deadline.phase, detail=str(looked), parts=parts
        )

    def _died(self, deadline: Deadline, why: str) -> ChildDied | LimitExceeded:
        self._settle()
        looked = self._look(f"{self.name} died in phase {deadline.phase}")
        cause = self._root_cause()
        parts = self.witness.parts(stacks=looked.stack_text, exit=self.limit or self._how_it_ended())
        self.kill()
        self._check_gap()
        if self.limit:
            return LimitExceeded(
                f"{self.name} was ended: {self.limit}", phase=deadline.phase, detail=str(looked), parts=parts
            )
        return ChildDied(
            f"{self.name} died: {why} ({self._how_it_ended()}){cause}",
            phase=deadline.phase,
            detail=str(looked),
            parts=parts,
            engine_died=self.witness.has_engine,
        )

    def _check_gap(self, chain: str = "") -> None:
        """Raise ``Unsupported`` where the simulated device said, in whichever process, that it cannot serve this."""
        if gap := dossier.simulation_gap(f"{chain}\n{self.witness.log()}"):
            raise Unsupported(gap, device="sim")

    def _root_cause(self) -> str:
        error = dossier.root_cause(self.witness.log())
        told = f"; the first error in its log: {error}" if error else ""
        return told + self.witness.shortage(status=self.exit_status, silent=self.alive and dossier.tells_nothing(error))

    def _garbled(self, deadline: Deadline, why: str) -> ProtocolError:
        looked = self._look(f"{self.name} broke the protocol in phase {deadline.phase}")
        parts = self.witness.parts(exit=f"sent something that is no reply: {why}")
        self.kill()
        return ProtocolError(
            f"{self.name} sent something that is no reply: {why}",
            phase=deadline.phase,
            detail=str(looked),
            parts=parts,
        )

    def _settle(self) -> None:
        """The channel may close a moment before the nanny reports the exit; give that report a short while."""
        while self.alive and wait_readable(Deadline.after("settle", _GRACE_S), self._lifeline):
            pass

    def _how_it_ended(self) -> str:
        if self.exit_status is None:
            return "its nanny was killed" if self._orphaned else "its end was not reported"
        if self.exit_status < 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(-self.exit_status).name}"
        return f"exit status {self.exit_status}"


def _section(title: str, text: str) -> str:
    return f"\n-- {title}\n{text}" if text else ""
