"""A deployment to plan or simulate, read from a TOML file. `EXAMPLE` is one, commented: the paper's case study.

Knows nothing of searching or simulating. Every mistake is a UserError that names the table and the key.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from prfaas_ref.errors import UserError
from prfaas_ref.model.cache_shape import PUBLISHED, read_cache_shape
from prfaas_ref.model.sizes import bytes_per_token, fixed_bytes
from prfaas_ref.request import Request
from prfaas_ref.scheduler.lengths import Lengths, LogNormalLengths, ObservedLengths
from prfaas_ref.scheduler.paper_data import MODEL_BYTES
from prfaas_ref.scheduler.planner import Prices, Slo
from prfaas_ref.scheduler.profile import DecodeProfile, KvSize, MeasuredProfile, PrefillProfile, Profile
from prfaas_ref.scheduler.throughput import System
from prfaas_ref.scheduler.traces import TraceFormat, read_trace
from prfaas_ref.units import GIB, MIB, gbps

MOST = 1e300  # a number above it is taken for infinite

EXAMPLE = """\
# A deployment for `prfaas plan` and `prfaas simulate`. The values are the case study of arXiv 2604.15039. The prefill
# coefficients are ours: fitted to its table 5, and for [pd] calibrated on its table 6 (see `prfaas paper`).

[model]                        # S_kv: what one request's cache weighs
bytes_per_token = 17280        # full-attention KV
fixed_mib = 173.90625          # recurrent state, sent whole
# config = "config.json"       # or: a Hugging Face config
# name = "Kimi Linear"         # or: a model of the paper's table 3, or as `prfaas kv` names it; the prefill seconds
#                              # below must then be that model's too

[prfaas]                       # the compute-dense cluster
instances = 4                  # one instance = the GPUs that serve one copy of the model; in the paper 8
# seconds for a prompt of n tokens on one idle instance: c0 + c1 n + c2 n^2
prefill_coefficients = [0.3891235, 4.205504e-05, 9.936495e-11]
# prefill_points = [[1000, 0.44], [8000, 0.72], [32000, 1.84]]  # or: measured (tokens, seconds)
price_per_hour = 2.0           # of one instance, any currency

[pd]                           # the local cluster: prefills short prompts, decodes everything
instances = 8
prefill_coefficients = [0.4692206, 1.3001935e-04, 2.945366e-10]
decode_batch_max = 20          # BS_max
decode_step_ms = 24.98         # T_decode at that batch
# memory_gib = 400             # of cache per decode instance; unlimited if absent
price_per_hour = 1.0

[link]
gbps = 100
rtt_ms = 0

[workload]
mu = 9.90                      # log of the prompt's tokens, normal ...
sigma = 1.00
low = 128                      # ... and truncated
high = 131072
output_tokens = 1024
# trace = "requests.jsonl"     # or: a file, with
# trace_format = "mooncake"    # its format, mooncake or azure

[slo]                          # all optional, and without queueing
decode_tokens_per_s = 40
# mean_ttft_s = 3.0
# p90_ttft_s = 5.0

[search]                       # all optional
# demand_per_s = 3.0           # the cheapest deployment that serves this, of at most the instances above
# budget_per_hour = 16         # or: the most traffic for this money, of at most the instances above

[simulation]                   # all optional; see `prfaas simulate --help`
load = 0.8                     # arrivals as a share of the planned maximum; or rate_per_s = 2.5
burstiness = 1.0               # squared coefficient of variation of the gaps: 1 is Poisson
cache_gib = 512                # prefix cache of each cluster
link_changes = []              # [[seconds, gbps], ...]
failures = []                  # [[seconds, "prfaas-0", seconds down], ...]
"""


@dataclass(frozen=True)
class SimulationOptions:
    """What a simulation needs beyond a plan."""

    load: float = 0.8
    rate_per_s: float | None = None
    burstiness: float = 1.0
    cache_gib: float = 512.0
    link_changes: tuple[tuple[float, float], ...] = ()
    failures: tuple[tuple[float, str, float], ...] = ()


@dataclass(frozen=True)
class Scenario:
    """One deployment, with what is known of its traffic."""

    system: System
    n_prfaas: int
    n_pd: int
    prices: Prices
    slo: Slo = field(default_factory=Slo)
    demand_per_s: float | None = None
    budget_per_hour: float | None = None
    requests: tuple[Request, ...] = ()
    simulation: SimulationOptions = field(default_factory=SimulationOptions)


def load_scenario(path: Path) -> Scenario:
    """Read a scenario; file names in it are relative to it. Raises UserError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read scenario {path}: {error}; `prfaas plan --example` writes one") from error
    return parse_scenario(text, path.parent, str(path))


def parse_scenario(text: str, folder: Path, name: str = "scenario") -> Scenario:
    """A scenario from TOML text. Raises UserError."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{name} is not TOML: {error}") from error
    known = ("model", "prfaas", "pd", "link", "workload", "slo", "search", "simulation")
    if unknown := sorted(set(tables) - set(known)):
        raise UserError(f"{name}: no table [{unknown[0]}]; the tables are {', '.join(known)}")
    tables_by_name = {key: _Table(name, key, tables.get(key, {})) for key in known}
    try:
        scenario = _scenario(tables_by_name, folder)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{name}: {error}") from error
    for table in tables_by_name.values():
        table.check_all_used()
    return scenario


class _Table:
    """One table of the file, which remembers what was asked of it."""

    def __init__(self, file: str, name: str, values: Any) -> None:
        if not isinstance(values, Mapping):
            raise UserError(f"{file}: [{name}] must be a table")
        self.where, self.values = f"{file}, [{name}]", dict(values)
        self.used: set[str] = set()

    def has(self, key: str) -> bool:
        return key in self.values

    def number(self, key: str, default: float | None = None, least: float = 0.0, unlimited: bool = False) -> float:
        """A number of `least` or more, finite or `unlimited`; required when there is no default."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{self.where} {key} must be a number, not {value!r}")
        if not abs(value) <= MOST and not (unlimited and value == inf):
            raise UserError(f"{self.where} {key} must be finite, not {value!r}")
        if value < least:
            raise UserError(f"{self.where} {key} must be {least:g} or more, not {value!r}")
        return float(value)

    def maybe(self, key: str) -> float | None:
        return self.number(key) if self.has(key) else None

    def numbers(self, key: str, names: tuple[str, ...]) -> list[float]:
        """As many numbers as there are names."""
        value = self._get(key, None)
        if (
            not isinstance(value, list)
            or len(value) != len(names)
            or not all(isinstance(x, int | float) for x in value)
        ):
            raise UserError(f"{self.where} {key} must be [{', '.join(names)}], not {value!r}")
        self._check(key, value)
        return [float(x) for x in value]

    def count(self, key: str) -> int:
        value = self.number(key)
        if value != int(value):
            raise UserError(f"{self.where} {key} must be a whole number, 0 or more, not {value:g}")
        return int(value)

    def text(self, key: str) -> str:
        value = self._get(key, None)
        if not isinstance(value, str):
            raise UserError(f"{self.where} {key} must be text, not {value!r}")
        return value

    def rows(self, key: str, kinds: tuple[type, ...]) -> tuple[tuple[Any, ...], ...]:
        """A list of rows of fixed kinds; `float` takes whole numbers too."""
        value = self._get(key, [])
        allowed = [(int, float) if kind is float else kind for kind in kinds]
        for row in value if isinstance(value, list) else [value]:
            if not isinstance(row, list) or len(row) != len(kinds) or not all(map(isinstance, row, allowed)):
                shape = ", ".join("number" if kind is float else "text" for kind in kinds)
                raise UserError(f"{self.where} {key} must be a list of [{shape}], not {value!r}")
            self._check(key, [x for x in row if not isinstance(x, str)])
        return tuple(tuple(map(lambda kind, x: kind(x), kinds, row)) for row in value)

    def check_all_used(self) -> None:
        if unused := sorted(set(self.values) - self.used):
            raise UserError(f"{self.where} has no key {unused[0]!r}; `prfaas plan --example` shows them")

    def _check(self, key: str, numbers: list[float]) -> None:
        if not all(0 <= x <= MOST for x in numbers):
            raise UserError(f"{self.where} {key} must hold finite numbers of 0 or more, not {numbers!r}")

    def _get(self, key: str, default: Any) -> Any:
        self.used.add(key)
        if key not in self.values and default is None:
            raise UserError(f"{self.where} needs {key}")
        return self.values.get(key, default)


def _scenario(tables: Mapping[str, _Table], folder: Path) -> Scenario:
    prfaas, pd, link, workload = tables["prfaas"], tables["pd"], tables["link"], tables["workload"]
    lengths, output_tokens, requests = _workload(workload, folder)
    decode = DecodeProfile(
        pd.count("decode_batch_max"),
        pd.number("decode_step_ms") / 1e3,
        pd.number("memory_gib", inf, unlimited=True) * GIB,
    )
    system = System(
        _profile(prfaas), _profile(pd), decode, _kv(tables["model"], folder), gbps(link.number("gbps")), lengths,
        output_tokens, link.number("rtt_ms", 0.0) / 1e3,
    )  # fmt: skip
    slo, search = tables["slo"], tables["search"]
    demand_per_s = search.maybe("demand_per_s")
    if demand_per_s == 0:
        raise UserError(f"{search.where} demand_per_s must be above 0; leave it out to plan for the most traffic")
    return Scenario(
        system,
        prfaas.count("instances"),
        pd.count("instances"),
        Prices(prfaas.number("price_per_hour", 1.0), pd.number("price_per_hour", 1.0)),
        Slo(slo.maybe("mean_ttft_s"), slo.maybe("p90_ttft_s"), slo.maybe("decode_tokens_per_s")),
        demand_per_s,
        search.maybe("budget_per_hour"),
        requests,
        _simulation(tables["simulation"]),
    )


def _profile(table: _Table) -> Profile:
    if table.has("prefill_points"):
        return MeasuredProfile(table.rows("prefill_points", (float, float)))
    return PrefillProfile(*table.numbers("prefill_coefficients", ("base_s", "per_token_s", "per_token2_s")))


def _kv(table: _Table, folder: Path) -> KvSize:
    if table.has("name"):
        name = table.text("name")
        if name in MODEL_BYTES:
            return MODEL_BYTES[name]
        if name in PUBLISHED:
            return _read_kv(name)
        known = ", ".join((*MODEL_BYTES, *PUBLISHED))
        raise UserError(f"{table.where} name {name!r} is not known; known are {known}")
    if table.has("config"):
        return _read_kv(str(folder / table.text("config")))
    return KvSize(table.number("bytes_per_token"), table.number("fixed_mib", 0.0) * MIB)


def _read_kv(name_or_file: str) -> KvSize:
    shape = read_cache_shape(name_or_file)
    return KvSize(bytes_per_token(shape, "bfloat16"), fixed_bytes(shape, "bfloat16"))


def _workload(table: _Table, folder: Path) -> tuple[Lengths, float, tuple[Request, ...]]:
    if table.has("trace"):
        name = table.text("trace_format")
        if name not in ("mooncake", "azure"):
            raise UserError(f"{table.where} trace_format must be mooncake or azure, not {name!r}")
        trace_format: TraceFormat = "mooncake" if name == "mooncake" else "azure"
        requests = tuple(read_trace(folder / table.text("trace"), trace_format))
        mean_output = sum(r.max_tokens for r in requests) / len(requests) if requests else 1.0
        return ObservedLengths(r.prompt_tokens for r in requests), table.number("output_tokens", mean_output), requests
    lengths = LogNormalLengths(*(table.number(key, least=-MOST) for key in ("mu", "sigma", "low", "high")))
    return lengths, table.number("output_tokens"), ()


def _simulation(table: _Table) -> SimulationOptions:
    defaults = SimulationOptions()
    options = SimulationOptions(
        table.number("load", defaults.load),
        table.maybe("rate_per_s"),
        table.number("burstiness", defaults.burstiness),
        table.number("cache_gib", defaults.cache_gib),
        table.rows("link_changes", (float, float)),
        table.rows("failures", (float, str, float)),
    )
    if options.load <= 0 or (options.rate_per_s is not None and options.rate_per_s <= 0) or options.burstiness < 0:
        raise UserError(f"{table.where} load and rate_per_s must be positive, burstiness 0 or more")
    return options
