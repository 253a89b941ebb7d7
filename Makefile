# Everything a person or a machine does with this repository. `make` alone lists it.
#
# PYTHON=python3.12 chooses the interpreter that makes the virtual environment; PYTEST_ARGS="-k name" goes to pytest; ONLY=P1 chooses benchmarks, FUZZ=entry fuzz targets.
# MAJORS="14 18" chooses majors of PostgreSQL for test-matrix. The local stack takes PG_PORT, S3_PORT, METRICS_PORT, APPLY_METRICS_PORT, PROMETHEUS_PORT, and
# STACK=folder for another place than build/stack.

PYTHON      ?= python3
VENV        ?= .venv
BIN         := $(VENV)/bin
# Two steps: what `make check` needs, within a minute; and everything, with Spark, PostgreSQL and a browser's driver.
CHECKED     := $(VENV)/.check-done
SETUP       := $(VENV)/.setup-done
SITE        := $(VENV)/.site-done
PYTEST_ARGS ?=
ONLY        ?=
FUZZ        ?=
SEEDS       ?= 20
FIRST       ?= 1
MINUTES     ?= 0
GIGABYTES   ?= 20
WAYS_SEEDS  ?= 2
# Writes that are waited for and read while everything is killed.
LOOPS       ?= 100000
MAJORS      ?= 14 15 16 17 18 19
# uv makes the lock and nothing else; it lives in an environment of its own.
UV          := build/lock/bin/uv
UV_VERSION  := 0.13.9
TYPED       := service/sluice spark_jobs/sluice_spark lake/sluice_lake deploy tools tests
MATRIX      := tests/integration
DRILLS      := tests/drills
LANGUAGES   ?= de_DE fr_FR ja_JP
# Sessions, the start of a stream, snapshots, checks and what ends a connection: whatever meets an error of the server.
SPOKEN      := $(addprefix tests/integration/test_,$(addsuffix .py,source_sessions source_slot source_catalog receive_stream \
  snapshot_reader snapshot_chunks check check_findings check_server bytes_without_utf8 ingest_failures ingest_publication ingest_conditions \
  lost_while_waiting commands_under_locks least_rights protocol_traps))
# From slow to fast, so that the workers end at about the same time: three, because tests also wait.
TESTS       := tests/spark tests/e2e tests/chaos tests/drills tests/upgrade tests/ops tests/integration tests/simulation tests/conformance tests/unit
# What make chaos runs of the other folders: the files that ask how much is to run.
CHAOTIC     := $(shell grep -rl tests.support.extent tests --include='test_*.py' | grep -v ^tests/chaos/)
# The validators of the Prometheus operator's objects; tests that need them say so and skip where there is no npm.
CRDS        := build/crds/.done
# The linter of the hosted workflows, which is built from its source; the tests that need it say so and skip where there is no Go.
ACTIONLINT  := build/actionlint/actionlint
ACTIONLINT_VERSION := v1.7.12
# The emulator of Azure Blob Storage, 180 MB; `make clouds` alone fetches it.
AZURITE     := build/azurite/.done
# Dagster and Airflow, 250 MB; `make orchestrators` alone fetches them.
ORCHESTRATORS := build/orchestrators/.done
# Trino with its connector for Delta, 820 MB; `make trino` alone fetches it.
TRINO       := build/trino/.done
# The wheel of the last release, which tests/upgrade lets take turns with this checkout.
BASELINE    := tests/upgrade/release
CONTAINERS  ?= docker
IMAGES      ?=
TAG         ?= v$(VERSION)
VERSION     := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

# Tests start hundreds of processes: without stored bytecode each compiles all that it imports.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help simulate setup python java jars demo up status load query logs down reset soak soak-snapshot check format lint types imports spelling generated unit conformance integration spark chaos chaos-seeds e2e tools crds actionlint clouds orchestrators trino test-ops images test test-python test-matrix test-languages test-drills fuzz bench docs site lock wheel dist notes chart baseline clean distclean

help: ## List these targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(SETUP) ## Make the virtual environment with everything locked (once)

python:
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Python 3.11 or newer with venv is needed: sudo apt-get install python3 python3-venv (or name another: make PYTHON=python3.12 ...)" >&2; exit 1; }

java:
	@java=$${JAVA_HOME:+$$JAVA_HOME/bin/}java; major=$$($$java -version 2>&1 | sed -n '1s/.*version "\([0-9]*\).*/\1/p'); \
	  [ "$${major:-0}" -ge 17 ] || \
	  { echo "Java 17 or newer is needed: sudo apt-get install openjdk-17-jre-headless" >&2; exit 1; }

$(CHECKED): requirements/check.txt pyproject.toml | python
	@echo "installing what make check needs: $$(grep -c == requirements/check.txt) packages, half a minute"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --require-hashes -r requirements/check.txt
	$(BIN)/python -m pip install --quiet --no-deps -e .
	@touch $@

$(SETUP): requirements/dev.txt $(CHECKED) | java
	@echo "installing everything else: $$(grep -c == requirements/dev.txt) packages; PySpark alone is 430 MB"
	$(BIN)/python -m pip install --require-hashes -r requirements/dev.txt
	@touch $@

jars: setup ## Fetch the jars for Delta and S3 once, checked against recorded sums
	$(BIN)/python -m sluice_spark.jars fetch --s3
	-$(BIN)/python -m sluice_spark.class_archive
	$(BIN)/python -m tools.local.s3proxy

demo: jars ## See it work: PostgreSQL under load, mirrored and compared, in about three minutes
	$(BIN)/python -m tools.demo

up: jars tools ## Start the local stack: PostgreSQL, S3, ingest, applier, Prometheus; again for what is missing
	@$(BIN)/python -m tools.stack up

status: setup ## Show what of the stack runs, and where the pipeline stands
	@$(BIN)/python -m tools.stack status

load: setup ## Work in the stack's shop until Ctrl-C, or for LOAD_SECONDS=60
	@$(BIN)/python -m tools.stack load

query: setup ## Ask the stack's lake: make query SQL="SELECT count(*) FROM orders"
	@$(BIN)/python -m tools.stack query

logs: setup ## Follow all logs of the stack until Ctrl-C; FOLLOW=0 for their last lines
	@$(BIN)/python -m tools.stack logs

down: setup ## Stop the stack in good order; its data stays
	@$(BIN)/python -m tools.stack down

reset: setup ## Stop the stack and delete its data
	@$(BIN)/python -m tools.stack reset

check: lint types imports spelling generated ## Format, lint, types, import rules, spelling, generated files: needs neither Java nor PostgreSQL nor Spark

format: $(CHECKED) ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(CHECKED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(CHECKED) ## Check the types, strictly
	$(BIN)/mypy $(TYPED)

imports: $(CHECKED) ## Check who may import whom
	$(BIN)/lint-imports

spelling: $(CHECKED)
	$(BIN)/codespell

generated: $(CHECKED)
	$(BIN)/python -m tools.docs --check

unit: setup ## Test the pure core: no server, seconds
	$(BIN)/python -m pytest tests/unit $(PYTEST_ARGS)

conformance: setup ## Test store and manifest on memory, local disk and S3
	$(BIN)/python -m pytest tests/conformance $(PYTEST_ARGS)

integration: setup ## Test against a real PostgreSQL
	$(BIN)/python -m pytest tests/integration $(PYTEST_ARGS)

spark: jars ## Test the applier on a local Spark
	$(BIN)/python -m pytest tests/spark $(PYTEST_ARGS)

crds: $(CRDS) ## Fetch the validators of the Prometheus operator's objects, where npm is installed

$(CRDS): tests/ops/crds/package-lock.json
	@mkdir -p $(@D) && cp tests/ops/crds/package.json tests/ops/crds/package-lock.json $(@D)
	@if npm ci --silent --no-audit --no-fund --prefix $(@D); then touch $@; else echo "npm is missing or failed: the tests that need these validators will be skipped"; fi

actionlint: $(ACTIONLINT) ## Build the linter of the hosted workflows, where Go is installed

$(ACTIONLINT):
	@GOBIN=$(CURDIR)/$(@D) go install github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION) || \
	  echo "Go is missing or failed: the test that needs actionlint will be skipped"

clouds: setup $(AZURITE) ## Test store and manifest on an emulator of Azure Blob Storage, where npm is installed
	CHAOS=full $(BIN)/python -m pytest tests/conformance -k azure -rs $(PYTEST_ARGS)

$(AZURITE): tests/conformance/azurite/package-lock.json
	@mkdir -p $(@D) && cp tests/conformance/azurite/package.json tests/conformance/azurite/package-lock.json $(@D)
	@if npm ci --silent --no-audit --no-fund --prefix $(@D); then touch $@; else echo "npm is missing or failed: the tests on Azure will be skipped"; fi

orchestrators: setup $(ORCHESTRATORS) ## Test the readers' sensor and trigger with Dagster and Airflow
	$(BIN)/python -m pytest tests/e2e/test_orchestrators.py -rs $(PYTEST_ARGS)

$(ORCHESTRATORS): requirements/orchestrators.txt
	@rm -rf $(@D) && $(PYTHON) -m venv $(@D)
	@if $(@D)/bin/python -m pip install --quiet --require-hashes -r requirements/orchestrators.txt; then touch $@; \
	  else echo "Dagster and Airflow cannot be had: the tests that need them will be skipped"; fi

trino: setup jars $(TRINO) ## Read lake tables with Trino by their names in a catalog, where Maven and Java 24 are installed
	CHAOS=full $(BIN)/python -m pytest tests/e2e/test_trino.py -rs $(PYTEST_ARGS)

$(TRINO): tests/support/trino.py
	@$(BIN)/python -m tests.support.trino $(@D) || echo "Trino cannot be had: the tests that need it will be skipped"

images: ## Build the images with a container engine; CONTAINERS=podman names another than docker
	for name in ingest applier; do \
	  $(CONTAINERS) build --build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse HEAD) \
	    -f deploy/images/$$name.Dockerfile -t sluice-$$name:$(VERSION) . || exit; \
	done

chaos: jars ## Test with processes killed and stages that fail, then tell SEEDS=20 stories of chaos, for MINUTES=60 at most
	CHAOS=full WAYS_SEEDS=$(WAYS_SEEDS) LOOPS=$(LOOPS) $(BIN)/python -m pytest -n 2 --dist loadscope tests/chaos $(CHAOTIC) $(PYTEST_ARGS)
	$(BIN)/python -m tests.chaos --seeds $(SEEDS) --minutes $(MINUTES)

chaos-seeds: jars ## Only the stories; SEED=123 repeats one
	$(BIN)/python -m tests.chaos --seeds $(SEEDS) --minutes $(MINUTES)

simulate: setup ## Run SEEDS=20 histories of the simulator, in two processes; FIRST=1 is the first seed
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST)

e2e: jars ## Test the whole path, from SQL to Delta
	$(BIN)/python -m pytest tests/e2e $(PYTEST_ARGS)

tools: setup ## Fetch Prometheus, promtool and Chromium below build/tools, where PATH has none
	$(BIN)/python -m tools.local.tools --optional
	$(BIN)/python -m tools.local.browser --optional

test-ops: jars tools crds actionlint ## Test what people run it with: alerts, dashboards, chart, images, compose file, local stack, status page
	$(BIN)/python -m pytest tests/ops $(PYTEST_ARGS)

soak: jars tools ## Let the object store stall for three real minutes, which takes ten, then live through a week in SOAK_MINUTES=40
	CHAOS=full SLUICE_TEST_SOAK=1 $(BIN)/python -m pytest tests/ops/test_store_stalls.py $(PYTEST_ARGS)
	$(BIN)/python -m tests.soak

soak-snapshot: jars ## Take the snapshot of a table of GIGABYTES=20 while every process is killed, then replace it under readers
	GIGABYTES=$(GIGABYTES) $(BIN)/python -m tests.soak.large_table

test: setup ## Check and test everything, on two cores
	$(MAKE) -j 2 check jars tools crds actionlint
	$(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder $(TESTS) $(PYTEST_ARGS)

fuzz: setup ## Fuzz the decoders; FUZZ_SECONDS=600 for longer, FUZZ=assemble for one target
	@test -d build/fuzz/atheris || $(BIN)/python -m pip install --quiet --only-binary :all: --require-hashes --target build/fuzz/atheris -r requirements/fuzz.txt || \
	  { echo "make fuzz needs atheris, which has no wheel for this interpreter; use CPython 3.11 to 3.13 on Linux or macOS" >&2; exit 1; }
	PYTHONPATH=build/fuzz/atheris $(BIN)/python -m tests.fuzz $(FUZZ)

test-python: jars ## Test the pure core and the installed wheel with the Python of PYTHON: make test-python VENV=.venv313 PYTHON=python3.13
	$(BIN)/python -m pytest tests/unit tests/ops/test_tutorial.py $(PYTEST_ARGS)

test-matrix: setup ## Test against every major of PostgreSQL, or those in MAJORS
	CHAOS=full $(BIN)/python -m tests.matrix --majors "$(MAJORS)" $(MATRIX) $(PYTEST_ARGS)

test-languages: setup ## Test what decides by errors of the server against servers that speak LANGUAGES
	CHAOS=full $(BIN)/python -m tests.matrix --languages "$(LANGUAGES)" $(SPOKEN) $(PYTEST_ARGS)

test-drills: setup ## Fail over between real servers of every major of PostgreSQL, or those in MAJORS
	CHAOS=full $(BIN)/python -m tests.matrix --majors "$(MAJORS)" $(DRILLS) $(PYTEST_ARGS)

bench: jars ## Measure against the references; ONLY=P1 or ONLY="P1 P5"
	$(BIN)/python -m tests.bench $(ONLY)

docs: setup ## Write all generated files again: pages of docs/, alerts, dashboards, the chart's schema
	$(BIN)/python -m tools.docs

site: $(SITE) ## Build the documentation as a site into build/site/html; a warning fails it
	$(BIN)/python -m tools.site

$(SITE): requirements/docs.txt $(CHECKED)
	$(BIN)/python -m pip install --require-hashes -r requirements/docs.txt
	@touch $@

lock: ## Resolve all dependencies again and write requirements/
	test -x $(UV) || { $(PYTHON) -m venv build/lock && build/lock/bin/python -m pip install --quiet uv==$(UV_VERSION); }
	$(UV) pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade \
	  --extra service --extra spark --extra glue --extra otel --group dev pyproject.toml -o requirements/dev.txt
	for extra in service spark glue; do \
	  $(UV) pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade --constraint requirements/dev.txt \
	    --extra $$extra --extra otel pyproject.toml -o requirements/$$extra.txt || exit; \
	done
	$(UV) pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade --constraint requirements/dev.txt \
	  --extra duckdb lake/pyproject.toml -o requirements/query.txt
	$(UV) pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade --constraint requirements/dev.txt \
	  --group check pyproject.toml -o requirements/check.txt
	$(UV) pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade --constraint requirements/dev.txt \
	  --group image -o requirements/build.txt
	$(UV) pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade --no-deps \
	  --group fuzz -o requirements/fuzz.txt
	$(UV) pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade --constraint requirements/dev.txt \
	  --group peers -o requirements/peers.txt
	$(UV) pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade --constraint requirements/dev.txt \
	  --group docs -o requirements/docs.txt
	$(UV) pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade \
	  --group orchestrators -o requirements/orchestrators.txt

wheel: setup ## Build the wheels into dist/: the pipeline's, and that of those who read the lake
	$(BIN)/python -m build --wheel
	$(BIN)/python -m build --wheel --outdir dist lake

dist: setup ## Build wheel and sdist twice, compare them, and add the bill of materials and sums: all into dist/
	$(BIN)/python -m tools.release dist

notes: setup ## Write the notes of TAG=v1.0.0 into build/notes.md, from the changelog
	$(BIN)/python -m tools.release notes $(TAG)

chart: setup ## Package the chart into build/chart; IMAGES="..." names both images by digest
	$(BIN)/python -m tools.release chart $(IMAGES)

baseline: wheel ## At a release: make its wheel the one that upgrades are tested from
	rm -f $(BASELINE)/*.whl
	cp dist/sluice_cdc-$(VERSION)-py3-none-any.whl $(BASELINE)
	cd $(BASELINE) && sha256sum *.whl > SHA256SUMS

clean: ## Remove what builds, tests, the demonstration and the stack left
	@test ! -e build/stack/stack.json || $(BIN)/python -m tools.stack reset
	rm -rf build dist spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

distclean: clean ## The same, and the virtual environment
	rm -rf $(VENV)
