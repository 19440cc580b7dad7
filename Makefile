# Every target is complete in a fresh clone with GNU make and Python >= 3.11: it installs into .venv, nothing globally.
# Another interpreter: make PYTHON=python3.12 test. torch from another index: see CONTRIBUTING.md.

PYTHON ?= python3
BIN := .venv/bin
NETWORK := tests/network
# One thread a process: the suite and the sweeps use the cores with processes, and results do not depend on the machine.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# More than cores: real jobs wait, too.
PARALLEL := --numprocesses $$(($$(getconf _NPROCESSORS_ONLN) + 2)) --maxprocesses 8 --dist worksteal

.PHONY: demo test test-torch test-browser test-network test-gpu test-integrations chaos bench lint docs constraints clean

demo: .venv/ready  ## a job with its live page, then policies on real workers with one straggler, and on a simulated cluster
	mkdir -p out
	$(BIN)/polyrhythm run --ui --report out/demo-live.html --nproc-per-node 4 --policy switch:bsp@0.5,asp \
		examples/train_digits.py --epochs 16 --uneven 8
	$(BIN)/polyrhythm compare local-straggler --on local --policies auto,bsp,balanced,asp,ssp:3,local:8 --ui \
		--json out/demo-real.json --report out/demo-real.html
	$(BIN)/polyrhythm compare stragglers-moderate --policies bsp,asp,ssp:3,k-sync:7,local:8 --seeds 3 \
		--json out/demo.json --report out/demo.html
	@echo "reports: $(CURDIR)/out/demo-live.html, $(CURDIR)/out/demo-real.html, $(CURDIR)/out/demo.html"

test: .venv/ready  ## everything that needs neither a browser, nor root, nor a GPU
	$(PYTEST) $(PARALLEL)

test-torch:  ## the same with another release of torch: make test-torch TORCH=2.8.0
	$(if $(TORCH),,$(error give the release, as in make test-torch TORCH=2.8.0))
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install 'pip>=25.1'
	grep -v '^torch==' constraints.txt > .venv-torch/constraints.txt
	.venv-torch/bin/python -m pip install --constraint .venv-torch/constraints.txt 'torch==$(TORCH)' --group dev --editable '.[data,doctor,pictures,rl,testing,ui]' --editable experiments
	$(subst $(BIN),.venv-torch/bin,$(PYTEST)) $(PARALLEL)

test-browser: .venv/ready  ## needs chromium and chromedriver
	$(PYTEST) tests/browser

test-network: .venv/ready  ## needs root, ip and tc, prometheus and promtool
	$(PYTEST) $(NETWORK)

test-gpu: .venv/ready  ## needs a GPU
	$(PYTEST) tests/gpu

test-integrations: .venv/ready-integrations  ## Accelerate, Lightning, Hugging Face's Trainer, Ray
	$(PYTEST) tests/integrations

chaos: .venv/ready  ## fault scripts against real jobs, for an hour
	PYTHONPATH=. $(BIN)/python -m tests.chaos.play 3600 $$(date +%s)

bench: .venv/ready-bench  ## every benchmark; fails if one misses its bar
	$(BIN)/python benchmarks/run.py

lint: .venv/ready  ## style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: .venv/ready  ## the site, in site/
	$(BIN)/python docs/pictures/make.py
	$(BIN)/mkdocs build --strict

# pip first: --group needs 25.1.
.venv/ready: pyproject.toml experiments/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install 'pip>=25.1'
	$(BIN)/python -m pip install --constraint constraints.txt --group dev --editable '.[data,doctor,pictures,rl,testing,ui]' --editable experiments
	touch $@

# What benchmarks are compared with, apart because nothing else needs it.
.venv/ready-bench: .venv/ready
	$(BIN)/python -m pip install --constraint constraints.txt --group bench
	touch $@

# Frameworks whose loops run in a session, apart because nothing else needs them.
.venv/ready-integrations: .venv/ready
	$(BIN)/python -m pip install --constraint constraints.txt --group integrations
	touch $@

constraints:  ## the newest versions that pyproject.toml allows, to be tested before they are committed
	$(PYTHON) -m venv --clear .venv-constraints
	.venv-constraints/bin/python -m pip install --quiet 'pip>=25.1'
	.venv-constraints/bin/python -m pip install --quiet --group dev --group bench --group integrations '.[data,doctor,pictures,rl,testing,ui]' 'torch==2.13.0'
	.venv-constraints/bin/python -m pip freeze --all --exclude pip --exclude polyrhythm --exclude polyrhythm-experiments | sed 's/+cpu$$//' > constraints.txt
	rm -rf .venv-constraints

clean:
	rm -rf .venv .venv-constraints .venv-torch site out .mypy_cache .ruff_cache .pytest_cache .hypothesis
