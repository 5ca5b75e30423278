# Two commands do everything on a fresh machine: `make demo` (the main job on a throwaway host), `make test`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTEST := .venv/bin/python -m pytest

help:
	@echo "make demo        the main job: boot a throwaway host, deploy the real engine in shadow mode, roll it back (TP=2: at tp 2)"
	@echo "make test        all checks and tests of one CI run"
	@echo "make test-full   those and the long ones"
	@echo "make engine-env  .venv-engine: SGLang 0.5.11 on a CPU build of torch (2 GB)"
	@echo "make check       ruff, mypy, import contracts, goldens: seconds, no root"

prerequisites:
	@scripts/prerequisites.sh $(MAKECMDGOALS)

.venv/ready: requirements-dev.lock pyproject.toml scripts/venv.sh
	scripts/venv.sh
	@touch $@

.venv-engine/ready: deploy/lab/engine/requirements.lock scripts/engine_env.sh | .venv/ready
	scripts/engine_env.sh
	@touch $@

engine-env: .venv-engine/ready

demo: prerequisites .venv/ready .venv-engine/ready
	.venv/bin/python scripts/demo.py --tp $(or $(TP),1)

check: .venv/ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/ddtree-ops render --all --check

test: prerequisites .venv/ready .venv-engine/ready check
	$(PYTEST) tests/unit -n 2
	$(PYTEST) tests/lab -m "not engine and not full" -n 2 --dist loadfile
	$(PYTEST) tests/lab tests/engine -m "engine and not full"

test-full: test
	$(PYTEST) tests/lab tests/engine -m full

.PHONY: help prerequisites engine-env demo check test test-full
