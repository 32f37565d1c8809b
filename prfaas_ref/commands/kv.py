"""How large is a model's cache, which layers cost what, and can its prefill leave the datacenter?

A hybrid model's cache has two parts: bytes that grow with the prompt (full attention), and a fixed state (linear
layers, sliding windows). S_kv(L) = bytes_per_token * L + fixed. KV and convolution windows in bf16, recurrent states in
fp32, each KV head once; K is 1024 here. Give names of the six published models of the paper's Table 3, or a config.json
of your own; none means all six. Derived from public configs (Ring's linear head size is an assumption). A config.json
says which layers are which by linear_attn_config, layer_types, hybrid_layer_pattern, full_attention_interval or
layer_group_size, or by a model_type that has full attention in all of them, such as llama, qwen3 or deepseek_v3.

With the time that one instance needs to prefill a prompt of --tokens, the cache is also a stream: Phi_kv = S_kv / T
(paper, section 3). If it takes less than the link has, prefill can run in another datacenter.

  prfaas kv
  prfaas kv kimi-linear-48b --tokens 32768 --prefill-s 0.58 --link-gbps 100
  prfaas kv path/to/config.json --json

Between two multiples of 16 tokens the exact reference ships an open tile as well; it is printed apart from S_kv.
"""

import argparse
import json
from collections import Counter
from typing import Any

from prfaas_ref.commands.options import positive
from prfaas_ref.errors import UserError
from prfaas_ref.model.cache_shape import PUBLISHED, CacheShape, read_cache_shape
from prfaas_ref.model.kinds import DTYPE_BYTES
from prfaas_ref.model.sizes import bytes_per_token, fixed_bytes, live_bytes
from prfaas_ref.units import BITS_PER_BYTE, MIB, G

DTYPE = "bfloat16"
LENGTHS = (1024, 8192, 32768, 131072)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="NAME|CONFIG.json", help=f"of {', '.join(PUBLISHED)}; or a file")
    parser.add_argument(
        "--tokens", type=positive(int), default=32768, metavar="N", help="the prompt to prefill (32768)"
    )
    parser.add_argument("--prefill-s", type=positive(float), metavar="S", help="seconds one instance needs for it")
    parser.add_argument("--link-gbps", type=positive(float), metavar="G", help="the link between the datacenters")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")


def run(args: argparse.Namespace) -> int:
    if args.link_gbps and not args.prefill_s:
        raise UserError("--link-gbps needs --prefill-s, the seconds one instance takes to prefill --tokens")
    shapes = [read_cache_shape(name) for name in args.models or PUBLISHED]
    rows = [describe(shape, args.tokens, args.prefill_s, args.link_gbps) for shape in shapes]
    if args.json:
        print(json.dumps({"models": rows}))
    else:
        print(as_text(rows, args.tokens))
    return 0


def cache_bytes(shape: CacheShape, n_tokens: int) -> int:
    """S_kv of a prompt: the paper's, without the open tile."""
    return bytes_per_token(shape, DTYPE) * n_tokens + fixed_bytes(shape, DTYPE)


def describe(shape: CacheShape, n_tokens: int, prefill_s: float | None, link_gbps: float | None) -> dict[str, Any]:
    """One model's numbers."""
    row: dict[str, Any] = {
        "name": shape.name,
        "bytes_per_token": bytes_per_token(shape, DTYPE),
        "fixed_mib": fixed_bytes(shape, DTYPE) / MIB,
        "mib": {str(n): cache_bytes(shape, n) / MIB for n in LENGTHS},
        "open_tile_mib": (live_bytes(shape, DTYPE, 1) - fixed_bytes(shape, DTYPE)) / MIB,
        "layers": by_kind(shape),
    }
    if prefill_s:
        row["phi_kv_gbps"] = cache_bytes(shape, n_tokens) * BITS_PER_BYTE / prefill_s / G
    if prefill_s and link_gbps:
        row["link_share"] = row["phi_kv_gbps"] / link_gbps
        row["prefill_can_leave"] = row["link_share"] < 1
    return row


def by_kind(shape: CacheShape) -> list[dict[str, Any]]:
    """Which layers cost what, all layers of a kind together."""
    shapes = dict(zip(shape.layer_kinds, shape.layers, strict=True))
    return [
        {
            "kind": kind,
            "count": count,
            "bytes_per_token": count * DTYPE_BYTES[DTYPE] * shapes[kind].token_width,
            "fixed_mib": count * sum(t.n_bytes for t in shapes[kind].fixed_state(DTYPE)) / MIB,
        }
        for kind, count in Counter(shape.layer_kinds).items()
    ]


def as_text(rows: list[dict[str, Any]], n_tokens: int) -> str:
    """The table, and below it a line for each model."""
    width = max(len(row["name"]) for row in rows)
    heads = "".join(f"{f'{n // 1024}K MiB':>12}" for n in LENGTHS)
    lines = [f"{'model':<{width}}{'B/token':>10}{'fixed MiB':>11}{heads}"]
    for row in rows:
        sizes = "".join(f"{row['mib'][str(n)]:>12,.1f}" for n in LENGTHS)
        lines.append(f"{row['name']:<{width}}{row['bytes_per_token']:>10,}{row['fixed_mib']:>11.2f}{sizes}")
    lines.append("")
    for row in rows:
        parts = [f"{part['count']} {part['kind']} ({cost(part)})" for part in row["layers"]]
        open_tile = f"; open tile {row['open_tile_mib']:.2f} MiB" if row["open_tile_mib"] else ""
        lines.append(f"{row['name']:<{width}}  {', '.join(parts)}{open_tile}")
        if "phi_kv_gbps" in row:
            lines.append(f"{'':<{width}}  {verdict(row, n_tokens)}")
    return "\n".join(lines)


def cost(part: dict[str, Any]) -> str:
    return f"{part['bytes_per_token']:,} B/token" if part["bytes_per_token"] else f"{part['fixed_mib']:.2f} MiB fixed"


def verdict(row: dict[str, Any], n_tokens: int) -> str:
    """What one instance's stream of caches means for the link."""
    text = f"prefill of {n_tokens:,} tokens emits {row['phi_kv_gbps']:.2f} Gbps of cache"
    if "link_share" not in row:
        return text
    share = row["link_share"]
    if share < 1:
        return f"{text}, {share:.1%} of the link: prefill can leave the datacenter, up to {int(1 / share)} instances"
    return f"{text}, {share:.1f} times the link: prefill must stay"
