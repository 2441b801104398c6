"""Simulated process trees: each prints the text of a documented hang, and then either really hangs,
or keeps working and answers later."""

import fcntl
import http.server
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

LONG_S = 7.0
"""Longer than the settling time of the tests; what works answers then."""


def say(text="the documented text"):
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _until_late():
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        yield end - time.monotonic()


def wait_for_ever():
    say()
    threading.Event().wait()


def wait_for_a_child_that_waits():
    say()
    subprocess.run([sys.executable, "-c", "import threading; threading.Event().wait()"])


def deadlock():
    first, second = threading.Lock(), threading.Lock()

    def other():
        with second:
            time.sleep(0.2)
            first.acquire()

    with first:
        threading.Thread(target=other, daemon=True).start()
        time.sleep(0.2)
        say()
        second.acquire()


def poll_for_ever():
    say()
    while True:
        time.sleep(0.25)


def restart_for_ever():
    while True:
        subprocess.run(
            [
                sys.executable,
                "-c",
                "raise SystemExit('the documented text {}'.format(__import__('os').getpid()))",
            ]
        )
        time.sleep(0.3)


def restart_until_it_works():
    for _ in range(5):
        subprocess.run([sys.executable, "-c", "raise SystemExit('the documented text')"])
        time.sleep(0.5)
    return "up"


def spin():
    say()
    for _ in _until_late():
        pass
    return "done"


def work_a_little():
    say()
    for _ in _until_late():
        end = time.process_time() + 0.1  # not by the clock: a busy machine would give it less
        while time.process_time() < end:
            pass
        time.sleep(0.4)
    return "done"


def sleep_and_answer():
    say()
    time.sleep(LONG_S)
    return "awake"


def sleep_for_ever():
    while True:
        time.sleep(600)


def swap_lines():
    say()
    for number, _ in enumerate(_until_late()):
        say(("ping", "pong")[number % 2])
        time.sleep(0.4)
    return "done"


def log_now_and_then():
    say()
    for number in range(4):
        time.sleep(LONG_S / 4)
        say(f"part {number} of 4")
    return "done"


def stopped_and_continued():
    say()
    helper = (
        f"import os, signal, time; time.sleep({LONG_S}); os.kill({os.getpid()}, signal.SIGCONT)"
    )
    subprocess.Popen([sys.executable, "-c", helper])
    os.kill(os.getpid(), signal.SIGSTOP)
    return "continued"


def blocked_by_one_that_works():
    with tempfile.NamedTemporaryFile() as file:
        read, write = os.pipe()
        holder = os.fork()
        if holder == 0:
            with open(file.name) as own_file:
                fcntl.flock(own_file, fcntl.LOCK_EX)
                os.write(write, b".")
                for _ in _until_late():
                    pass
            os._exit(0)
        os.read(read, 1)
        say()
        fcntl.flock(file, fcntl.LOCK_EX)
        os.waitpid(holder, 0)
    return "got it"


def blocked_by_one_that_sleeps():
    lock = threading.Lock()
    lock.acquire()

    def hold():
        time.sleep(LONG_S)
        lock.release()

    threading.Thread(target=hold).start()
    say()
    lock.acquire()
    return "got it"


def slow_disk():
    say()
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        for _ in _until_late():
            file.write(b"x" * 8192)
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.5)
    return "written"


def wait_uninterruptibly():
    """A process that waits for a disk is in state D, like one that has called vfork and waits for
    the child's exec."""
    say()
    program = (
        "import ctypes, os\n"
        "libc = ctypes.PyDLL(None)\n"
        "if libc.vfork() == 0:\n"
        f"    libc.sleep({int(LONG_S)})\n"
        "    libc._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", program])
    return "woken"


def network_time_outs():
    """Reads the same socket again after each timeout."""
    receiver, sender = socket.socketpair()
    threading.Timer(LONG_S, sender.send, [b"answer"]).start()
    receiver.settimeout(LONG_S / 3.5)
    say()
    while True:
        try:
            return receiver.recv(10).decode()
        except TimeoutError:
            continue


def connect_again_and_again():
    """No process listens on the port yet."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    say()
    for _ in _until_late():
        with socket.socket() as tried:
            tried.settimeout(0.5)
            if tried.connect_ex(address):
                select.select([], [], [], 0.5)
    return "gave up"


def slow_download():
    """Receives a few bytes now and then from a process outside the tree."""
    receiver, source = socket.socketpair()
    sender = os.fork()
    if sender == 0:
        for _ in _until_late():
            source.send(b"x" * 16)
            time.sleep(0.7)
        os._exit(0)
    source.close()
    receiver.settimeout(5)
    say()
    received = b""
    while True:
        more = receiver.recv(64)
        if not more:
            os.waitpid(sender, 0)
            return f"{min(len(received), 16)} or more"
        received += more


def thousands_of_short_processes():
    say()
    for _ in _until_late():
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return "done"


def say_nothing_and_wait():
    threading.Event().wait()


def be_of_eight():
    """A tree of eight processes that hangs, for measuring the cost of a snapshot."""
    for _ in range(7):
        if os.fork() == 0:
            threading.Event().wait()
    say("something else")
    threading.Event().wait()


def have_an_engine():
    """A process of the engine that waits forever, and one that is not involved in the request."""
    pids = []
    for _ in range(2):
        pids.append(os.fork())
        if pids[-1] == 0:
            threading.Event().wait()
    return pids


def say_that_it_died():
    """Report the death of a child process, as vLLM does."""
    time.sleep(1)
    os.wait()
    raise RuntimeError("the engine is dead")


def spin_for_a_peer():
    while True:
        pass


def answer_although_others_come_and_go():
    for number, _ in enumerate(_until_late()):
        pid = os.fork()
        if pid == 0:
            os._exit(number % 3)
        os.waitpid(pid, 0)
        time.sleep(0.05)
    return "done"


_listening = []


def listen():
    """Return the port at which ``serve`` will answer."""
    _listening.append(http.server.HTTPServer(("127.0.0.1", 0), _Families))
    return _listening[0].server_port


def serve():
    _listening[0].serve_forever()


class _Families(http.server.BaseHTTPRequestHandler):
    """GET /name calls the function of that name, and answers when it does."""

    def do_GET(self):
        value = globals()[self.path[1:]]
        if self.path != "/drip":
            value = value()
        self.send_response(200)
        self.end_headers()
        if self.path == "/drip":
            value(self.wfile)
        else:
            self.wfile.write(str(value).encode())

    def log_message(self, *arguments):
        pass


def drip(stream):
    """An endless answer, whose parts all arrive in time."""
    while True:
        stream.write(b".")
        stream.flush()
        time.sleep(0.1)


def die_with_an_heir():
    """A forked process holds the connection."""
    if os.fork() == 0:
        threading.Event().wait()
    os.kill(os.getpid(), signal.SIGKILL)
