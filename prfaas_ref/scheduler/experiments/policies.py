"""Routing policies under links that are narrow, that dip, and that are seen late and wrong; and under bursts."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prfaas_ref.scheduler.experiments.case import Case, Row, latencies
from prfaas_ref.scheduler.scenario import EXAMPLE, parse_scenario
from prfaas_ref.scheduler.simulation import Estimates, simulate
from prfaas_ref.scheduler.simulation.metrics import summarise
from prfaas_ref.scheduler.simulation.setup import configure
from prfaas_ref.units import gbps

TITLE = "Policies under bandwidth that changes and is misjudged"
NOTES = """\
The case study's 4 + 8 instances at 0.8 of the plan for the nominal link, seed 2, SLO: TTFT within 10 s. The values of
`Tuning` were chosen on the `tuned` rows; the `held out` rows had been printed once before, and no value was chosen on
them. Late: the policy sees the capacity as it was 5 s ago, off by a log-normal factor of sigma 0.3. Very late: 20 s,
0.6. Dips to 6G last 100 s of every 300 (on 25G 200 of 500), dips to 2G 150 of 400. Bursts: squared coefficient of
variation of the gaps 4 (on 25G 8)."""
SEED, SLO_TTFT_S = 2, 10.0
Changes = tuple[tuple[float, float], ...]
POLICIES = ("static", "paper", "cost")


EXACT = Estimates()
LATE = Estimates(lag_s=5.0, noise=0.3)
VERY_LATE = Estimates(lag_s=20.0, noise=0.6)


@dataclass(frozen=True)
class World:
    """One scenario: nominal link, what happens to it, how it is seen, and how bursty arrivals are."""

    name: str
    held_out: bool
    nominal_gbps: float
    changes: Changes = ()
    estimates: Estimates = EXACT
    burstiness: float = 1.0


def dips(to_gbps: float, back_gbps: float, every_s: float, for_s: float, n: int = 40) -> Changes:
    """`n` dips of the link, evenly spaced: (seconds, Gbps)."""
    pairs = (((i * every_s, to_gbps), (i * every_s + for_s, back_gbps)) for i in range(1, n + 1))
    return tuple(change for pair in pairs for change in pair)


WORLDS = (
    World("100G", False, 100),
    World("10G", False, 10),
    World("100G, dips to 6G", False, 100, dips(6, 100, 300, 100)),
    World("100G, dips to 6G, late and noisy", False, 100, dips(6, 100, 300, 100), LATE),
    World("10G, bursts", False, 10, burstiness=4.0),
    World("25G", True, 25),
    World("10G, late and noisy", True, 10, estimates=LATE),
    World("10G, very late and noisy", True, 10, estimates=VERY_LATE),
    World("100G, dips to 2G", True, 100, dips(2, 100, 400, 150)),
    World("100G, dips to 2G, very late and noisy", True, 100, dips(2, 100, 400, 150), VERY_LATE),
    World("25G, dips to 6G, bursts, late and noisy", True, 25, dips(6, 25, 500, 200), LATE, 8.0),
)


def cases(n: int) -> list[Case]:
    """Every world under every policy, `n` requests each."""
    return [
        Case(
            {"": "held out" if world.held_out else "tuned", "world": world.name, "policy": policy},
            _run(world, policy, n),
        )
        for world in WORLDS
        for policy in POLICIES
    ]


def _run(world: World, policy: str, n: int) -> Any:
    def run() -> Row:
        scenario = parse_scenario(EXAMPLE.replace("gbps = 100", f"gbps = {world.nominal_gbps}"), Path())
        setup = configure(scenario, "prfaas-pd", policy, seed=SEED)
        config = replace(
            setup.config,
            link_changes=tuple((at_s, gbps(rate)) for at_s, rate in world.changes),
            control=replace(setup.config.control, estimates=world.estimates),
        )
        found = summarise(simulate(config, setup.arrivals(n, SEED, world.burstiness)), SLO_TTFT_S)
        return {
            "requests/s": setup.rate_per_s,
            **latencies(found),
            "offloaded, %": 100 * found["offloaded_share"],
            "egress, Gbps": found["egress_gbps_mean"],
            "reversals": found["threshold_reversals"],
        }

    return run
