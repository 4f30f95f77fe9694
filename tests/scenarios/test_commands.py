"""Commands as processes: signals, closed pipes, shells and terminals."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from spark_replog.groups.group_coordinator import GroupCoordinator
from tests.unit import conftest as commands
from tests.unit.cli import test_brokers, test_completion, test_consume, test_tail, test_top
from tests.unit.client.consumer_setup import rows
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
replog, program = commands.replog, test_completion.program
four_brokers, completed, consumed = test_brokers.store, test_completion.store, test_consume.store
tailed, topped = test_tail.store, test_top.store
TAKEN_ELSEWHERE = """
import runpy, signal, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGWINCH})
runpy.run_module("spark_replog", run_name="__main__")
"""
"""`replog` in a process where another thread takes the signals: no system call of the main thread is interrupted,
as by a signal that comes just before the call."""
ENDS_WHILE_A_JOB_READS_ARROW = """
import threading
import pyarrow as pa
from spark_replog.storage.io_pool import IO_POOL

sink = pa.BufferOutputStream()
batch = pa.record_batch([pa.array(range(300_000))], names=["a"])
with pa.ipc.new_stream(sink, batch.schema) as writer:
    writer.write_batch(batch)
body, runs = sink.getvalue(), threading.Event()

def read_on():
    try:
        while True:
            pa.ipc.open_stream(pa.py_buffer(body)).read_all()
            runs.set()
            IO_POOL.submit_to("root", int).result()
    finally:
        print("ended", flush=True)

waiting = IO_POOL.submit_to("reader", read_on)
runs.wait()
"""


def test_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "spark_replog", "frobnicate"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "frobnicate" in done.stderr


@pytest.mark.parametrize("arguments", ["--help", "-s nowhere topic list -f json"], ids=["help", "an error as JSON"])
def test_closed_pipe_ends_quietly(tmp_path, arguments):
    # The reader is gone before Python has started. -S: what .pth files of an environment say is not the command's.
    done = subprocess.run(
        f"{sys.executable} -S -m spark_replog {arguments} | true; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        cwd=tmp_path,
    )
    assert done.returncode in {0, 141}, done.stderr
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("arguments", "ready"),
    [(["metrics", "serve", "--listen", "127.0.0.1:0"], "http://"), (["ui", "--listen", "127.0.0.1:0"], "http://")],
    ids=["metrics serve", "ui"],
)
def test_sigterm_ends_a_server_with_a_word_and_by_the_signal(replog, tmp_path, arguments, ready):
    assert replog("-s", tmp_path / "store", "init", "--no-fsync").exit_code == 0
    words = [sys.executable, "-m", "spark_replog", "-s", str(tmp_path / "store"), *arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        while said and ready not in said:
            said = server.stdout.readline()
        server.terminate()
        rest, _ = server.communicate(timeout=60)
    assert ready in said and rest == "replog: stopped\n"
    assert server.returncode == -signal.SIGTERM


def test_the_coordinator_runs_until_sigterm(four_brokers):
    words = ["-s", str(four_brokers), "coordinator", "run", "--interval-ms", "50"]
    command = [sys.executable, "-m", "spark_replog", *words]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stderr is not None
    assert "SIGTERM stops it" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=180)
    assert process.returncode == 0
    assert out.startswith("stopped after ")


def completion(command, environ):
    """Run it until it offers something: of a store that does not answer within seconds it offers nothing."""
    answers = []

    def is_answered():
        answers.append(
            subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
        )
        return bool(answers[-1].stdout.strip() or answers[-1].returncode or answers[-1].stderr)

    wait_until(is_answered, lambda: f"{len(answers)} answers: {answers[-1]}", pause_seconds=0)
    return answers[-1]


def test_bash_completes_with_the_script(program, completed):
    line = (
        'eval "$(replog completion bash)"; COMP_WORDS=(replog topic describe ord); COMP_CWORD=3;'
        ' _replog_completion replog; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{program.parent}:{os.environ['PATH']}"
    done = completion(["bash", "-c", line], {"PATH": path, "REPLOG_STORE": completed})
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["order-items", "orders"], "")


def test_a_warning_of_the_store_is_not_printed_into_the_line(program, completed, tmp_path):
    """A root that is none of the store's, which the command itself reports."""
    words = f"replog -s {shlex.quote(completed + '/broker-0')},{tmp_path}/surplus topic describe "
    environ = {"_REPLOG_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "5"}
    done = completion([str(program)], environ)
    assert "plain,orders" in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("words", "redirection"), [
    ((), ">&-"),
    pytest.param(("-f", "json"), ">/dev/full",
                 marks=pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")),
])  # fmt: skip
def test_what_could_not_be_printed_is_told_and_not_committed(consumed, words, redirection):
    command = [sys.executable, "-m", "spark_replog", "-s", consumed.path, "consume", "orders", "-g", "app", *words]
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh"]
    done = subprocess.run([*shell, *command], cwd=ROOT, stderr=subprocess.PIPE, timeout=180)
    assert done.returncode == 1
    assert done.stderr.startswith(b"replog: [REPLOG_ENVIRONMENT] stdout cannot be written: ")
    assert not GroupCoordinator(consumed.another_process().cluster).group("app").offsets


def _start(store, *words):
    command = [sys.executable, "-m", "spark_replog", "-s", store.path, "tail", *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_it_follows_and_ends_clean_on_ctrl_c(tailed):
    process = _start(tailed, "orders", "payments", "-n", "1")
    assert process.stdout is not None and process.stderr is not None
    with process:
        assert process.stdout.readline().endswith(" v11\n")
        assert process.stdout.readline().endswith(" v11\n")
        tailed.write("payments", rows(1), partition=0)
        assert "payments-0 12" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
        assert process.stdout.read() == "" and process.stderr.read() == "replog: stopped\n"


def test_it_ends_when_its_reader_is_gone(tailed):
    process = _start(tailed, "orders", "-n", "1")
    assert process.stdout is not None and process.stderr is not None
    with process:
        process.stdout.readline()
        process.stdout.close()
        tailed.write("orders", rows(1), partition=0)
        assert process.wait(120) == 141
        assert process.stderr.read() == ""


class Terminal:
    """The command on a pseudo terminal."""

    def __init__(self, path, program=("-m", "spark_replog")):
        self.main, side = pty.openpty()
        self.resize(24, 80)
        command = [sys.executable, *program, "-s", path, "top", "-d", "600"]
        environment = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
        environment.pop("COLUMNS", None)
        environment.pop("LINES", None)
        self.before = termios.tcgetattr(side)
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=side, stdout=side, stderr=side, start_new_session=True
        )
        self.side = side
        self.seen = ""

    def resize(self, lines, columns):
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read_until(self, words, after=0):
        end = time.monotonic() + 60
        while words not in self.seen[after:]:
            assert time.monotonic() < end, self.seen
            if select.select([self.main], [], [], 0.2)[0]:
                self.seen += os.read(self.main, 65536).decode()
        return self.seen

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.main)
        os.close(self.side)


@pytest.mark.parametrize(("ending", "code"), [("q", 0), (signal.SIGINT, 130), (signal.SIGTERM, 130)])
@pytest.mark.parametrize("command", [("-m", "spark_replog"), ("-c", TAKEN_ELSEWHERE)], ids=["main", "elsewhere"])
def test_live_it_follows_the_size_and_leaves_the_terminal_as_it_was(topped, command, ending, code):
    terminal = Terminal(topped.path, command)
    try:
        page = terminal.read_until("15 MINUTES")
        assert "\x1b[?1049h" in page and "\x1b[?25l" in page, "a screen of its own, without a cursor"
        at = len(terminal.seen)
        terminal.resize(12, 120)
        drawn = terminal.read_until("REASON", at)[at:]
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn).split("\r\n")
        assert len(lines) <= 12 and len(lines[0]) == 120
        if ending == "q":
            os.write(terminal.main, b"q")
        else:
            terminal.process.send_signal(ending)
        assert terminal.process.wait(120) == code
        terminal.read_until("\x1b[?1049l")
        assert termios.tcgetattr(terminal.side) == terminal.before
    finally:
        terminal.close()


def test_a_process_that_ends_while_a_job_is_in_arrow_ends_well():
    """Without a stop at exit about every third such process ends with SIGABRT inside Arrow."""
    command = [sys.executable, "-c", ENDS_WHILE_A_JOB_READS_ARROW]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ended\n", "")


def test_a_process_that_ends_does_not_wait_for_a_hung_call():
    script = "import time\nfrom spark_replog.storage.io_pool import IO_POOL\nIO_POOL.submit(time.sleep, 3600)\n"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=180)
    assert (ended.returncode, ended.stderr) == (0, "")
