# Every target installs what it needs: Python 3.13, pip and make are all that must be there.
# `make` alone lists the targets.

PYTHON ?= $(shell python3.13 -c '' 2>/dev/null && echo python3.13 || echo python3)
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
BIN := .venv/bin
SAM := .venv-sam/bin/sam
REGION ?= us-east-1
HOST_ARCHITECTURE := $(shell uname -m | sed 's/aarch64/arm64/')
FUNCTIONS := CollectSearchLogs CheckHealth CheckAvailability HandleInterruption KeepLedger ExamineAccount
WORKERS ?= auto
RUN ?=
SEEDS ?= 300
PORT ?= 4566
FIRST ?=
KEEP ?=
WIDE ?=

COMPILE = $(UV) pip compile --quiet --python-version 3.13 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make pins"
COMPILE_DEV = $(COMPILE) pyproject.toml --extra lab --group dev --universal
COMPILE_LAYER = $(COMPILE) --group pyproject.toml:functions --constraints requirements/dev.txt \
	--python-platform aarch64-manylinux_2_28 --only-binary :all:
# Each tool with an environment of its own; into the folder $(1).
compile-tools = for tool in sam aws site release queues; do \
		$(COMPILE) requirements/$$tool.in --universal $(UPGRADE) --output-file $(1)/$$tool.txt >/dev/null || exit 1; \
	done

# Kept, so that neither each worker of the tests nor each command that they start compiles AWS's
# modules anew.
unexport PYTHONDONTWRITEBYTECODE
export SAM_CLI_TELEMETRY := 0
export UV_PYTHON_DOWNLOADS := never

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help bootstrap docs check check-format check-lint check-types check-pyright check-contracts \
	check-template check-examples check-pins check-prose format test laws demo chaos bench bench-policy bench-sizing pins \
	sam-validate sam-build sam-import local-build local-aws e2e clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- environments ---------------------------------------------------------------------------------

.uv/bin/uv:
	$(PYTHON) -m venv .uv
	.uv/bin/python -m pip install --quiet uv

.venv/.installed: requirements/dev.txt pyproject.toml | $(UV)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 13))' || \
		{ echo "Spotkeeper needs Python 3.13; $$($(PYTHON) --version) is $(PYTHON). Set PYTHON=/path/to/python3.13."; exit 1; }
	test -x $(BIN)/python || $(UV) venv --quiet --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .venv
	$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

# sam builds with the python3.13 and the pip that it finds first: those of its own environment.
.venv-sam/.installed: requirements/sam.txt | $(UV)
	test -x .venv-sam/bin/pip || $(PYTHON) -m venv .venv-sam
	$(UV) pip install --quiet --python .venv-sam/bin/python --require-hashes --requirements requirements/sam.txt
	touch $@

# The endpoint of the local AWS holds botocore back, so it has an environment of its own; so has the site.
.venv-aws/.installed .venv-site/.installed .venv-release/.installed .venv-queues/.installed: .venv-%/.installed: requirements/%.txt .venv/.installed | $(UV)
	test -x .venv-$*/bin/python || $(UV) venv --quiet --python $(BIN)/python .venv-$*
	$(UV) pip sync --quiet --python .venv-$*/bin/python --require-hashes requirements/$*.txt
	touch $@

bootstrap: .venv/.installed ## make .venv with everything to develop

# --- quality --------------------------------------------------------------------------------------

check: .venv/.installed ## format, lint, types, import contracts, template, pins
	@$(MAKE) --no-print-directory --jobs 2 --keep-going --output-sync=target \
		check-pyright check-types check-format check-lint check-contracts check-template check-examples \
		check-pins check-prose

check-format: .venv/.installed
	$(BIN)/ruff format --check .

check-lint: .venv/.installed
	$(BIN)/ruff check .

check-types: .venv/.installed
	$(BIN)/mypy

check-pyright: .venv/.installed
	$(BIN)/pyright

check-contracts: .venv/.installed
	$(BIN)/lint-imports --no-logo

check-template: .venv/.installed
	$(BIN)/cfn-lint template.yaml worker/examples/launch-template.yaml worker/examples/jobs/launch-template.yaml docs/events-example.yaml

check-prose: .venv/.installed
	$(BIN)/python docs/prose.py

# systemd-analyze and cloud-init hold the examples of the worker side, where they are.
check-examples: .venv/.installed
	$(BIN)/pytest -n 0 -q -rs -m "make_e2e or not make_e2e" tests/worker/test_examples.py -k "systemd or cloud"

# Compiled once more with the pins in place, nothing may change; newer releases do not matter.
check-pins: .venv/.installed
	@mkdir -p build/pins
	@cp requirements/dev.txt requirements/sam.txt requirements/aws.txt requirements/site.txt requirements/release.txt requirements/queues.txt build/pins/
	@cp layers/dependencies/requirements.txt build/pins/layer.txt
	@$(COMPILE_DEV) --output-file build/pins/dev.txt >/dev/null
	@$(COMPILE_LAYER) --output-file build/pins/layer.txt >/dev/null
	@$(call compile-tools,build/pins)
	@for pair in requirements/dev.txt:dev.txt requirements/sam.txt:sam.txt requirements/aws.txt:aws.txt requirements/site.txt:site.txt requirements/release.txt:release.txt requirements/queues.txt:queues.txt layers/dependencies/requirements.txt:layer.txt; do \
		grep '==' $${pair%%:*} > build/pins/committed; grep '==' build/pins/$${pair##*:} > build/pins/compiled; \
		diff build/pins/committed build/pins/compiled || { echo "$${pair%%:*} is out of date: run make pins"; exit 1; }; \
	done
	@echo "pins are up to date"

format: .venv/.installed ## format and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/.installed ## write what the documents take from the code: settings, findings, the JSON schema, what AWS does
	$(BIN)/python -m spotkeeper_operator.settings_table docs/settings.md
	$(BIN)/python -m spotkeeper_operator.doctor docs/findings.md
	$(BIN)/python -m spotkeeper_operator.answers docs/json.schema.json
	$(BIN)/python docs/truth.py

test: .venv/.installed ## every test but those of make e2e (RUN="tests/unit -k load" for some)
	$(BIN)/pytest -n $(WORKERS) -q $(RUN)

laws: .venv/.installed ## every property with 20,000 examples and a random seed, a line for each (RUN=... for some)
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -v --durations=15 -m hypothesis --hypothesis-profile=laws $(RUN)

# --- run ------------------------------------------------------------------------------------------

demo: .venv/.installed ## a day of spot capacity and requests through the real handlers
	$(BIN)/spotkeeper demo

local-aws: port-free local-build .venv-aws/.installed ## a local AWS to deploy to, in which spot runs out (PORT=4566)
	$(BIN)/spotkeeper lab up --port $(PORT)

# Before the build, which takes minutes. With SO_REUSEADDR: connections of a lab that ended linger.
port-free:
	@$(PYTHON) -c 'import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("127.0.0.1", $(PORT)))' 2>/dev/null || \
		{ echo "port $(PORT) is in use: make local-aws PORT=another"; exit 1; }

e2e: local-build .venv-aws/.installed .venv-queues/.installed ## the tests against the local AWS (deploy to delete), a broker, a Docker; every kept story
	$(BIN)/pytest -n 3 --dist loadfile -q -m make_e2e \
		tests/endpoint tests/contract tests/functions tests/worker tests/simulation \
		tests/unit/lab/aws $(RUN)

chaos: .venv/.installed ## random faults on SEEDS seeds (FIRST=..., KEEP=folder, WIDE=1)
	@$(BIN)/python -m spotkeeper_lab.run.chaos --seeds $(SEEDS) $(if $(FIRST),--first $(FIRST)) \
		$(if $(KEEP),--keep $(KEEP)) $(if $(WIDE),--wide)

.PHONY: reference site rights
rights: .venv/.installed ## write what each function calls (tests/evidence/rights.tsv), by running the tests of functions
	printf 'function\taction\tresource\tkeys\n' > tests/evidence/rights.tsv
	RIGHTS=write $(BIN)/pytest -q -n 0 tests/functions

reference: .venv/.installed ## write docs/commands.md from the commands
	$(BIN)/python -m spotkeeper_cli.reference > docs/commands.md

site: .venv-site/.installed ## the pages as a searched site that needs no network, in build/site
	$(BIN)/python docs/site.py assemble build/site-src
	.venv-site/bin/zensical build --clean --strict --config-file site.toml
	$(BIN)/python docs/site.py localise build/site

.PHONY: release
release: .venv/.installed .venv-release/.installed sam-build site ## what a release page needs, in dist (BUCKET=...)
	cp samconfig.toml .aws-sam/build/
	$(BIN)/python .ci/release.py dist $(BUCKET) --archive stack=.aws-sam/build --archive site=build/site
	.venv-release/bin/twine check --strict dist/*.whl
	.venv-release/bin/python -c 'import sys; from cyclonedx.schema import SchemaVersion; \
		from cyclonedx.validation.json import JsonStrictValidator; \
		sys.exit(JsonStrictValidator(SchemaVersion.V1_5).validate_str(sys.stdin.read()))' < dist/sbom.cdx.json

bench: .venv/.installed ## code behind a warning, the bill, large accounts
	$(BIN)/python -m bench

bench-policy: .venv/.installed ## the policy against its peers and the optimum
	$(BIN)/python -m bench policy

bench-sizing: .venv/.installed ## the sizing rules against the waits that they promise
	$(BIN)/python -m bench sizing

# --- pins and packages ----------------------------------------------------------------------------

pins: | $(UV) ## compile the pins (UPGRADE=--upgrade for newer releases)
	$(COMPILE_DEV) $(UPGRADE) --output-file requirements/dev.txt >/dev/null
	$(COMPILE_LAYER) $(UPGRADE) --output-file layers/dependencies/requirements.txt >/dev/null
	$(call compile-tools,requirements)

# Most of a cold start is compiling, and a warning waits for it. Byte code that is not compared with
# its source is valid wherever it is unpacked, and the same in every build.
compiled = @for layer in SpotkeeperLayer DependenciesLayer; do \
		.venv-sam/bin/python -m compileall -q --invalidation-mode unchecked-hash \
			-d /opt/python $(1)/$$layer/python || exit 1; \
	done

sam-validate: .venv-sam/.installed ## sam validate --lint
	$(SAM) validate --lint --region $(REGION)

sam-build: .venv-sam/.installed ## sam build, as it is deployed
	PATH="$(CURDIR)/.venv-sam/bin:$$PATH" $(SAM) build --region $(REGION) --template-file template.yaml
	$(call compiled,.aws-sam/build)

# For the machine that it runs on, from a folder of its own: what sam keeps beside a build (.aws-sam) is
# not the other's, so that neither build invalidates the other's cache.
local-build: .venv-sam/.installed ## sam build for the local AWS
	@mkdir -p build/local-aws
	cd build/local-aws && PATH="$(CURDIR)/.venv-sam/bin:$$PATH" $(CURDIR)/$(SAM) build --region $(REGION) \
		--template-file ../../template.yaml --build-dir sam --cache-dir cache \
		--parameter-overrides Architecture=$(HOST_ARCHITECTURE)
	$(call compiled,build/local-aws/sam)
	@cp samconfig.toml build/local-aws/sam/

# The deployed layers hold arm64 wheels, so this builds for the machine that it runs on. -S and an
# empty environment leave nothing on the path but the standard library and the built layers.
sam-import: local-build ## build for this machine and import each function from the build alone
	@for name in $(FUNCTIONS); do \
		( cd build/local-aws/sam/$$name && env -i AWS_REGION=$(REGION) \
			PYTHONPATH=../SpotkeeperLayer/python:../DependenciesLayer/python \
			../../../../.venv-sam/bin/python -S -c "import app; assert callable(app.handler)" \
			&& echo "$$name imports" ) || exit 1; \
	done

clean: ## remove environments, builds and caches
	rm -rf .uv .venv .venv-sam .venv-aws .venv-site .venv-release .venv-queues dist .aws-sam build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
