"""Where prompts are prefilled, how many workers do what, and whether a deployment is worth building. Torch-free.

    arithmetic   profile, lengths, throughput (equations 1 to 6), planner (7 and 8), scenario, paper (their numbers
                 beside ours)
    decisions    fleet (what a policy may see), router, placement, ledger, admission, retry, threshold, reallocator
    simulation   a discrete-event engine that drives those decisions in virtual time; experiments run it

Decisions are pure and live in two worlds: the simulator and the live deployment drive the same objects.
"""
