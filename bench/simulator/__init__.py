"""The provider simulator: a separate process that speaks real wire formats on loopback and keeps a bill.

It stands in for the providers in tests, load benchmarks and rehearsals. What it says comes from a population whose
counts are known (`population.known_answer`), so a sweep's tables can be checked to the last claim; all of it is
simulated, and every reply says so in its `x-simulated` header. Run it with `python -m bench.simulator`.
"""
