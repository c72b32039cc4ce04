# Each target installs what it needs when it is first called: `make run` the package and its service, the others their extra.
# Later calls install nothing. `uv` installs if it is on the machine, else pip.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
BENCH  := $(VENV)/.installed-bench
LAB    := $(VENV)/.installed-notebook
RAY    := $(VENV)/.installed-ray
DOCS   := $(VENV)/.installed-docs
UV     := $(shell command -v uv 2>/dev/null)
PIP    := $(if $(UV),$(UV) pip install --python $(BIN)/python,$(BIN)/python -m pip install --disable-pip-version-check) -c constraints.txt
ENV    ?= local
ARGS   ?=

export KEDRO_DISABLE_TELEMETRY := 1
export MLFLOW_DISABLE_TELEMETRY := true

.DEFAULT_GOAL := help
.PHONY: help install run test test-slow test-attack test-mutation check lint types bench gpu-check docs viz notebook mlflow clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(DEV) ## create .venv and install for development (the other targets install what they need)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("MM-LDLM needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.11 ...") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[service]'
	@touch $@

$(DEV): $(STAMP)
	$(PIP) -e '.[dev]'
	@touch $@

$(BENCH): $(STAMP)
	$(PIP) -e '.[bench]'
	@touch $@

$(RAY): $(DEV)
	$(PIP) -e '.[ray]'
	@touch $@

$(LAB): $(STAMP)
	$(PIP) -e '.[notebook]'
	@touch $@

$(DOCS): $(STAMP)
	$(PIP) -e '.[docs]'
	@touch $@

run: $(STAMP) ## run the main job, from text to report (ENV=tatoeba+mdlm for other environments, ARGS='--params ...')
	$(BIN)/kedro run --env=$(ENV) $(ARGS)

test: check ## lint, import contracts and types, then every test that is not slow
	$(BIN)/python -m pytest -n 2 $(ARGS)

test-slow: $(RAY) $(DOCS) ## run fault campaigns and long tests; installs Ray and the site's generator, which some need
	$(BIN)/python -m pytest -m slow $(ARGS)

test-attack: $(DEV) ## run 2,000 generated hostile inputs, different ones each time (ARGS='--cases 500 --targets sources,api')
	PYTHONPATH=src $(BIN)/python -m tests.attack $(ARGS)

test-mutation: $(DEV) ## plant faults in a copy of the code and list those that no test finds (ARGS="--sample 60 --seed 0")
	$(BIN)/python -m mutation $(ARGS)

check: lint types ## check style, import contracts and types

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(DEV)
	$(BIN)/mypy

bench: $(BENCH) ## run every benchmark and write benchmarks/results.json (ARGS=sampling for one)
	$(BIN)/python -m benchmarks $(ARGS)

# Without an installation: a GPU host needs only pytest, torch, numpy, pyarrow, pydantic, safetensors, tokenizers and transformers.
gpu-check: ## check a machine with a GPU and write data/gpu_check (ARGS='-k ranks' for some of the tests)
	PYTHONPATH=src $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m pytest tests/gpu -m gpu $(ARGS)

# The pages stay where they are, so that their links work in the repository too; the site is built from a copy.
docs: $(DOCS) ## build the documentation as a site in build/site; a broken link fails
	rm -rf build/docs && mkdir -p build/docs && cp -r *.md docs build/docs
	$(BIN)/zensical build --clean --strict --config-file mkdocs.yml

viz: $(STAMP) ## show the pipelines in the browser (ENV=..., ARGS=...)
	$(BIN)/kedro viz run --env=$(ENV) $(ARGS)

notebook: $(LAB) ## open notebooks/ with the catalog of ENV in the browser
	$(BIN)/kedro jupyter lab --env=$(ENV) $(ARGS)

mlflow: $(STAMP) ## show curves and parameters of all runs in the browser
	@echo 'MLflow opens its view for GenAI: choose "Model training" at the top left once; the browser keeps the choice.'
	$(BIN)/mlflow ui --workers 1 --backend-store-uri sqlite:///data/mlflow.db $(ARGS)

clean: ## remove caches and build leftovers; keeps data/ and .venv
	rm -rf build dist .ruff_cache .mypy_cache .pytest_cache .hypothesis .import_linter_cache .viz
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
