# sandboxd. `make demo` shows it, `make test` proves it; both install what they
# need on a Debian machine (as root) and say so.

# Go may be installed without being on PATH; everything below, scripts
# included, finds it the same way.
export PATH := $(PATH):/usr/local/go/bin
GO ?= go

BUILD   := build
RESULTS := $(BUILD)/results
# Not :=, since git may be among what a target installs first.
VERSION = $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

DESTDIR    ?=
PREFIX     ?= /usr
SYSCONFDIR ?= /etc
LIBDIR     := $(DESTDIR)$(PREFIX)/lib

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
LDFLAGS     = -X main.version=$(VERSION)
# One static file: the daemon links libseccomp (cgo) and runs on any host, and
# its roles need no file of the host's to start.
STATIC = -tags netgo,osusergo -ldflags '$(LDFLAGS) -linkmode external -extldflags "-static"'

# Tests of packages; the whole-system suites under tests/ have targets of their
# own, and their helpers are packages like any other.
UNIT = $$($(GO) list ./... | grep -vE "/tests/(e2e|attack|browser|vm|demo)(/|$$)")

MEASURED := ^(TestGreedy|TestIdleCost|TestMemoryComesBack|TestStretches|TestFunctionsAreLinear|TestNeighbours|TestCollector)$$

TESTRUN := $(BUILD)/testrun
HERE    := this machine, $(shell uname -sr)
STAGES  := build lint test-unit test-measure test-e2e test-attack test-browser vm-test

.PHONY: all build guests deps deps-test deps-browser deps-vm deps-all lint test test-stages test-unit test-measure test-e2e test-attack test-browser vm-test bench demo install clean
all: build

## deps: install what building and running need and this machine lacks
deps: .go-is-there
	@tests/tools/deps.sh build run

deps-test: .go-is-there
	@tests/tools/deps.sh build run test

deps-browser: .go-is-there
	@tests/tools/deps.sh build run browser

deps-vm: .go-is-there
	@tests/tools/deps.sh build run test vm

deps-all: .go-is-there
	@tests/tools/deps.sh build run test browser vm

# What jails are measured beside. Without it bench says so in its rows.
.PHONY: deps-bench
deps-bench:
	@tests/tools/deps.sh bench || echo "make: bench goes on without what could not be installed" >&2

.PHONY: .go-is-there
.go-is-there:
	@command -v $(GO) >/dev/null || { echo "make: no Go on PATH nor in /usr/local/go/bin; sandboxd needs Go 1.26 or newer" >&2; exit 1; }

## guests: fetch the WebAssembly engines, pinned by version and integrity
guests: deps
	@$(GO) run ./isolate/fetchguests -o $(BUILD)/guests

## wpt: fetch the public tests of the web interfaces, pinned by content
.PHONY: wpt
wpt: deps
	@tests/tools/wpt.sh $(BUILD)/wpt

## build: the three programs and what the daemon loads, in build/
build: deps guests
	@mkdir -p $(BUILD)
	CGO_ENABLED=1 $(GO) build -trimpath $(STATIC) -o $(BUILD)/sandboxd ./cmd/sandboxd
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BUILD)/sandboxctl ./cmd/sandboxctl
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BUILD)/sandbox-init ./cmd/sandbox-init

$(TESTRUN): FORCE
	@$(GO) build -o $@ ./tests/testrun
FORCE:

## lint: gofmt, go vet, staticcheck
lint: deps $(TESTRUN)
	@status=0; check() { name=$$1; shift; $(TESTRUN) check -stage lint -name $$name -where '$(HERE)' -out $(RESULTS) -- "$$@" || status=1; }; \
	check gofmt sh -c 'bad=$$(find . -name "*.go" -not -path "./build/*" -not -path "./node_modules/*" -exec gofmt -l {} +); [ -z "$$bad" ] || { echo "not gofmt-ed:"; echo "$$bad"; exit 1; }'; \
	check vet $(GO) vet ./...; \
	check staticcheck $(GO) run $(STATICCHECK) ./...; \
	exit $$status

## test-unit: every package's own tests, with the race detector
test-unit: deps-test guests wpt $(TESTRUN)
	@$(TESTRUN) run -stage test-unit -where '$(HERE), race detector on' -timeout 20m -out $(RESULTS) -- \
		sh -c '$(GO) test -json -race -timeout 15m $(UNIT)'

## test-measure: what is held to figures of memory and processor time, which the race detector changes
test-measure: deps guests $(TESTRUN)
	@$(TESTRUN) run -stage test-measure -where '$(HERE)' -timeout 10m -out $(RESULTS) -- \
		$(GO) test -json -timeout 9m -run '$(MEASURED)' ./isolate ./isolate/wasm ./daemon/data

## test-e2e: the whole system: a real daemon on a real socket
test-e2e: build deps-test $(TESTRUN)
	@$(TESTRUN) run -stage test-e2e -where '$(HERE), sandboxd dev' -timeout 15m -out $(RESULTS) -- \
		$(GO) test -json -count=1 -p 1 -timeout 14m ./tests/e2e/...

## test-attack: attempts to break out of jails and isolates
test-attack: build $(TESTRUN)
	@$(TESTRUN) run -stage test-attack -where '$(HERE), sandboxd dev' -timeout 15m -out $(RESULTS) -- \
		$(GO) test -json -count=1 -timeout 14m ./tests/attack/...

## test-browser: previews of a real web project in a headless browser; screenshots go to build/artifacts
test-browser: deps-browser build $(TESTRUN)
	@$(TESTRUN) run -stage test-browser -where '$(HERE), sandboxd dev, Chromium' -timeout 10m -out $(RESULTS) -- \
		$(GO) test -json -count=1 -timeout 9m ./tests/browser/...

## vm-test: the installed system under systemd, in a virtual machine
vm-test: deps-vm build $(TESTRUN)
	@$(TESTRUN) run -stage vm-test -where 'a virtual Debian with systemd and cgroup v2 (QEMU, no KVM)' -timeout 30m -out $(RESULTS) -- \
		tests/vm/test.sh

## test: all of the above; its last line is the count of what really ran
test: deps-all $(TESTRUN)
	@rm -rf $(RESULTS)
	@$(TESTRUN) check -stage build -where '$(HERE)' -out $(RESULTS) -- $(MAKE) --no-print-directory -s build || true
	@for stage in $(filter-out build,$(STAGES)); do echo "── $$stage"; $(MAKE) --no-print-directory -s $$stage || true; done
	@$(TESTRUN) summary -out $(RESULTS) $(STAGES)

## bench: what a fresh isolate and a fresh jail cost, as ratios to their floors
bench: build deps-bench
	@tests/tools/deps.sh bench
	@$(GO) run ./tests/bench -bin $(BUILD) $(BENCHFLAGS)

## demo: both stories, told by a running sandboxd
demo: build
	@$(GO) run ./tests/demo -bin $(BUILD)

## install: programs, engines, units, an example policy (never overwritten)
install:
	@test -x $(BUILD)/sandboxd || { echo "make: run 'make build' first" >&2; exit 1; }
	install -D -m 0755 $(BUILD)/sandboxd $(DESTDIR)$(PREFIX)/sbin/sandboxd
	install -D -m 0755 $(BUILD)/sandboxctl $(DESTDIR)$(PREFIX)/bin/sandboxctl
	install -D -m 0755 $(BUILD)/sandbox-init $(LIBDIR)/sandboxd/sandbox-init
	install -d -m 0755 $(LIBDIR)/sandboxd/guests
	install -m 0644 $(BUILD)/guests/* $(LIBDIR)/sandboxd/guests/
	install -d -m 0755 $(LIBDIR)/systemd/system
	@for unit in systemd/units/*.service systemd/units/*.socket; do \
		sed 's|/usr/|$(PREFIX)/|g; s|/etc/sandboxd/|$(SYSCONFDIR)/sandboxd/|g' $$unit > $(LIBDIR)/systemd/system/$$(basename $$unit) && \
		chmod 0644 $(LIBDIR)/systemd/system/$$(basename $$unit) || exit 1; done
	install -D -m 0644 systemd/units/sandboxd.sysusers $(LIBDIR)/sysusers.d/sandboxd.conf
	install -D -m 0644 systemd/units/sandboxd.tmpfiles $(LIBDIR)/tmpfiles.d/sandboxd.conf
	install -d -m 0755 $(DESTDIR)$(SYSCONFDIR)/sandboxd
	@test -e $(DESTDIR)$(SYSCONFDIR)/sandboxd/policy.yaml || \
		install -m 0600 systemd/units/policy.yaml $(DESTDIR)$(SYSCONFDIR)/sandboxd/policy.yaml
ifeq ($(DESTDIR),)
	@if [ -d /run/systemd/system ]; then \
		systemd-sysusers sandboxd.conf && systemd-tmpfiles --create sandboxd.conf && systemctl daemon-reload && \
		echo "installed; next: systemctl enable --now sandboxd.socket"; \
	else echo "installed; systemd does not run here, so nothing was started; next: sandboxd dev --policy FILE"; fi
endif

clean:
	rm -rf $(BUILD)
