# Two commands do everything on a fresh machine: `make demo` (the main job on a throwaway host), `make test`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTEST := .venv/bin/python -m pytest
# they keep the machine busy by themselves
SIX_HOSTS := tests/lab/test_fault_matrix.py tests/lab/test_campaign.py

help:
	@echo "make demo        the main job: boot a throwaway host, deploy the real engine in shadow mode, roll it back (TP=2: at tp 2)"
	@echo "make test        all checks and tests of one CI run"
	@echo "make test-full   those and the long ones"
	@echo "make engine-env  .venv-engine: SGLang 0.5.11 on a CPU build of torch (2 GB)"
	@echo "make campaign    the night's campaign: N=300 interrupted rollouts on HOSTS=6 lab hosts, then docs/RELIABILITY.md"
	@echo "make matrix      the whole fault matrix, hours; then docs/RELIABILITY.md"
	@echo "make mutations   each safeguard taken out of a copy: which tests see it"
	@echo "make check       ruff, mypy, import contracts, goldens, generated docs: seconds, no root"
	@echo "make check-catalogue   public failure reports: how many are found before the stop, and after"
	@echo "make docs        docs/checks.md and docs/coverage.md from rules and catalogue, hosts.schema.json"

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
	.venv/bin/python scripts/checks_doc.py --check

check-catalogue: .venv/ready
	.venv/bin/python scripts/catalogue.py

docs: .venv/ready
	.venv/bin/ddtree-ops schema > hosts.schema.json
	.venv/bin/python scripts/checks_doc.py
	.venv/bin/python scripts/catalogue.py --write

test: prerequisites .venv/ready .venv-engine/ready check
	$(PYTEST) tests/unit -n 2
	$(PYTEST) tests/lab -m "not engine and not full" -n 2 --dist loadfile $(addprefix --ignore=,$(SIX_HOSTS))
	$(PYTEST) $(SIX_HOSTS) -m "not night"
	$(PYTEST) tests/lab tests/engine -m "engine and not full"

test-full: test
	$(PYTEST) tests/lab tests/engine -m full

matrix: prerequisites .venv/ready
	$(PYTEST) tests/lab/test_fault_matrix.py -m night --timeout 0; found=$$?; .venv/bin/python scripts/reliability.py; exit $$found

campaign: prerequisites .venv/ready
	PYTHONPATH=$(CURDIR)/deploy/lab .venv/bin/python tests/lab/campaign.py --runs $(or $(N),300) \
	  --hosts $(or $(HOSTS),6) $(if $(SEED),--seed $(SEED)); found=$$?; .venv/bin/python scripts/reliability.py; exit $$found

mutations: prerequisites .venv/ready
	.venv/bin/python scripts/mutations.py $(if $(ONLY),--only "$(ONLY)"); found=$$?; .venv/bin/python scripts/reliability.py; exit $$found

.PHONY: help prerequisites engine-env demo check check-catalogue docs test test-full matrix campaign mutations
