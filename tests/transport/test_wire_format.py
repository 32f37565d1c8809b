"""docs/wire-format.md decodes: its worked example is what the code says, and what its tables say it is.

The decoding here is written from the document, with struct and json alone.
"""

import hashlib
import json
import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path

from safetensors import deserialize

from prfaas_ref.transport import Check, LayerSpec, Manifest, TensorSpec
from prfaas_ref.transport.frames import FrameType
from prfaas_ref.transport.memory import MemoryLink
from prfaas_ref.transport.messages import Offer
from prfaas_ref.transport.outgoing import Outgoing
from prfaas_ref.transport.pipe import Pipe
from prfaas_ref.transport.testing import Landing, terms

DOCUMENT = Path(__file__).parents[2] / "docs" / "wire-format.md"
KV, STATE = TensorSpec("kv", "BF16", (3, 2), "token,latent", per_token=True), TensorSpec("S", "F32", (1,), "k")
SPEC = Manifest(3, (LayerSpec((KV, STATE)),))
HAVE = 1
BYTES = bytes.fromhex("817f 0080 0100 7f80 0000803f")
TYPES = {t.value: t.name for t in FrameType}


def conversation() -> list[tuple[str, bytes]]:
    """Every frame of a small hand-off, with who said it."""
    said: list[tuple[str, bytes]] = []

    class Recorder(MemoryLink):
        def _write(self, pipe: Pipe, data: bytes, by_sender: bool) -> None:
            said.append(("S" if by_sender else "R", data))
            super()._write(pipe, data, by_sender)

    sender, receiver = (
        replace(terms(role, layout={"block_tokens": "64"}), checks=(Check.CRC32,)) for role in ("sender", "receiver")
    )
    offer = Offer("req-7", 0, 5.0, 256, SPEC.to_json(), {"route": "prfaas"})
    outgoing = Outgoing(offer, SPEC, sender.identity.fingerprint())
    pages = Landing(lambda _: SPEC, HAVE)
    link = Recorder(sender, receiver, pages)
    link.hand_off(outgoing, lambda: [[memoryview(BYTES)]])
    return said


def as_text(who: str, frame: bytes) -> str:
    """A frame as the document shows it."""
    head, payload = frame[:32], frame[32:]
    fields = (head[:4], head[4:8], head[8:12], head[12:20], head[20:24], head[24:28], head[28:])
    kind = TYPES[head[3]]
    shown = payload.hex() if kind == "DATA" else payload.decode()
    return f"{who} {kind}\n  {' '.join(field.hex() for field in fields)}\n  {shown}"


def documented() -> list[tuple[str, str, bytes, bytes]]:
    """(who, type, header, payload) of each frame in the document's worked example."""
    (block,) = re.findall(r"<!-- worked example -->\n```\n(.*?)```", DOCUMENT.read_text(), re.S)
    frames = re.findall(r"^([SR]) (\w+)\n  ([0-9a-f ]+)\n  (.*)$", block, re.M)
    return [
        (who, kind, bytes.fromhex(head), bytes.fromhex(body) if kind == "DATA" else body.encode())
        for who, kind, head, body in frames
    ]


def test_the_worked_example_is_what_the_code_says() -> None:
    assert [(who, head + body) for who, _, head, body in documented()] == conversation()


def test_the_worked_example_decodes_by_the_documents_tables() -> None:
    session = {0}
    for _, name, head, payload in documented():
        magic, version, kind, tag, transfer, attempt = struct.unpack_from(">2sBBIHB", head)
        flags, position, length, check, crc = struct.unpack_from(">BQIII", head, 11)
        assert (magic, version, TYPES[kind]) == (b"Pf", 1, name)
        assert crc == zlib.crc32(head[:28])
        assert length == len(payload) and check == zlib.crc32(payload) and flags == 1
        session.add(tag)
        assert (transfer, attempt) == ((0, 0) if name == "HELLO" else (1, 0))
        if name != "DATA":
            assert position == 0
            json.loads(payload)
    assert len(session) == 2


def test_the_digests_of_the_worked_example_follow_the_documents_formulas() -> None:
    frames = {name: payload for _, name, _, payload in documented()}
    image, offer = frames["DATA"], json.loads(frames["OFFER"])
    layer = hashlib.sha256(
        len(image).to_bytes(8, "big") + (256).to_bytes(8, "big") + zlib.crc32(image).to_bytes(4, "big")
    ).hexdigest()
    assert json.loads(frames["LAYER_END"]) == {"layer": 0, "digest": layer}
    hello = json.loads(frames["HELLO"])
    fingerprint = hashlib.sha256(json.dumps(sorted(hello["layout"].items())).encode()).hexdigest()
    manifest = json.loads(frames["ACCEPT"])["manifest_sha256"]
    root = hashlib.sha256("\n".join([offer["transfer_id"], fingerprint, manifest, layer]).encode()).hexdigest()
    assert json.loads(frames["DONE"]) == json.loads(frames["APPLIED"]) == {"digest": root}


def test_the_layer_of_the_worked_example_is_a_safetensors_file() -> None:
    (image,) = (payload for _, name, _, payload in documented() if name == "DATA")
    size = int.from_bytes(image[:8], "little")
    assert size % 8 == 0 and image[8 + size :] == BYTES
    header = json.loads(image[8 : 8 + size])
    assert header["kv"]["shape"] == [2, 2]  # three tokens, of which the receiver holds one
    tensors = dict(deserialize(image))
    assert struct.unpack("<f", tensors["S"]["data"]) == (1.0,) and tensors["kv"]["dtype"] == "BF16"


def test_every_frame_type_and_field_is_documented() -> None:
    text = DOCUMENT.read_text()
    for kind in FrameType:
        assert f"| {kind.value} | {kind.name} |" in text
