"""Start-up of a process that computes: threads, gradients off, and one call of each pointwise function.

The first concurrent call of a vectorised function has been seen to race; one single-threaded call of each settles it.
"""

import torch

from prfaas_ref.errors import UserError


def start(threads: int | None = None) -> None:
    """Prepare this process. threads: intra-op threads, None for torch's own choice; the bits do not depend on it."""
    if threads is not None and threads < 1:
        raise UserError(f"threads is {threads}; it must be at least 1")
    chosen = threads or torch.get_num_threads()
    torch.set_num_threads(1)
    x = torch.linspace(-1, 1, 64)
    for f in (torch.exp, torch.sqrt, torch.log1p, torch.expm1, torch.tanh):
        f(x.abs())
    torch.set_num_threads(chosen)
    torch.set_grad_enabled(False)
