"""`prfaas send`, `prfaas receive` and `prfaas bench transport`, as a user runs them."""

import argparse
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy
import pytest
from safetensors.numpy import load_file, save_file

from prfaas_ref.commands import bench_transport, receive, send
from prfaas_ref.errors import UserError


def run(command: ModuleType, *words: str) -> int:
    parser = argparse.ArgumentParser()
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


@pytest.mark.parametrize(
    "words",
    [
        ("nowhere", "127.0.0.1:1"),
        (".", "127.0.0.1"),
        (".", "127.0.0.1:1", "--stripes", "0"),
        (".", "127.0.0.1:1", "--link-mbps", "0"),
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
