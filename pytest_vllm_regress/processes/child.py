"""A child process as the controller sees it: requests with deadlines, its life, and its end."""

from __future__ import annotations

import contextlib
import signal
import threading
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
from ..target_site.vllm_regress_target.nanny import shm_inodes
from ..target_site.vllm_regress_target.protocol import Frame, FrameSocket, FrameTimeout, PeerClosed, ProtocolViolation
from ..util.deadline import Deadline, HasDescriptor, wait_readable
from ..util.masking import mask
from . import dossier, family
from .dossier import Dossier
from .early import NEVER, Early, Family, Vigil
from .leftover import Leftover
from .witness import Witness

_GRACE_S = 1.0
_LEAVE_S = 3.0  # what is still there this long after the child ended was left behind; Ray's daemons take about a second
_LATE_S = 2.0
_NANNY_S = 8.0


class Child:
    """One engine, server or probe process and its nanny. Threads may share ``wait_for``, and nothing else."""

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
        self.early: Early = NEVER  # what may end a wait before its deadline
        self._nanny = nanny_pid
        self._channel = channel
        self._lifeline = lifeline
        self._ray_dir = ray_dir
        self._about = about  # what the target has installed, for dossiers
        self._shm: set[str] = set()
        self._others = shm_inodes()
        self._closed = self._interrupted = self._orphaned = False
        self._process: psutil.Process | None = None
        self._vigil = Vigil()
        self._reading = threading.Lock()
        self.witness = Witness(log, ray_dir)

    @property
    def alive(self) -> bool:
        """The child process has not ended, as far as its nanny reported; without its nanny it counts as ended."""
        try:
            with self._reading:
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
        if self._closed:
            raise ChildDied(f"{self.name} has already ended ({self._how_it_ended()})", phase=deadline.phase)
        self.expect(deadline)
        try:
            self._channel.send({"op": operation, **arguments}, timeout_s=deadline.left_s)
        except FrameTimeout:
            raise self.hung(deadline, "the child does not read its requests") from None
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
            alive = self.alive  # asked first: what it said before its end is still read
            try:
                frame = self._channel.pop()
            except PeerClosed:
                raise self._died(deadline, "it closed its channel without the reply it owed") from None
            except ProtocolViolation as violation:
                raise self._garbled(deadline, str(violation)) from None
            if frame is not None:
                if accept(frame):
                    return frame
            elif not alive:
                raise self._died(deadline, "it ended without the reply it owed")
            elif not wait_readable(deadline, self._channel, self._lifeline, at_most_s=self._vigil.pace):
                if deadline.passed:
                    raise self.hung(deadline, f"no answer within {deadline.allowed_s:g} s")
                self.check_early(deadline)

    def wait_for(self, call: HasDescriptor, vigil: Vigil, deadline: Deadline) -> bool:
        """Wait until ``call``, which asks the family past the channel, can be read; False when the deadline came first. Raises as ``request``.

        ``vigil``: taken before the call began, for text that is logged before it is not heard.
        """
        while not deadline.passed:
            alive = self.alive
            if wait_readable(deadline, call, at_most_s=0.0 if alive else _GRACE_S):
                return True
            if not alive:
                raise self._died(deadline, "it ended without the answer it owed")
            if not wait_readable(deadline, call, self._lifeline, at_most_s=vigil.pace):
                self._end_early(vigil, deadline, call)
        return False

    def check_early(self, deadline: Deadline) -> None:
        """Raise ahead of time what is sure: the documented hang (its text was seen, and nothing moves), or the death of the engine."""
        self._end_early(self._vigil, deadline, self._channel)

    def _end_early(self, vigil: Vigil, deadline: Deadline, call: HasDescriptor) -> None:
        hang, death = vigil.hang(), vigil.death()
        if not (hang or death) or wait_readable(deadline, call, self._lifeline, at_most_s=0.0):
            return
        if death:
            raise self._died(deadline, death=death)
        raise self.hung(deadline, f"{hang}; the deadline of {deadline.allowed_s:g} s was not waited for")

    def expect(self, deadline: Deadline) -> None:
        """A wait begins: what the family logs from now on may be the text of the documented hang."""
        self._vigil = self.vigil_over(deadline)

    def vigil_over(self, deadline: Deadline) -> Vigil:
        """What ends the wait that begins now; for ``wait_for``."""
        while self.early != NEVER and self.alive and self.pid is None and wait_readable(deadline, self._lifeline):
            pass  # the nanny tells in a moment whom it has started
        seen = Family(self._nanny, self.pid, self.log, self._ray_dir) if self.alive and self.pid else None
        return Vigil.over(seen, deadline.phase, self.early, self.witness) if seen else Vigil()

    def check_alive(self, deadline: Deadline) -> None:
        """Raise ``ChildDied`` when the child has ended."""
        if not self.alive:
            raise self._died(deadline, "it ended")

    def pause(self, seconds: float) -> None:
        """Sleep, but no longer than the child lives."""
        wait_readable(Deadline.after("pause", seconds), self._lifeline)

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
        return f"\n-- log\n{text}" if (text := mask(dossier.log_tail(self.log))) else ""

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
                if not wait_readable(deadline, self._lifeline, at_most_s=self._vigil.pace):
                    if deadline.passed:
                        raise self.hung(deadline, f"still alive {deadline.allowed_s:g} s after it was asked to stop")
                    self._end_early(self._vigil, deadline, self._lifeline)
        except (FrameTimeout, PeerClosed):
            pass
        finally:
            self.kill()
        return self.leftovers

    def note_shared_memory(self) -> None:
        """Remember what the family has mapped: should somebody kill all of it at once, nobody else knows whose that was."""
        self._shm |= family.shared_memory(self.processes(), self._others)

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
        self._shm |= family.shared_memory(left, self._others)
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

    def hung(self, deadline: Deadline, why: str, **more: str) -> DeadlineExceeded:
        """Take the dossier, end the family, and return the error to raise; ``more`` are parts of it."""
        looked = self._look(f"{self.name} gave no answer in phase {deadline.phase}")
        parts = self.witness.parts(stacks=looked.stack_text, **more)
        short = self.witness.shortage() if deadline.phase in ("start", "ready") else ""
        late = deadline.clock() - deadline.at  # a machine that is slow to tell gets no further time
        self.kill(grace_s=min(_GRACE_S, max(0.0, _LATE_S - late)))
        what = "missed its deadline" if deadline.passed else "hangs"
        return DeadlineExceeded(
            f"{self.name} {what}: {why}{short}", phase=deadline.phase, detail=str(looked), parts=parts
        )

    def _died(self, deadline: Deadline, why: str = "", *, death: str = "") -> ChildDied | LimitExceeded:
        """Take the dossier, end the family, and return the error to raise. ``death``: not the child has ended, but its engine."""
        while not death and self.alive and wait_readable(Deadline.after("settle", _GRACE_S), self._lifeline):
            pass  # the channel may close a moment before the nanny reports the exit
        looked = self._look(f"{self.name} died in phase {deadline.phase}")
        how = "" if death else self._how_it_ended()
        words = death + self.witness.shortage() if death else f"{why} ({how}){self._root_cause()}"
        parts = self.witness.parts(stacks=looked.stack_text, exit=self.limit or how)
        self.kill()
        self._check_gap()
        if self.limit:
            return LimitExceeded(
                f"{self.name} was ended: {self.limit}", phase=deadline.phase, detail=str(looked), parts=parts
            )
        return ChildDied(
            f"{self.name} died: {words}",
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

    def _how_it_ended(self) -> str:
        if self.exit_status is None:
            return "its nanny was killed" if self._orphaned else "its end was not reported"
        return family.ending(self.exit_status)
