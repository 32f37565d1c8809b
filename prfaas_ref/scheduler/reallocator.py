"""The long timescale: PD workers change role when one stage is the bottleneck and the other can spare one. Section 3.4.

Knows nothing of workers' names or clocks: windows of measured load in, at most one move out. The caller carries it out
(ACTIVE -> DRAINING -> CONVERTING -> ACTIVE with a new epoch) and reports back with `moved`; until then no other move
starts, so N_p + N_d + converting is constant.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from prfaas_ref.scheduler.fleet import Role


class Loads(NamedTuple):
    """Offered work over capacity of the two stages; may pass 1. Prefill is both clusters' at the best threshold."""

    prefill: float
    decode: float


@dataclass(frozen=True, slots=True)
class Window:
    """The loads measured in one window, and what they would be with one worker moved. None: not known, or no worker."""

    now: Loads | None
    to_prefill: Loads | None
    to_decode: Loads | None


@dataclass(frozen=True, slots=True)
class Rules:
    """When to move. `windows` in a row must agree; after a move nothing happens for `dwell_s`."""

    windows: int = 2
    dwell_s: float = 300.0
    min_load: float = 0.75  # below this there is no bottleneck to relieve
    max_load_after: float = 0.95  # the stage that gives a worker must still carry its load
    min_gain: float = 0.05  # by how much the worse of the two loads must fall


@dataclass(frozen=True, slots=True)
class State:
    """The machine between windows. `moving` is the role a worker is being converted to."""

    moving: Role | None = None
    wanted: Role | None = None
    votes: int = 0
    changed_s: float = float("-inf")
    conversions: int = 0


def observe(state: State, window: Window, rules: Rules, now_s: float) -> tuple[State, Role | None]:
    """Take one window. The second result is the role that one worker shall now be converted to, if any."""
    if state.moving is not None:
        return state, None
    wanted = _wanted(window, rules)
    if wanted is None:
        return replace(state, wanted=None, votes=0), None
    votes = state.votes + 1 if wanted == state.wanted else 1
    if votes < rules.windows or now_s - state.changed_s < rules.dwell_s:
        return replace(state, wanted=wanted, votes=votes), None
    return replace(state, moving=wanted, wanted=None, votes=0), wanted


def moved(state: State, now_s: float, done: bool = True) -> State:
    """The conversion ended: the worker is active in its new role, or (not `done`) it was lost on the way."""
    return replace(state, moving=None, changed_s=now_s, conversions=state.conversions + done)


def _wanted(window: Window, rules: Rules) -> Role | None:
    """The role that one more worker would relieve; None when no move helps or the other stage cannot carry it."""
    now = window.now
    if now is None or max(now) < rules.min_load:
        return None
    role: Role = "prefill" if now.prefill > now.decode else "decode"
    after = window.to_prefill if role == "prefill" else window.to_decode
    if after is None:
        return None
    giver_after = after.decode if role == "prefill" else after.prefill
    helps = max(after) <= max(now) * (1 - rules.min_gain)
    return role if helps and giver_after <= rules.max_load_after else None
