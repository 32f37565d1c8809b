"""`prfaas send`, `prfaas receive` and `prfaas bench transport`, as a user runs them."""

import errno
import io
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import numpy
import pytest
from safetensors.numpy import load_file, save_file

from prfaas_ref.cli import Parser
from prfaas_ref.commands import bench_transport, receive, send
from prfaas_ref.errors import UserError
from prfaas_ref.transport import Client, LayerSpec, Manifest, Server, TensorSpec
from prfaas_ref.transport.errors import ApplyFailed
from prfaas_ref.transport.testing import terms


def run(command: ModuleType, *words: str) -> int:
    parser = Parser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(words))


@pytest.fixture
def captured(tmp_path: Path) -> Path:
    """Two layers; the second is of several dtypes."""
    home = tmp_path / "captured"
    home.mkdir()
    rng = numpy.random.default_rng(0)
    save_file({"kv": rng.standard_normal((100, 7), dtype="float32")}, home / "a.safetensors")
    state = {"S": rng.standard_normal((2, 3, 5)), "window": rng.integers(0, 9, (3, 4), dtype="int16")}
    save_file(state, home / "b.safetensors", metadata={"S": "head,k,v"})
    return home


def receiver(out: Path, *words: str) -> tuple[subprocess.Popen[str], str]:
    """`prfaas receive` in a process of its own, and where it listens."""
    code = (
        "import argparse,sys; from prfaas_ref.commands import receive as m; p=argparse.ArgumentParser();"
        "m.add_arguments(p); raise SystemExit(m.run(p.parse_args(sys.argv[1:])))"
    )
    command = [sys.executable, "-c", code, "--out", str(out), "--port", "0", "--count", "1", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    return process, process.stderr.readline().split()[-1]


def test_a_captured_hand_off_arrives_and_opens(
    captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process, address = receiver(tmp_path / "inbox", "--json")
    try:
        assert run(send, str(captured), address, "--stripes", "2", "--chunk-kib", "1", "--json") == 0
        out, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    sent, kept = json.loads(capsys.readouterr().out), json.loads(out)
    assert sent["attempts"] == 1 and sent["bytes_sent"] == kept["bytes"]
    for name, file in (("layer_000", "a"), ("layer_001", "b")):
        ours = load_file(Path(kept["directory"], f"{name}.safetensors"))
        theirs = load_file(captured / f"{file}.safetensors")
        assert ours.keys() == theirs.keys()
        assert all(ours[n].dtype == theirs[n].dtype and (ours[n] == theirs[n]).all() for n in ours)
    assert sorted(p.name for p in (tmp_path / "inbox").iterdir()) == ["0001"]


def test_a_secret_is_needed_where_one_is_set(captured: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(os.urandom(20).hex().encode())
    secret.chmod(0o600)
    process, address = receiver(tmp_path / "inbox", "--secret-file", str(secret))
    try:
        assert run(send, str(captured), address) == 1
        assert run(send, str(captured), address, "--secret-file", str(secret)) == 0
        process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0


LAYER = LayerSpec((TensorSpec("x", "U8", (1000,), "flat"),))


class Unread(io.StringIO):
    """A pipe that nobody reads."""

    def flush(self) -> None:
        raise BrokenPipeError


def hand_over(client: Client, name: str) -> None:
    send.hand_over(client, name, [(LAYER, memoryview(bytes(1000)))], 20.0)


def test_a_hand_off_that_cannot_be_kept_leaves_nothing_and_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, in the middle of a layer and at the very end."""
    inbox = receive.Inbox(tmp_path, as_json=True)
    with Server(terms("r"), inbox) as server, Client(server.address, terms("s")) as client:
        hand_over(client, "before")
        for owner, name in ((receive, "image_header"), (Path, "rename")):
            with monkeypatch.context() as full:
                full.setattr(owner, name, Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
                with pytest.raises(ApplyFailed, match="No space left"):
                    hand_over(client, "full")
            assert [p.name for p in tmp_path.iterdir()] == ["0001"]
        hand_over(client, "after")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0001", "0002"] and inbox.kept == 2


def test_a_hand_off_is_kept_and_counted_though_nobody_reads_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive, "sys", SimpleNamespace(stdout=Unread(), stderr=Unread()))
    inbox = receive.Inbox(tmp_path, as_json=False)
    with Server(terms("r"), inbox) as server, Client(server.address, terms("s")) as client:
        hand_over(client, "x")
        assert inbox.kept == 1 and inbox.changed.is_set()
        client.offer("y", Manifest(0, (LAYER,)), deadline_s=9).abort("no")
    assert [p.name for p in tmp_path.iterdir()] == ["0001"]


def test_one_layer_is_told_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inbox = receive.Inbox(tmp_path, as_json=False)
    with Server(terms("r"), inbox) as server, Client(server.address, terms("s")) as client:
        hand_over(client, "x")
    assert capsys.readouterr().out.startswith(f"{tmp_path}/0001: 1 layer, ")


def test_a_directory_may_have_a_name_that_is_no_text(captured: Path, tmp_path: Path) -> None:
    odd = captured.rename(os.fsdecode(os.fsencode(tmp_path) + b"/d\xff"))
    process, address = receiver(tmp_path / "inbox")
    try:
        assert run(send, str(odd), address) == 0
        process.communicate(timeout=20)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "words",
    [
        ("nowhere", "127.0.0.1:1"),
        (".", "127.0.0.1"),
        (".", "127.0.0.1:0"),
        (".", "127.0.0.1:99999"),
        (".", "127.0.0.1:1", "--stripes", "0"),
        (".", "127.0.0.1:1", "--stripes", "33"),
        (".", "127.0.0.1:1", "--chunk-kib", "16385"),
        (".", "127.0.0.1:1", "--deadline-s", "601"),
        (".", "127.0.0.1:1", "--deadline-s", "inf"),
        (".", "127.0.0.1:1", "--deadline-s", "nan"),
        (".", "127.0.0.1:1", "--link-mbps", "0"),
        (".", "127.0.0.1:1", "--link-mbps", "nan"),
        (".", "127.0.0.1:1", "--rtt-ms", "-1"),
        (".", "127.0.0.1:1", "--tls-cert", "x"),
    ],
)
def test_mistakes_are_told_in_a_line(words: tuple[str, ...], captured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(captured)
    with pytest.raises(UserError):
        run(send, *words)
    with pytest.raises(UserError):
        run(receive, "--host", "0.0.0.0", "--port", "0", "--out", "inbox")


def test_a_port_in_use_is_a_mistake(captured: Path) -> None:
    process, address = receiver(captured / "inbox")
    try:
        with pytest.raises(UserError, match="cannot listen"):
            run(receive, "--port", address.split(":")[1], "--out", str(captured / "inbox"))
    finally:
        process.kill()
        process.communicate()


def image(header: str, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header.encode() + body


ONE = '"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04 a zip file, or a pickle",
        struct.pack("<Q", 1 << 60) + b"{}",
        image("{" + ONE + "," + ONE + "}", b"ab"),  # the library takes the last of the two
        image("{" + ONE + "}", b"abc"),
        image('{"x":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}', b"abc"),
        image('{"x":{"dtype":"OBJ","shape":[2],"data_offsets":[0,2]}}', b"ab"),
        image('{"x":{"dtype":"U8","shape":[-2],"data_offsets":[0,2]}}', b"ab"),
        image("[1]"),
    ],
)
def test_what_is_not_a_safetensors_file_is_not_sent(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(UserError, match="not a safetensors file"):
        send.read_layers(tmp_path)


def test_the_benchmark_prints_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(bench_transport, "--mib", "16", "--rounds", "1", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert {"raw_gb_s", "ours", "ratio", "safetensors_copy_gb_s", "link_1g", "pipeline"} <= result.keys()
    assert result["raw_gb_s"].keys() == {"1", "2", "4"}
    assert result["ours"].keys() == result["ratio"].keys() == {"none", "crc32", "xxh3"}
    assert result["ours"]["crc32"] > 0
    assert result["pipeline"]["pipelined_s"] < result["pipeline"]["serial_s"]
    assert bench_transport.table(result).count("target") >= 5
