# Two commands do all: `make demo` trains on real digits, `make test` checks everything. Both set up .venv themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint drill docs clean

demo: .venv/ready
	$(BIN)/paceline train

test: lint
	$(BIN)/python -m pytest

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The long drills whole: kills and resumes, restarts. `make test` runs them with fewer seeds.
drill: .venv/ready
	$(BIN)/python -m tests.drills

docs: .venv/ready
	$(BIN)/python -m paceline.config.reference > docs/reference/settings.md

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist *.egg-info
