"""Benchmarks: they print figures beside a limit, and assert none of them."""
