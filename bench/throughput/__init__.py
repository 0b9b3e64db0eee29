"""Benchmarks of throughput: one module each, a table and a JSON file as result."""
