"""The experiments of docs/experiments.md: fixed seeds, tuned scenarios and held-out ones kept apart.

Each module has `TITLE`, `NOTES` (what to know before reading the table) and `cases(...)`: one row of the table each.
"""
