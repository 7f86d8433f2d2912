# The two commands of a fresh machine are `make demo` and `make test`; both set up what they need.
# CI calls these targets and nothing else.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
ARCHITECTURE ?= x86_64
export SAM_CLI_TELEMETRY := 0
# Errors say what to do next; the stack they came from only buries that.
export RUST_LIB_BACKTRACE := 0
export SANDBOX_VENV := $(abspath $(VENV))

.PHONY: help
help: ## What there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

.PHONY: setup
setup: $(VENV)/.local ## The Python side of the local world

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; name another with make PYTHON=…") if sys.version_info < (3, 11) else None'
	@command -v cargo >/dev/null || { echo "Rust is needed: https://rustup.rs" >&2; exit 1; }
	@command -v git >/dev/null || { echo "Git is needed" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.local: requirements.txt $(VENV)/.python
	@echo "Installing the local world and the SAM CLI into $(VENV) (about 1 minute)"
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/.build: requirements-build.txt $(VENV)/.python
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-build.txt
	@touch $@

.PHONY: binaries
binaries:
	@echo "Building the functions and the local world"
	cargo build --locked --workspace --bins

.PHONY: demo
demo: setup binaries ## One whole run on this machine: no AWS account, no Docker
	@exec target/debug/sandbox demo

.PHONY: sandbox
sandbox: setup binaries ## Keep the local world up and print its environment
	@exec target/debug/sandbox up

.PHONY: test
test: setup binaries ## Every test, unit to end-to-end
	cargo test --locked --workspace --no-fail-fast

.PHONY: lint
lint: setup ## Format, clippy, template, dependencies, generated files
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	@if cargo tree --locked --workspace -i aws-lc-sys >/dev/null 2>&1; then echo "aws-lc-sys is in the tree: one crypto provider only, ring" >&2; exit 1; fi
	AWS_DEFAULT_REGION=eu-west-1 $(BIN)/sam validate --lint
	$(BIN)/cfn-lint template.yaml

.PHONY: schema
schema: ## Regenerate the JSON Schema of the request
	cargo run --locked --quiet -p step --example schema > statemachine/request.schema.json

.PHONY: build
build: $(VENV)/.local $(VENV)/.build ## Release binaries for AWS (sam build)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/sam build --parameter-overrides Architecture=$(ARCHITECTURE)

.PHONY: deploy
deploy: build ## Deploy to the account of the current AWS credentials
	$(BIN)/sam deploy --guided --parameter-overrides Architecture=$(ARCHITECTURE)

.PHONY: bench
bench: setup ## Size, cold start and memory of each function (builds them for release)
	$(BIN)/python bench/functions.py

.PHONY: clean
clean: ## Remove what these targets made
	rm -rf $(VENV) .aws-sam target
