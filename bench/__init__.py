"""The top: sweep files, wiring, command line, terminal display and benchmarks. Nothing imports it."""
