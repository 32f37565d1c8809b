"""Can prefill leave the datacenter? The paper's clusters, with less and less network between them. Modelled, no torch.

Run it: python examples/03_can_prefill_leave.py
"""

from dataclasses import replace

from prfaas_ref.scheduler.paper import case_study
from prfaas_ref.scheduler.planner import Search, homogeneous

system = case_study()  # 32 H200 for prefill, 64 H20 beside them, prompts of 27K tokens on average
alone = homogeneous(system, n_pd=12)  # 96 H20 that do everything themselves
print(f"homogeneous, 12 instances:  {alone.predicted.lambda_max:.2f} requests/s\n")
print("  link    threshold  N_p/N_d  requests/s   gain  on the link  what binds")
for gbps in (100, 30, 13, 10, 5, 2, 1):
    plan = Search(replace(system, link_bits_per_s=gbps * 1e9)).best(n_prfaas=4, n_pd=8)
    rate, gain = plan.predicted.lambda_max, plan.predicted.lambda_max / alone.predicted.lambda_max - 1
    split = f"{plan.counts.pd_prefill:g}/{plan.counts.pd_decode:g}"
    print(
        f"{gbps:4} Gbps {plan.threshold_tokens:9,.0f} {split:>8} {rate:11.2f} {gain:+6.0%} "
        f"{plan.egress_bits_per_s / 1e9:7.1f} Gbps  {plan.predicted.binding}"
    )
