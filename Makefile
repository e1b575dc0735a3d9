# Needs Python 3.10 or newer and, the first time, a package index. Everything lands in .venv and .cache;
# LAYERWISE_VENV and LAYERWISE_CACHE move them, COMFYUI_PATH uses another ComfyUI tree, and LAYERWISE_TREES is a folder
# of further trees that the tests run on as well.

PYTHON ?= python3
VENV := $(or $(LAYERWISE_VENV),.venv)
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif

.PHONY: help demo test test-floors lint format types imports test-unit test-sim test-comfy test-server test-browser fixtures env env-dev env-browser clean distclean
.NOTPARALLEL:

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: env ## render the example with and without the pack; WORKFLOW=file.json and PORT=8188 are optional
	@"$(BIN)/python" -m scripts.demo $(if $(WORKFLOW),--workflow "$(WORKFLOW)")

test: env-dev lint types imports test-floors test-browser ## all checks, as CI runs them

test-floors: env-dev ## all floors but the browser's, side by side, on every ComfyUI tree that is there
	@"$(BIN)/python" -m scripts.floors unit sim comfy server

lint: env-dev ## ruff: rules and format
	@"$(BIN)/ruff" check .
	@"$(BIN)/ruff" format --check .

format: env-dev ## let ruff repair what it can
	@"$(BIN)/ruff" check --fix .
	@"$(BIN)/ruff" format .

types: env-dev ## mypy, strict
	@"$(BIN)/mypy"

imports: env-dev ## the import contract between the layers
	@"$(BIN)/lint-imports"

test-unit test-sim test-comfy test-server test-browser: test-%: env-dev
	@"$(BIN)/python" -m scripts.floors $*

test-unit: ## pure functions
test-sim: ## the simulated accelerator
test-comfy: ## ComfyUI in process
test-server: ## a real ComfyUI server
test-browser: env-browser ## the real frontend in Chromium; screenshots in browser_output

fixtures: env-dev ## derive API twins, snapshots and schemas again
	@"$(BIN)/python" -m scripts.refresh_fixtures

env: ## the environment for the demo
	@$(PYTHON) -m scripts.setup_env

env-dev: ## the environment for the tests
	@$(PYTHON) -m scripts.setup_env --dev

env-browser: ## the environment for the tests in a browser
	@$(PYTHON) -m scripts.setup_env --browser

clean: ## remove outputs and tool caches
	rm -rf demo_output browser_output build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -not -path './.cache/*' -type d -prune -exec rm -rf {} +

distclean: clean ## also remove the environment and the downloads inside this folder
	rm -rf .venv .cache
