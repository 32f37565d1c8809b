# `make demo` and `make test` are all a newcomer needs: each makes .venv if it is missing, installs under
# constraints.txt, and runs. Nothing outside this folder is touched.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
ARGS ?=

.PHONY: help demo test lint clean
help:
	@echo "make demo   two clusters of processes answer questions, each proved equal to a single process (ARGS='--requests 24')"
	@echo "make test   the whole test suite"
	@echo "make lint   ruff, and mypy --strict for cache, transport and scheduler"
	@echo "make clean  remove .venv and caches"

demo: $(READY)
	@$(BIN)/python -m prfaas_ref demo $(ARGS)

test: $(READY)
	@$(BIN)/python -m pytest $(ARGS)

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/mypy

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "prfaas: no $(PYTHON) found; install Python 3.11 or newer (Debian, Ubuntu: apt install python3 python3-venv)" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "prfaas: $$($(PYTHON) --version) is too old; install Python 3.11 or newer, or name one: make PYTHON=python3.12 ..." >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "prfaas: this Python has no venv module; install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 2; }
	@echo "prfaas: making .venv and installing (once; PyTorch is the large part)"
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[test,lint,oracle,fast,plot]'
	@touch $(READY)

clean:
	rm -rf .venv .hypothesis .mypy_cache .ruff_cache .pytest_cache
