# `make` lists the targets. Everything runs in .venv, which `setup` makes; PYTHON=... chooses the interpreter for it.
.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test check check-slow clean
VENV := .venv/bin
LOCAL := tests/local tests/acceptance tests/integration tests/providers

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup:  ## set up what running needs
	@.ci/setup run

setup-dev:  ## set up what developing needs
	@.ci/setup dev

demo: setup  ## run the whole benchmark, small, on a real model on your CPU
	@$(VENV)/mirage run sweeps/demo.toml

test: setup-dev  ## pass the tests
	$(VENV)/python -m pytest -m "not slow and not local" -n 2 --dist loadfile
	# A process of its own: vLLM looks into every module that is loaded, and stumbles over some that other tests need.
	$(VENV)/python -m pytest -m "local and not slow" $(LOCAL)

check: setup-dev  ## lint, types, import contracts
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/lint-imports

check-slow: setup-dev  ## the long checks (MIRAGE_SLOW=bounded for short forms of them)
	$(VENV)/python -m pytest -m slow

clean:  ## remove the environment and caches, keep stores
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
