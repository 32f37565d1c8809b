"""Mistakes of the user's: one clear line on stderr, exit status 2 (130 for Ctrl-C), no traceback, no stray process."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

PRFAAS = [sys.executable, "-m", "prfaas_ref"]


def refused(*words: str | Path, stdin: bytes = b"") -> str:
    """Run a command that must fail as a user's mistake; returns its one line."""
    done = subprocess.run([*PRFAAS, *map(str, words)], input=stdin, capture_output=True, timeout=60)
    lines = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout) == (2, b""), done
    assert len(lines) == 1, lines
    assert lines[0].startswith("prfaas: ")
    return lines[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nonsense"], "no command 'nonsense'"),
        (["generate", "missing.txt"], "cannot read missing.txt: No such file"),
        (["demo", "missing.txt"], "cannot read missing.txt: No such file"),
        (["generate", "."], "cannot read .: Is a directory"),
        (["generate"], "standard input is empty"),
        (["generate", "--tokens", "0"], "'0' is not a whole number from 1 to 65536"),
        (["demo", "--tokens", "-3"], "'-3' is not a whole number from 1 to 65536"),
        (["demo", "--tokens", "1" + "0" * 20], "is not a whole number from 1 to 65536"),
        (["generate", "--seed", "9" * 30], "is not a whole number from 0 to"),
        (["generate", "--threads", "100000000"], "is not a whole number from 1 to 1024"),
        (["demo", "--requests", "0"], "'0' is not a whole number above 0"),
        (["demo", "--threshold", "-1"], "'-1' is not a whole number of 0 or more"),
        (["demo", "--link-mbps", "0"], "'0' is not a number above 0"),
        (["demo", "--link-mbps", "inf"], "'inf' is not a number above 0"),
        (["demo", "--rtt-ms", "nan"], "'nan' is not a number of 0 or more"),
        (["demo", "--deadline-s", "1e10"], "'1e10' is not a number above 0, and at most 600"),
        (["demo", "--deadline-s", "inf"], "'inf' is not a number above 0, and at most 600"),
        (["ask", "README.md", "why?", "--deadline-s", "601"], "'601' is not a number above 0, and at most 600"),
        (["send", ".", "127.0.0.1:99999"], "with a port from 1 to 65535"),
        (["send", ".", "127.0.0.1:1", "--stripes", "33"], "'33' is not a whole number from 1 to 32"),
        (["send", ".", "127.0.0.1:1", "--link-mbps", "nan"], "'nan' is not a number above 0"),
        (["bench"], "`prfaas bench` needs one of: model, cache, transport, simulator"),
        (["demo", "--dtype", "int8"], "invalid choice: 'int8'"),
        (["demo", "--model", "no-such-model"], "neither a preset"),
        (["demo", "README.md", "LICENSE", "--requests", "1"], "leaves out some of the 2 files"),
        (["demo", "--keep-logs", "/proc"], "cannot write logs to /proc"),
        (["worker", "--role", "decode"], "required: --cluster"),
        (["worker", "--role", "decode", "--cluster", "pd", "--port", "70000"], "is not a whole number from 0 to 65535"),
        (["worker", "--role", "decode", "--cluster", "pd", "--cache-mb", "1e9"], "lower --cache-mb"),
    ],
)
def test_one_line_says_what_is_wrong(words: list[str], says: str) -> None:
    assert says in refused(*words)


def test_files_that_cannot_be_prompts(tmp_path: Path) -> None:
    empty, huge = tmp_path / "empty", tmp_path / "huge"
    empty.touch()
    huge.write_bytes(b"x" * (2**18 + 1))
    assert "is empty" in refused("generate", empty)
    assert "has 262145 bytes; at most 262144" in refused("demo", huge)


def test_model_directories_that_are_none(tmp_path: Path) -> None:
    assert "no readable config.json" in refused("demo", "--model", tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "is not JSON" in refused("generate", "--model", tmp_path, stdin=b"x")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "only 'kimi_linear' can be run" in refused("generate", "--model", tmp_path, stdin=b"x")


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}" in refused(
            "worker", "--role", "decode", "--cluster", "pd", "--port", str(port)
        )


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def demo_with_workers(tmp_path: Path) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A demo with a long prompt, and its workers' process ids, as soon as all three have been forked."""
    prompt = tmp_path / "prompt"
    prompt.write_bytes(b"y" * 60_000)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and their children, ignore it
    demo = subprocess.Popen([*PRFAAS, "demo", str(prompt)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = time.monotonic() + 30
    while len(workers := children(demo.pid)) < 3 and time.monotonic() < end:
        time.sleep(0.02)
    return demo, workers


def wait_until_gone(pids: list[int], within_s: float = 10) -> None:
    end = time.monotonic() + within_s
    while alive := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < end, f"processes {alive} stay behind"
        time.sleep(0.05)


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc to find the workers")


@needs_proc
@pytest.mark.parametrize("delay_s", [0.0, 3.0])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_at_any_time_leaves_nothing_behind(tmp_path: Path, how: signal.Signals, delay_s: float) -> None:
    demo, workers = demo_with_workers(tmp_path)
    time.sleep(delay_s)  # while the workers start, or while they compute
    demo.send_signal(how)
    out, err = demo.communicate(timeout=30)
    assert (demo.returncode, out, err) == (130, b"", b"prfaas: interrupted\n")
    wait_until_gone(workers)


@needs_proc
def test_workers_end_when_their_front_end_is_killed_while_they_start(tmp_path: Path) -> None:
    demo, workers = demo_with_workers(tmp_path)
    demo.kill()
    demo.communicate(timeout=30)
    wait_until_gone(workers)


def test_a_supervised_worker_that_cannot_start_says_why_in_a_line(tmp_path: Path) -> None:
    words = ("worker", "--role", "prefill", "--cluster", "pd", "--supervised", "--model", str(tmp_path))
    with subprocess.Popen([*PRFAAS, *words], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
        assert worker.wait(timeout=60) == 2  # while its standard input is open
        assert worker.stderr is not None
        (line,) = worker.stderr.read().decode().splitlines()
    assert line.startswith("prfaas: ") and "no readable config.json" in line
