"""Budgets: bytes, CPU and memory, measured on the running program."""
