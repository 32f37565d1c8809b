"""The global KVCache manager: which worker of which cluster has which prefix, as far as it has been told.

Workers report what they store and remove, in numbered batches. The manager's answer is a hint for routing; the worker's
own match is the authority, so a lost or late batch costs a wrong guess and never a wrong token. Knows keys only, and a
key begins with its namespace, so no lookup crosses tenants or weights. Paper section 6, and section 4 for its use.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from prfaas_ref.cache.allocation import PrefixMatch
from prfaas_ref.cache.keys import Namespace, chain_keys
from prfaas_ref.cache.report import CacheReport, WorkerName

HOT_SPOTS_KEPT = 4096


@dataclass(frozen=True)
class HotSpot:
    """`asked` got `times` requests whose first `tokens` are cached at `holder` and not here: a copy might pay."""

    holder: WorkerName
    asked: WorkerName
    key: bytes
    tokens: int
    times: int


@dataclass
class _View:
    """What one worker has said. Until `current`, after a gap, nothing of it is believed."""

    incarnation: int
    has_state: bool
    next_sequence: int = 0
    current: bool = True
    kv: set[bytes] = field(default_factory=set)
    state: set[bytes] = field(default_factory=set)


class GlobalKVCacheManager:
    """Views of all workers. Not thread safe: the owner holds one lock."""

    def __init__(self) -> None:
        self._views: dict[WorkerName, _View] = {}
        self._asks: Counter[tuple[WorkerName, WorkerName, bytes, int]] = Counter()

    def apply(self, report: CacheReport) -> bool:
        """Take in what a worker says. False asks it for a full report: something before this one is missing.

        A new incarnation empties the view first; a report of an old one, or one heard already, changes nothing.
        """
        view = self._views.get(report.worker)
        if view is None or report.incarnation > view.incarnation:
            view = self._views[report.worker] = _View(report.incarnation, report.has_state)
        if report.incarnation < view.incarnation or report.end_sequence < view.next_sequence:
            return True
        if report.full:
            view.kv, view.state, view.current = set(), set(), True
        elif report.first_sequence > view.next_sequence or not view.current:
            view.current = False
            return False
        heard = 0 if report.full else view.next_sequence - report.first_sequence
        for stored, is_state, key in report.events[heard:]:
            keys = view.state if is_state else view.kv
            keys.add(key) if stored else keys.discard(key)
        view.next_sequence = report.end_sequence
        return True

    def forget(self, worker: WorkerName) -> None:
        """The worker is gone. Its reports would count again, from a full one on."""
        view = self._views.get(worker)
        if view:
            view.current = False
            view.kv, view.state = set(), set()

    def lookup(self, namespace: Namespace, tokens: Iterable[int]) -> dict[WorkerName, PrefixMatch]:
        """How much of a prompt each worker would hit, as `match_prefix` of its own index says it. Changes nothing."""
        tokens = list(tokens)
        keys = chain_keys(namespace, tokens[:-1])  # the last token is always computed
        return {
            worker: _match(view, keys, namespace.block_size) for worker, view in self._views.items() if view.current
        }

    def lookup_clusters(self, namespace: Namespace, tokens: Iterable[int]) -> dict[str, PrefixMatch]:
        """The best worker's match in each cluster: l_prfaas and l_pd of the paper's routing rule."""
        best: dict[str, PrefixMatch] = {}
        for worker, match in self.lookup(namespace, tokens).items():
            have = best.get(worker.cluster, match)
            best[worker.cluster] = max(have, match, key=lambda match: (match.usable_tokens, match.kv_tokens))
        return best

    def asked(self, worker: WorkerName, namespace: Namespace, tokens: Iterable[int]) -> None:
        """A prompt was sent to `worker`: note it if another has more of it."""
        tokens = list(tokens)
        matches = self.lookup(namespace, tokens)
        if not matches:
            return
        holder = max(matches, key=lambda name: (matches[name].usable_tokens, name == worker))
        most = matches[holder].usable_tokens
        if most > matches.get(worker, PrefixMatch(0, 0)).usable_tokens:
            key = chain_keys(namespace, tokens[:most])[-1]
            self._asks[holder, worker, key, most] += 1
            if len(self._asks) > HOT_SPOTS_KEPT:
                self._asks = Counter(dict(self._asks.most_common(HOT_SPOTS_KEPT // 2)))

    def hot_spots(self, count: int) -> list[HotSpot]:
        """The prefixes most often asked of workers that lack them, most missed tokens first. Later reports weigh more:
        each report halves what was counted before it."""
        spots = [HotSpot(holder, asked, key, tokens, n) for (holder, asked, key, tokens), n in self._asks.items()]
        self._asks = Counter({ask: n // 2 for ask, n in self._asks.items() if n > 1})
        return sorted(spots, key=lambda spot: spot.times * spot.tokens, reverse=True)[:count]


def _match(view: _View, keys: list[bytes], block_size: int) -> PrefixMatch:
    kv = usable = 0
    for number, key in enumerate(keys, 1):
        if key not in view.kv:
            break
        kv = number
        if not view.has_state or key in view.state:
            usable = number
    return PrefixMatch(kv * block_size, usable * block_size)
