# Loadmaster's one door. `make help` lists what can be done; everything else sets itself up first.
PYTHON ?= python3
# cpu | auto | cu130: which build of torch to take on a machine with a normal package index; empty: whatever pip would take.
TORCH_BACKEND ?=
# uv does not read pip's settings; a local folder of wheels named for pip is handed on.
export ORT_DISABLE_TELEMETRY := 1
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
# yes: answer the approval through Airflow's REST API as a named user and stop when done.
APPROVE ?=
# full, or a file of sizes/ that is laid over params.yaml: demo is the quick one.
SIZE ?= full
# What the night is about in place of params.yaml's list: names with commas, or every.
PROBLEMS ?=
# One problem only, of those.
PROBLEM ?= all
EXTRAS ?= all
# Test processes; a file stays in one of them.
JOBS ?= auto
PYTEST_ARGS ?=
# Left out of `make quick`: what takes long, and what needs more than Python.
QUICK := not soak and not slow and not airflow and not spark and not kube and not browser and not prometheus and not s3 and not shared

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(EXTRAS)

.PHONY: help setup run quick test slow lint docs reference coverage format contracts soak system benchmarks clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/\1\t\2/' | expand -t 14

setup: $(STAMP) ## create .venv and install everything, compile the simulators (fast when nothing changed)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info < (3, 14); sys.exit(0 if ok else "Python " + sys.version.split()[0] + " found; Loadmaster needs 3.11, 3.12 or 3.13: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt uv
	$(BIN)/uv pip install -q --python $(BIN)/python $(if $(TORCH_BACKEND),--torch-backend=$(TORCH_BACKEND)) -c constraints.txt -e '.[$(EXTRAS)]'
	@if $(BIN)/python -c 'import gymnasium, numba' 2>/dev/null; then $(BIN)/loadmaster compile; fi
	@touch $@

run: setup ## the nightly loop on this machine: service, Airflow, one run on the sample (APPROVE=yes: unattended, SIZE=demo: quick, PROBLEMS=every)
	@$(BIN)/python -m pipeline.local --size $(SIZE) --problem $(PROBLEM) $(if $(PROBLEMS),--problems $(PROBLEMS)) $(if $(filter yes,$(APPROVE)),--approve)

# A file's tests stay in one process, and files are dealt in the order of tests/conftest.py.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

quick: setup ## style and unit tests: under three minutes, for while you work
	$(BIN)/ruff check .
	$(PYTEST) -q -m "$(QUICK)" --ignore tests/dags $(PYTEST_ARGS)

test: setup lint ## all tests that CI runs
	$(PYTEST) -m "not soak" $(PYTEST_ARGS)

slow: setup ## all tests that CI runs, one after another, to measure which ones make quick leaves out (tests/slow.txt)
	$(BIN)/python -m pytest -q -m "not soak" --write-slow $(PYTEST_ARGS)

docs: setup ## the documentation: built strictly into var/site, links, commands, examples, notebooks and reference held to the code
	$(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m pytest -q tests/docs $(PYTEST_ARGS)

reference: setup ## rewrite docs/reference and docs/notebooks after a change of code or page
	$(BIN)/python scripts/reference.py
	$(BIN)/python scripts/notebooks.py

coverage: setup ## all tests that CI runs, traced; the number goes to docs/results/coverage.md
	rm -f .coverage .coverage.*
	$(PYTEST) -m "not soak" --cov --cov-report= $(PYTEST_ARGS)
	$(BIN)/python scripts/coverage_page.py

lint: setup ## style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

contracts: setup ## rewrite docs/contracts after a deliberate change of a contract
	$(BIN)/python -m pipeline.contracts

soak: setup ## million-step properties, load and chaos: takes long
	$(BIN)/python -m pytest -m soak $(PYTEST_ARGS)

system: setup ## the long tests with a real Kubernetes, Airflow, PostgreSQL and browsers; the table goes to docs/results/system.md
	$(BIN)/python scripts/system_tests.py $(PYTEST_ARGS)

benchmarks: setup ## measure; results go to docs/results
	for name in env_speed fork_speed place_latency clean_speed; do $(BIN)/python benchmarks/$$name.py --out docs/results || exit 1; done

clean: ## remove all state of local runs (var/ and data/); asks before it deletes a registry or keys (SURE=yes: does not)
	@if [ "$(SURE)" != yes ] && { [ -e var/registry.git ] || [ -e var/keys ]; }; then \
		printf 'var/ holds the registry and the keys that sign: records, bundles and approvals would be gone.\nDelete them? Type yes: '; \
		read -r answer && [ "$$answer" = yes ] || { echo "nothing was deleted"; exit 1; }; \
	fi
	rm -rf var
	mkdir -p data
	find data -type f -not -name .gitkeep -delete
	find data -type d -empty -delete
