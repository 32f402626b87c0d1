# Two commands for everyone: `make demo` and `make test`. Both set up .venv first if it is missing or out of date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo seeds test coverage test-litgpt soak results bench compare-gim lint format clean help

help:
	@echo "make demo   train a small model, track it, draw runs/demo/run.html and run.png (2 to 3 minutes)"
	@echo "make test   lint, type-check and run the tests"
	@echo "make coverage  run the tests and list the lines that they leave out"
	@echo "make test-litgpt  run the tests of litgpt's models, which need an environment of their own"
	@echo "make soak   run the slow checks"
	@echo "make seeds  train the demo with eight seeds"
	@echo "make results train sorting, reversal and the seeds, and rewrite the findings (two hours)"
	@echo "make bench  measure what a GIM backward pass costs beside the ordinary one"
	@echo "make compare-gim  measure which of GIM's rules act where, here and in the reference package"
	@echo "make format format the code"
	@echo "make clean  remove the environments and runs/demo"

# One stamp for each set of extras: the demo needs no test tools.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/python -m dynamics.train fit --config configs/demo.yaml --tracker.overwrite=true
	$(BIN)/python -m dynamics.plot runs/demo/run.h5
	$(BIN)/python -m dynamics.plot runs/demo/run.h5 -o runs/demo/run.png

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n 2 --dist worksteal

# Apart from `test`, since tracing each call of the plotting libraries makes the tests half as slow again.
coverage: $(VENV)/.installed-dev
	$(BIN)/pytest -n 2 --dist worksteal --cov --cov-report=term

# litgpt and transformers pin versions of huggingface-hub that exclude each other.
test-litgpt: pyproject.toml constraints-litgpt.txt
	$(PYTHON) -m venv $(VENV)-litgpt
	$(VENV)-litgpt/bin/python -m pip install --disable-pip-version-check --constraint constraints-litgpt.txt --editable ".[test,litgpt]"
	$(VENV)-litgpt/bin/pytest -m "" tests/components/test_litgpt.py tests/test_examples.py

soak: $(VENV)/.installed-dev
	$(BIN)/pytest -m soak

# The demo again with other seeds, a minute or two each, into runs/demo-0 to runs/demo-7.
seeds: $(VENV)/.installed
	for seed in 0 1 2 3 4 5 6 7; do $(BIN)/python -m dynamics.train fit --config configs/demo.yaml --seed_everything $$seed \
		--data.seed $$seed --name demo-$$seed --tracker.overwrite=true || exit 1; done

# Two hours on one core: train the paper's two tasks anew and rewrite what the README says of them.
results: demo seeds
	$(BIN)/python -m dynamics.train fit --config configs/sort.yaml --tracker.overwrite=true
	$(BIN)/python -m dynamics.train fit --config configs/reverse.yaml --tracker.overwrite=true
	$(BIN)/python docs/results/make.py

# The reference package stays out of .venv.
COMPARE := $(VENV)-compare

$(COMPARE)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(COMPARE)
	$(COMPARE)/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable ".[families]" \
		gim-explain==0.1.4
	@touch $@

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/gim_cost.py

compare-gim: $(COMPARE)/.installed
	$(COMPARE)/bin/python benchmarks/gim_rules.py

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VENV)-litgpt $(COMPARE) runs/demo
