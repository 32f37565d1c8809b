"""Hold a prefix-cache manager against what any prefix cache must keep: yours, or ours, or ours with a fault planted.

`adapter` is the small protocol to implement, `examiner` makes the moves and `books` remember what was written where,
`machine` drives both at random (hypothesis), `mutants` are the faults that prove the machine sees. docs/cache.md shows
an adapter in 20 lines; `attention_only` is one to read. Needs the `test` extra (hypothesis).
"""
