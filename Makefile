# Everything there is to do with Cubicle. `make help` lists it.
# Settings come from the environment and from a file .env: docs/settings.md.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help may-serve serve test test-here test-fast test-kubernetes check format image agents bench wheel setup setup-dev setup-web setup-fast setup-test lock docs clean

export PATH := $(CURDIR)/.venv/bin:$(PATH):/usr/sbin:/sbin
export PYTHON
# Compiled modules are kept whatever the environment says: a test run imports some thousand of them in every process.
export PYTHONDONTWRITEBYTECODE :=

help: ## this list
	@awk -F ':[^#]*## ' '/^[a-z-]+:[^#]*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: may-serve setup image agents ## set up what is missing, then serve on http://127.0.0.1:8081
	@exec cubicle serve

may-serve:
	@scripts/may-serve

test: ## set up all that the tests need, and run every gate and every test; where CI is set, from an empty HOME and IMAGE_DIR
	@scripts/with-fresh-state $(MAKE) --no-print-directory test-here

test-here: export CUBICLE_REQUIRE_ALL := 1
test-here: export CUBICLE_FAILURES := $(CURDIR)/.state/failures
test-here: export CUBICLE_BESIDE := scripts/with-kubernetes scripts/run-tests kubernetes
test-here: setup-test
	@rm -f $(CUBICLE_FAILURES); status=0; \
	    scripts/with-dockerd scripts/with-podman scripts/run-tests $(MAKE) --no-print-directory check || status=1; \
	    [ ! -s $(CUBICLE_FAILURES) ] || { echo "==> what failed, from all parts:"; cat $(CUBICLE_FAILURES); }; exit $$status

test-fast: setup-fast ## the tests that need no image, engine, browser or coding agent; about a minute
	@CUBICLE_FAST=1 pytest -n 4 --dist worksteal -m "not oci and not docker and not kubernetes and not real and not serial"

test-kubernetes: export CUBICLE_REQUIRE_ALL := 1
test-kubernetes: setup-test ## the tests of the Kubernetes driver, on a cluster that is built and started here, or on that of KUBECONFIG
	@scripts/with-kubernetes scripts/run-tests kubernetes

check: setup-web ## format, lint, types, layers, dependencies, gates of the repository; seconds
	@scripts/run-checks

format: setup-dev ## rewrite the sources as the format check wants them
	@ruff format .
	@ruff check --fix --quiet . || true

agents: setup ## install the coding agents of sub_agent (AGENTS="claude codex opencode gemini", claude unless said)
	@scripts/agents $(or $(AGENTS),claude) || echo "note: not every coding agent is installed; sub_agent says so when it is asked for one" >&2

image: setup ## build the sandbox image ($SANDBOX_IMAGE, standard unless said) if it is missing
	@scripts/image

bench: setup-dev image ## one table of floor, others and ours; BENCH="--json FILE --runs 10": docs/benchmarks.md
	@scripts/run-bench $(BENCH)

wheel: setup-dev ## build the installable package into dist/
	@.state/uv/bin/uv build --wheel --build-constraints requirements-setup.txt

setup: ## system packages and virtual environment for serving
	@scripts/packages serve
	@scripts/environment serve

setup-dev:
	@scripts/packages dev
	@scripts/environment dev

setup-fast:
	@scripts/packages fast
	@scripts/environment dev

setup-web: setup-dev
	@scripts/web

setup-test:
	@scripts/packages test
	@scripts/environment dev
	@mkdir -p .state && setsid scripts/kubernetes-binaries >.state/kubernetes-binaries.log 2>&1 </dev/null & # with-kubernetes waits for it
	@$(MAKE) --no-print-directory -j --output-sync=target web-packages test-clients $(AGENTS_OF_TESTS)

# What the tests need besides, each a download of its own: they mostly wait for the registry, and so do it side by side.
AGENTS_OF_TESTS := $(addprefix test-agent-,claude codex opencode gemini)
.PHONY: web-packages test-clients $(AGENTS_OF_TESTS)
web-packages:
	@scripts/web
test-clients:
	@scripts/clients
$(AGENTS_OF_TESTS): test-agent-%:
	@scripts/agents $*

lock: setup-dev ## compile requirements*.txt again after a change of pyproject.toml (UPGRADE=1: newest versions)
	@scripts/lock $(if $(UPGRADE),--upgrade)

docs: setup-dev ## write what comes from the code: the page of settings, the table of routes, the types of the pages in web/
	@cubicle settings --markdown > docs/settings.md
	@scripts/web-types
	@python -m cubicle.http_api.route_docs docs/http.md

clean: ## remove what was built here; sandboxes, chats and images stay
	@rm -rf .venv .state web/node_modules build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
