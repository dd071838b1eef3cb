# The loop's commands; `make help` lists them. Needs Python 3.11 or newer and nothing else.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BASE ?= .mol/base/SmolLM2-135M-Instruct
CONFIG ?= infra/configs/bundled.toml
PORT ?= 8000
# More words for a target's command: make test ARGS="tests/traces -x"
ARGS ?=
bin := .venv/bin
ready := .venv/installed

.PHONY: help run test check bench vllm vllm-install vllm-test bfcl-install bfcl-test inspect-install \
  inspect-test constraints clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

run: $(ready) ## set up, then the whole loop over the bundled traces
	@$(bin)/python -m infra.base_model --out $(BASE) >/dev/null
	@$(bin)/flows run --config $(CONFIG) $(ARGS)

test: $(ready) ## set up, then the tests that need no vLLM, on every core
	@$(bin)/python -m pytest -n logical --maxprocesses 8 --dist loadfile \
	  --no-loadscope-reorder $(ARGS)

check: $(ready) ## style and types
	@$(bin)/ruff check .
	@$(bin)/ruff format --check .
	@$(bin)/mypy

bench: $(ready) ## the loop's benchmark; its last line is one JSON object
	@$(bin)/python -m infra.base_model --out $(BASE) >/dev/null
	@$(bin)/python -m benchmarks.loop $(ARGS)

vllm: vllm-install ## install vLLM in .venv-vllm and serve the base model on PORT until Ctrl-C
	@$(bin)/python -m infra.base_model --out $(BASE) >/dev/null
	@$(bin)/python -m infra.vllm_server --base $(BASE) --port $(PORT) $(ARGS)

vllm-install: $(ready) ## install vLLM in .venv-vllm
	@PYTHON="$(PYTHON)" infra/install_environment.sh vllm .venv-vllm

vllm-test: vllm-install ## the tests that need the real vLLM
	@$(bin)/python -m infra.base_model --out $(BASE) >/dev/null
	@$(bin)/python -m pytest -m vllm $(ARGS)

bfcl-install: $(ready) ## install the checker of the suite 'bfcl' in .venv-bfcl
	@PYTHON="$(PYTHON)" infra/install_environment.sh bfcl .venv-bfcl

bfcl-test: bfcl-install ## the tests that need it
	@$(bin)/python -m pytest -m bfcl $(ARGS)

inspect-install: $(ready) ## install inspect-ai, for suites that are its tasks, in .venv-inspect
	@PYTHON="$(PYTHON)" infra/install_environment.sh inspect .venv-inspect

inspect-test: inspect-install ## the tests that need it
	@$(bin)/python -m pytest -m inspect $(ARGS)

constraints: $(ready) ## write the versions in .venv to constraints.txt
	@head -2 constraints.txt >.constraints.tmp
	@$(bin)/pip freeze --exclude-editable | sed 's/+cpu$$//' | grep -v ' @ ' >>.constraints.tmp
	@mv .constraints.tmp constraints.txt

clean: ## remove environments and caches; .mol, the loop's state, stays
	rm -rf .venv .venv-vllm .venv-bfcl .venv-inspect build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -not -path './.mol/*' -prune -exec rm -rf {} +

$(ready): pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed, '$(PYTHON)' is not; try: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Setting up .venv (1.9 GB, about 2 minutes, once) ..."
	@"$(PYTHON)" -m venv .venv
	@$(bin)/python -m pip -qq --disable-pip-version-check install -c constraints.txt -e '.[test]'
	@$(bin)/python -m pip --disable-pip-version-check install -c constraints.txt -e '.[suites]' >.venv/suites.log 2>&1 \
	  || echo "The suite reasoning-gym is left out: it needs a C compiler (.venv/suites.log)." >&2
	@touch $@
