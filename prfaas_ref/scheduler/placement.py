"""Which worker of a cluster, and whether a cached prefix is worth moving between clusters. Paper sections 3.4 and 3.5.

Knows nothing of thresholds: the cluster has been chosen when these are asked. A hot spot dissolves by itself: the
worker that holds a popular prefix wins only while its queue costs less than the prefix saves, and the next worker that
computes the prefix holds it too.
"""

from collections.abc import Sequence

from prfaas_ref.scheduler.fleet import LinkView, WorkerView
from prfaas_ref.scheduler.profile import KvSize, Profile


def uncached_tokens(prompt_tokens: int, matched_tokens: int) -> int:
    """Tokens to compute: at least one, since the prompt's last token yields the first logits."""
    return max(1, prompt_tokens - matched_tokens)


def longest_match(workers: Sequence[WorkerView]) -> int:
    """The longest usable prefix in any of the workers; 0 for none."""
    longest = 0
    for worker in workers:
        if worker.matched_tokens > longest:
            longest = worker.matched_tokens
    return longest


def choose_prefill(workers: Sequence[WorkerView], prompt_tokens: int, profile: Profile) -> tuple[WorkerView, float]:
    """The worker with the least queue plus own prefill, and the latter's seconds. Ties go to the first of `workers`."""
    best = workers[0]
    best_s = best_total_s = seconds = 0.0
    matched = -1
    for worker in workers:
        if worker.matched_tokens != matched:  # neighbours often hold the same prefix: price it once
            matched = worker.matched_tokens
            seconds = profile.seconds(uncached_tokens(prompt_tokens, matched), min(matched, prompt_tokens - 1))
        total_s = worker.load.work_us * 1e-6 + seconds
        if worker is workers[0] or total_s < best_total_s:
            best, best_s, best_total_s = worker, seconds, total_s
    return best, best_s


def choose_decode(workers: Sequence[WorkerView]) -> WorkerView:
    """The least loaded decode worker; a tie goes to the longer held prefix, then to the first of `workers`."""
    best = workers[0]
    for worker in workers:
        load = worker.load.work_us - best.load.work_us
        if load < 0 or (load == 0 and worker.kv_tokens > best.kv_tokens):
            best = worker
    return best


def prefix_transfer_pays(
    prompt_tokens: int, here: int, there: int, profile: Profile, kv: KvSize, link: LinkView
) -> bool:
    """Is moving the prefix's increment sooner done than computing it? `here` and `there` are usable cached tokens.

    The recurrent state always goes whole. Equal caches never move: nothing would be saved.
    """
    compute_here_s = profile.seconds(uncached_tokens(prompt_tokens, here), here)
    compute_after_s = profile.seconds(uncached_tokens(prompt_tokens, there), min(there, prompt_tokens - 1))
    return link.seconds(kv.bytes(there, here)) + compute_after_s < compute_here_s
