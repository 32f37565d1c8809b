"""What a hand-off consists of, and how its bytes lie: manifests, images, ledgers."""

import dataclasses
import json
import random
from itertools import pairwise

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import deserialize

from prfaas_ref.transport import LayerSpec, Manifest, TensorSpec
from prfaas_ref.transport.errors import ProtocolError, Refused
from prfaas_ref.transport.image import Image, image_header, parse_image
from prfaas_ref.transport.ledger import Ledger, from_spans, to_spans
from prfaas_ref.transport.manifest import DTYPE_BYTES, manifest_from_json, require_equal

KV = TensorSpec("kv", "BF16", (100, 37), "token,latent", per_token=True)
STATE = TensorSpec("state", "F32", (3, 5, 7), "head,k,v")
FIXED_KV = dataclasses.replace(KV, per_token=False)
OURS = Manifest(100, (LayerSpec((KV, STATE)), LayerSpec((STATE,))))


def changed(**fields: object) -> Manifest:
    other = dataclasses.replace(STATE, **fields)
    return Manifest(100, (LayerSpec((KV, other)), LayerSpec((STATE,))))


@pytest.mark.parametrize(
    ("theirs", "field"),
    [
        (Manifest(101, (LayerSpec((STATE,)),)), "n_tokens"),
        (Manifest(100, OURS.layers[:1]), "layers"),
        (changed(dtype="BF16"), "layers[0].state.dtype"),
        (changed(shape=(5, 3, 7)), "layers[0].state.shape"),
        (changed(layout="head,v,k"), "layers[0].state.layout"),
        (changed(name="other"), "layers[0].other"),
        (Manifest(100, (LayerSpec((STATE, KV)), OURS.layers[1])), "layers[0].order"),
        (Manifest(100, (LayerSpec((KV,)), OURS.layers[1])), "layers[0].state"),
        (Manifest(100, (OURS.layers[0], LayerSpec((STATE, KV)))), "layers[1].kv"),
        (Manifest(100, (LayerSpec((FIXED_KV, STATE)), OURS.layers[1])), "layers[0].kv.per_token"),
    ],
)
def test_the_first_difference_is_named(theirs: Manifest, field: str) -> None:
    with pytest.raises(Refused) as refusal:
        require_equal(OURS, theirs)
    assert refusal.value.field == field
    require_equal(OURS, manifest_from_json(json.loads(json.dumps(OURS.to_json()))))


@pytest.mark.parametrize("have", [0, 1, 64, 100])
def test_an_increment_drops_rows_of_tokens_and_nothing_else(have: int) -> None:
    increment = OURS.increment(have)
    assert OURS.n_bytes - increment.n_bytes == have * 37 * 2
    assert increment.layers[1] == OURS.layers[1]


@pytest.mark.parametrize("have", [-1, 101])
def test_nobody_holds_less_than_nothing_or_more_than_all(have: int) -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        OURS.increment(have)


@pytest.mark.parametrize(
    "layers",
    [
        [[["x", "U8", [1], "l", False], ["x", "U8", [1], "l", False]]],
        [[["x", "U9", [1], "l", False]]],
        [[["x", "U8", [-1], "l", False]]],
        [[["x", "U8", [True], "l", False]]],
        [[["x", "U8", [1.0], "l", False]]],
        [[["x", "U8", [2**60], "l", False]]],
        [[["x", "U8", [3], "l", True]]],
        [[["x", "U8", [], "l", True]]],
        [[["", "U8", [1], "l", False]]],
        [[["__metadata__", "U8", [1], "l", False]]],
        [[["x", "U8", [1], None, False]]],
        [[["x", "U8", [1], "l", 0]]],
        [[["x", "U8", [1], "l"]]],
        [[["x", "U8", [1] * 17, "l", False]]],
        [[["x", "U8", [9] * 300_000, "l", False]]],  # whose product would take minutes
        [[]] * 65_536,
        [[7]],
        7,
        {"0": []},
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(layers: object) -> None:
    with pytest.raises(ProtocolError, match="manifest"):
        manifest_from_json({"n_tokens": 2, "layers": layers})


def test_a_manifest_may_be_as_large_as_a_header_can_tell() -> None:
    sixteen = TensorSpec("x", "U8", (1,) * 16, "l")
    whole = Manifest(0, (LayerSpec((sixteen,)),) * 65_535)
    assert manifest_from_json(json.loads(json.dumps(whole.to_json()))) == whole
    with pytest.raises(ValueError, match="65536 layers"):
        Manifest(0, whole.layers + whole.layers[:1])


@pytest.mark.parametrize("layers", [{}, {"layers": []}, {"layers": [], "more": 1}])
@pytest.mark.parametrize("n_tokens", [2, "2", -1, None, True])
def test_so_is_one_with_other_fields(n_tokens: object, layers: dict[str, object]) -> None:
    if (n_tokens, layers) != (2, {"layers": []}):
        with pytest.raises(ProtocolError):
            manifest_from_json({"n_tokens": n_tokens} | layers)


def test_the_dtype_sizes_are_those_of_the_safetensors_library() -> None:
    for dtype, n_bytes in DTYPE_BYTES.items():
        layer = LayerSpec((TensorSpec("x", dtype, (3,), "l"),))
        ((name, tensor),) = deserialize(image_header(layer) + bytes(3 * n_bytes))
        assert (name, tensor["dtype"], len(tensor["data"])) == ("x", dtype, 3 * n_bytes)


def test_an_image_is_a_safetensors_file_and_comes_back() -> None:
    layer = OURS.increment(99).layers[0]
    body = random.Random(0).randbytes(layer.n_bytes)
    image = image_header(layer) + body
    assert len(image_header(layer)) % 8 == 0
    tensors = dict(deserialize(image))
    assert tensors["kv"]["shape"] == [1, 37] and bytes(tensors["kv"]["data"]) == body[:74]
    spec, rest = parse_image(memoryview(image))
    assert bytes(rest) == body
    assert spec == LayerSpec(tuple(dataclasses.replace(t, per_token=False) for t in layer.tensors))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.binary(max_size=30), max_size=8), st.data())
def test_an_image_is_its_views_one_after_another(pieces: list[bytes], data: st.DataObject) -> None:
    image, whole = Image([memoryview(p) for p in pieces]), b"".join(pieces)
    offset = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, len(whole) - offset))
    assert b"".join(image.views(offset, length)) == whole[offset : offset + length]
    with pytest.raises(ValueError, match="bytes"):
        image.views(offset, len(whole) - offset + 1)


def test_bytes_follow_memory_order_and_only_contiguous_views_have_one() -> None:
    """vLLM PR 44848, kvcached #391: a view with strides is refused, not read as if it had none."""
    grid = memoryview(bytes(range(24))).cast("B", (4, 6))
    assert b"".join(Image([grid]).views(0, 24)) == bytes(range(24))
    with pytest.raises(ValueError, match="not contiguous"):
        Image([memoryview(bytes(24))[::3]])
    assert Image([memoryview(bytes(8)).cast("d")]).n_bytes == 8
    assert Image([numpy.zeros((0, 5)).data, numpy.zeros((3, 2)).data]).n_bytes == 48


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(1, 900), st.integers(30, 600), st.randoms(use_true_random=False))
def test_a_ledger_against_a_set(n_bytes: int, chunk_bytes: int, rng: random.Random) -> None:
    ledger, other, model = Ledger(n_bytes, chunk_bytes), Ledger(n_bytes, chunk_bytes), {}
    chunks = list(range(-(-n_bytes // chunk_bytes)))
    rng.shuffle(chunks)
    for chunk in chunks + chunks[:3]:
        offset, length = ledger.span(chunk)
        assert ledger.chunk_at(offset, length) == chunk
        ledger.settle(chunk, model.setdefault(chunk, rng.randrange(2**32)))
        ledger.settle(chunk, 12345)  # too late
        ledger.check_invariants()
    assert ledger.missing == 0 and len(model) == len(ledger.digests)
    for chunk in sorted(model):
        other.settle(chunk, model[chunk])
    assert ledger.digest() == other.digest()  # whatever the order of arrival
    worse = Ledger(n_bytes, chunk_bytes)
    for chunk in model:
        worse.settle(chunk, model[chunk] ^ (chunk == chunks[0]))
    assert worse.digest() != ledger.digest()


@pytest.mark.parametrize(("offset", "length"), [(1, 100), (0, 99), (100, 100), (200, 100), (200, 50), (2**48 - 1, 100)])
def test_bytes_off_the_grid_are_no_chunk(offset: int, length: int) -> None:
    ledger = Ledger(250, 100)
    if (offset, length) in ((100, 100), (200, 50)):
        assert ledger.span(ledger.chunk_at(offset, length)) == (offset, length)
        return
    with pytest.raises(ProtocolError, match="not a chunk"):
        ledger.chunk_at(offset, length)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sets(st.tuples(st.integers(0, 2), st.integers(0, 9))))
def test_spans_come_back(pairs: set[tuple[int, int]]) -> None:
    ledgers = [Ledger(10, 1)] * 3
    spans = to_spans(pairs)
    assert set(from_spans(spans, ledgers)) == pairs
    assert all(a[2] + 1 < b[1] for a, b in pairwise(spans) if a[0] == b[0])


@pytest.mark.parametrize("span", [(3, 0, 0), (0, 0, 10), (0, 5, 4), (0, 10, 10)])
def test_spans_of_chunks_that_do_not_exist_are_refused(span: tuple[int, int, int]) -> None:
    with pytest.raises(ProtocolError, match="do not exist"):
        list(from_spans([span], [Ledger(10, 1)] * 3))
