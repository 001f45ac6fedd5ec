# The README's two commands and CI need only `test`. `make` alone lists the rest.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO ?= go
# The workspace has the core and the fleet; the modules release and recipes are apart from it.
APART := GOWORK=off
FUZZTIME ?= 60s
# Address space of a fuzz run in KiB. Go's own memory limit is soft; this one stops a decoder that trusts a length.
FUZZ_MEMORY ?= 6291456
ROUNDS ?= 5
SEEDS ?= 200
LOOPS ?= 10
DISKS ?= 500
KILLS ?= 300
SEED ?= $(shell date +%s)

VERSION := $(shell scripts/version.sh)
PREFIX ?= /usr/local
LINT := $(shell command -v golangci-lint || ls "$$($(GO) env GOPATH)/bin/golangci-lint" 2>/dev/null)

# The version comes from -ldflags; Go's own stamp would fail a build in a checkout that another user owns.
export GOFLAGS := $(filter-out -buildvcs=%,$(shell $(GO) env GOFLAGS)) -buildvcs=false
# Debian keeps mkntfs and sfdisk outside of an ordinary user's PATH.
export PATH := $(PATH):/usr/sbin:/sbin

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

BUILD := CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -buildid= -X main.version=$(VERSION)'

.PHONY: build build-fleet
build: ## bin/trueup, static and reproducible
	$(APART) $(BUILD) -o bin/ ./cmd/trueup
build-fleet: ## bin/trueup-fleet
	$(BUILD) -o bin/ ./fleet/cmd/trueup-fleet

.PHONY: install install-fleet
install: build ## trueup, manual pages and completions below PREFIX (/usr/local), or below DESTDIR and PREFIX
	install -D -t $(DESTDIR)$(PREFIX)/bin bin/trueup
	bin/trueup pages $(DESTDIR)$(PREFIX) $$(scripts/version.sh --time)
install-fleet: build-fleet ## trueup-fleet with its manual pages and completions, below PREFIX and DESTDIR
	install -D -t $(DESTDIR)$(PREFIX)/bin bin/trueup-fleet
	cd release && SOURCE_DATE_EPOCH=$$(../scripts/version.sh --time) $(APART) $(GO) run . -version $(VERSION) -pages $(abspath $(DESTDIR)$(PREFIX))

.PHONY: release
release: ## all files of a release, for all systems, in dist
	cd release && SOURCE_DATE_EPOCH=$$(../scripts/version.sh --time) $(APART) $(GO) run . -version $(VERSION) -out ../dist

.PHONY: test-release
test-release: ## a release, twice from other folders; its packages installed, used and removed; installs lintian and others (as root)
	scripts/install-tools.sh release
	cd release && $(APART) $(GO) test -count=1 -timeout 60m ./...

.PHONY: test-recipes
test-recipes: ## run the recipes of docs/recipes.md; installs their tools (as root)
	scripts/install-tools.sh recipes
	cd recipes && REQUIRE_TOOLS=1 $(APART) $(GO) test -count=1 -timeout 30m ./...

.PHONY: check
check: vet lint systems sizes words ## checks without outside tools: gofmt, vet, lint, quick race tests, import edges
	$(GO) test -race -short ./internal/... ./fleet/...

.PHONY: vet
vet:
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "gofmt -w is due: $$unformatted"; exit 1; }
	$(GO) vet ./... ./fleet/...
	cd release && $(APART) $(GO) vet ./...
	cd recipes && $(APART) $(GO) vet ./...

LINTER := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: lint
lint: ## golangci-lint, where it is installed; CI builds it
ifeq ($(LINT)$(CI),)
	@echo 'lint skipped: no golangci-lint. To install it (it takes some minutes to build):'
	@echo '  go install $(LINTER)'
else
	$(or $(LINT),$(GO) run $(LINTER)) run ./...
	cd fleet && $(or $(LINT),$(GO) run $(LINTER)) run ./...
	cd release && $(APART) $(or $(LINT),$(GO) run $(LINTER)) run ./...
	cd recipes && $(APART) $(or $(LINT),$(GO) run $(LINTER)) run ./...
endif

# Tests need Linux, and are left out, but for those that run under Wine.
SYSTEMS := windows/amd64 darwin/amd64 freebsd/amd64 linux/386
# Systems that differ from these by the processor alone: they are built.
FURTHER := windows/arm64 darwin/arm64 linux/arm64 linux/riscv64

.PHONY: systems
systems: ## build and vet for Windows, macOS, FreeBSD and a processor of 32 bits; build for further processors
	@overlay=$$(mktemp); trap 'rm -f "$$overlay"' EXIT; \
	{ echo '{"Replace": {'; find cmd internal fleet -name '*_test.go' -printf '"%p": "",\n' | sed '$$s/,$$//'; echo '}}'; } > "$$overlay"; \
	for system in $(SYSTEMS); do \
		echo "== $$system"; \
		export CGO_ENABLED=0 GOOS=$${system%/*} GOARCH=$${system#*/}; \
		$(GO) build ./... ./fleet/...; \
		$(GO) vet -overlay "$$overlay" ./... ./fleet/...; \
	done; \
	for system in $(FURTHER); do \
		echo "== $$system"; \
		CGO_ENABLED=0 GOOS=$${system%/*} GOARCH=$${system#*/} $(GO) build ./cmd/... ./fleet/cmd/...; \
	done
	scripts/test-systems.sh vet

# The fleet requires the core of this tree, which has no version for `go mod tidy`.
.PHONY: tidy
tidy: ## go.mod and go.sum of core and fleet
	$(APART) $(GO) mod tidy
	cd fleet && $(GO) mod edit -replace github.com/trueup/trueup=../ && $(APART) $(GO) mod tidy && \
		$(GO) mod edit -dropreplace github.com/trueup/trueup

.PHONY: test-systems
test-systems: ## run the tests for 32 bits, and for Windows under Wine; installs Wine (as root)
	scripts/install-tools.sh wine
	nice scripts/test-systems.sh

.PHONY: sizes
sizes: ## lines, packages and dependencies of the core; fails if one is above sizes.txt
	@GO=$(GO) scripts/sizes.sh

.PHONY: words
words: ## constructions in comments that stand in place of a noun, for 1,000 lines of comments; fails above the limits
	@scripts/words.sh

.PHONY: tools
tools: ## install the Debian packages of the tests (as root; else list missing ones)
	scripts/install-tools.sh

# Packages run in full under the race detector, six times as slow: with goroutines, or data shared by them.
RACED := align cli disk diskcopy disktest disktest/oddfs image/driver image/ova nbd ondisk opinion progress realign scan scan/sandbox self sys trial verify
RACED_FLEET := engine queue web work
# Their slow tests without races, in Go or in another program: they run without the detector.
COMPUTES := ^Test(Differential|LargeCopyPassesTheMemory|PageInChromium|LivePage|CommandsAgree|EachCallOfTheFilter|ArgumentsOf.*Filters?|ThousandsOfRoots)$$
SOURCES := ^Test(TestsDoNotWatchTheClock|ImportEdges|TheTableOfImportsIsSound|FewOpenFilesOrStartGoroutines|OnlySysAsksTheSystem|CoreRequiresNoNATS)$$
# Packages run in part under the detector in make exhaustive, beside a plain run in make test: disks that are read and
# written by several goroutines, once for each format and kind of chain; not again with disks of others, damaged ones
# or other processes.
RACED_SHARE := image image/gate image/qcow2 image/raw image/store image/vdi image/vhd image/vhdx image/vmdk
UNRACED := Corpus|Hostile|Huge|ByQemuImg|OptimizedGrains|Deterministic|Truncated|Broken|Damaged|Refuse|CopiesKeep|Refcounts|Killed|TwoProcesses|Questions|Bounded|CanBeMany|Bombs|OptimizedIsWritten

# Go's test cache sees no outside tool, and no file outside of the module: disktest reads this variable for both, so that
# a result is kept until a package of the machine, the corpus, the kernel or the user changes.
MACHINE = $(shell { id -u; uname -r; cat /var/lib/dpkg/status || :; find /usr/local/lib/trueup-tests ../shared/corpus -type f -printf '%p %s %T@\n'; } 2>/dev/null | sha256sum)
RUN ?=
# The packages with the test of RUN.
PACKAGES ?= $(if $(RUN),$(or $(addprefix ./,$(sort $(dir $(shell grep -rlE --include='*_test.go' '^func ($(firstword $(subst /, ,$(RUN))))' cmd fleet internal)))),$(error no test of cmd, fleet and internal is named $(RUN); for recipes and release: cd recipes && $(APART) go test -run '$(RUN)')),./...)

.PHONY: test
test: export TRUEUP_MACHINE = $(MACHINE)
# Debug symbols are not linked: a sixth of the time to build all tests. Packages have memory to spare and collect
# seldom, except cmd/trueup, which measures the memory of programs.
test: export GOFLAGS += -ldflags=-w
test: export GOGC ?= 400
test: ## the tests, but for guests, browsers and races; RUN=TestName for one. A test whose tool is missing is skipped
	@mkdir -p .cache $(if $(RUN),,&& rm -f .cache/later)
	@$(GO) run ./internal/disktest/outcome $(if $(RUN),,-later .cache/later) -- $(GO) test -json -vet=off -timeout 10h \
		-parallel 3 $(if $(CI),-count=1) $(if $(RUN),-run '$(RUN)') $(PACKAGES)

.PHONY: test-all
test-all: export REQUIRE_TOOLS = 1
test-all: tools ## every test, with all tools (as root): guests, browsers, libguestfs, races, fleet, other systems

	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-further

# Tests not in test. The two run side by side, since either leaves processors idle.
.PHONY: test-further test-machines test-race
test-further: export REQUIRE_TOOLS ?= 1
test-further:
	@$(MAKE) --no-print-directory -j2 test-machines test-race
	@$(MAKE) --no-print-directory test-systems
test-machines: export TRUEUP_TESTS = all
test-machines: boots
	@while read -r package tests; do \
		$(GO) test -count=1 -timeout 10h -run "$$tests" -skip '$(BOOTS)' "$$package" </dev/null; \
	done <.cache/later
test-race: export GOGC ?= 400
test-race:
	TRUEUP_TESTS=all $(GO) test -vet=off -count=1 -race -p 1 -timeout 10h -skip '$(COMPUTES)|$(SOURCES)' $(RACED:%=./internal/%) $(RACED_FLEET:%=./fleet/%)
	TRUEUP_TESTS=all $(GO) test -vet=off -count=1 -p 1 -timeout 10h -run '$(COMPUTES)' ./fleet/web
	$(GO) test -vet=off -count=1 -p 1 -timeout 10h $(filter-out $(addprefix %/fleet/,$(RACED_FLEET)),$(shell $(GO) list ./fleet/...))

# Tests with guests, and others of which test runs a share (disktest.Exhaustive). CI runs both in full.
BOOTS := Boots?$$|^Test(DisksThatLinuxMakes|StoredBootEntriesAfterTheMove|DOSFindsItsLogicalDrives)$$
SHARED := ^Test(LargestGPT|ScanLibrary|ScanOfManyFiles|ServePrintsCommands|BitLockerVolumesOfData|JudgeOfLibguestfs|Linux.*|EveryPairOfFormats|Hostile.*|HugeImages|EveryOptionOfQemu|HotWindows10|InPlaceIsTheCopy|ScanOfHostileImages)$$

# test tries a share of the failing or last calls of a process, and of the files that stand at a target's path;
# torture kills an exchange at each of its calls.
# Random disks and mutants in both sector sizes are with them.
CALLS := ^Test(EveryCall.*|KilledAtEveryCall|OneVerdict|Places|.*InBothSectorSizes)$$

.PHONY: exhaustive
exhaustive: export REQUIRE_TOOLS ?= 1
exhaustive: export TRUEUP_EXHAUSTIVE := 1
exhaustive: ## every case of the tests that test runs in part: random tables and disks, hostile images, calls that fail, libraries, libguestfs, pairs of formats; races of the formats
	$(GO) test -count=1 -timeout 60m ./internal/plan ./internal/scan/results
	$(GO) test -count=1 -timeout 60m -run '$(CALLS)' ./internal/cli ./internal/exchange ./internal/image ./internal/image/store ./internal/inplace ./internal/realign
	@$(GO) test -list '$(SHARED)' ./cmd/... | grep -x TestScanLibrary
	$(GO) test -count=1 -timeout 60m -run '$(SHARED)' ./cmd/...
	$(GO) test -count=1 -race -short -skip '$(UNRACED)' -timeout 60m $(RACED_SHARE:%=./internal/%)

.PHONY: race
race: export REQUIRE_TOOLS ?= 1
race: ## the race detector over every package in full
	$(GO) test -count=1 -race -timeout 60m ./internal/... ./fleet/...

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (60s) each
	@ulimit -v $(FUZZ_MEMORY); \
	packages=$$($(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... ./fleet/...); \
	for package in $$packages; do \
		listed=$$($(GO) test -list '^Fuzz' "$$package"); \
		for target in $$(grep '^Fuzz' <<<"$$listed"); do \
			echo "== $$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s "$$package"; \
		done; \
	done

.PHONY: stress
stress: ## tests of signals, scans and kills: alone, beside work, under nohup, in the background, as an ordinary user
	scripts/stress.sh

.PHONY: stress-suite
stress-suite: ## make test beside LOOPS (10) busy processes for each processor, as root and as an ordinary user; some hours
	scripts/stress-suite.sh $(LOOPS)

.PHONY: filesystems
filesystems: ## align to ext4, FAT, exFAT, SMB and NFS of a Linux kernel in a virtual machine; installs Samba and Ganesha (as root)
	scripts/filesystems.sh

.PHONY: torture
torture: export TRUEUP_TESTS = all
torture: ## kill -9 at 2000 points of an align instead of 32, and at every call of an exchange; power cuts of moves; logs of NTFS replayed by a specially built Linux
	@$(GO) test -list '^TestKill$$' ./cmd/... | grep -x TestKill
	scripts/ntfs3-kernel.sh
	TRUEUP_NTFS3=1 $(GO) test -count=1 -timeout 1h -v -run '^TestReplayByNTFS3$$' ./internal/fs/ntfs
	TRUEUP_CRASHES=6 $(GO) test -count=1 -timeout 1h -v -run '^Test(Crashes.*|FailedCalls|KilledThenPower)$$' ./internal/inplace
	TRUEUP_KILLS=2000 $(GO) test -count=1 -timeout 6h -v -run '^TestKill(edMoves(OnDevice)?)?$$' ./cmd/...
	TRUEUP_SHARES=all TRUEUP_KILLS=all $(GO) test -count=1 -timeout 1h -v -run '^Test(KilledAtEveryCall|EveryCallFails|EveryCallOfAnExchangeFails)$$' ./internal/exchange ./internal/image/store

.PHONY: chaos
chaos: ## IMAGES images (200) of a fleet whose workers, servers, clocks, network and datastores fail, then with a cluster of nats-server, from SEED on; installs nats-server (as root)
	scripts/install-tools.sh chaos
	SEED=$(SEED) scripts/chaos.sh

.PHONY: soak
soak: ## DISKS random disks (500) and 4 mutants of each against qemu-img and sfdisk, then SEEDS disks (200) aligned and 100 times as many hives; from SEED on
	@$(GO) test -list '^TestDifferential$$' ./internal/cli | grep -x TestDifferential
	@$(GO) test -list '^TestSoak$$' ./cmd/... | grep -x TestSoak
	TRUEUP_DIFFER=$(DISKS) TRUEUP_DIFFER_SEED=$(SEED) TRUEUP_DIFFER_MUTANTS=4 REQUIRE_TOOLS=1 \
		$(GO) test -count=1 -timeout 24h -run '^TestDifferential$$' ./internal/cli
	TRUEUP_HIVES=$(SEEDS)00 TRUEUP_HIVES_SEED=$(SEED) $(GO) test -count=1 -timeout 24h -run '^TestRandomHives$$' ./internal/hive
	TRUEUP_SOAK=$(SEEDS) TRUEUP_SOAK_SEED=$(SEED) $(GO) test -count=1 -timeout 24h -run '^TestSoak$$' ./cmd/...

# A mutant without a length check can allocate any amount of memory.
.PHONY: mutants
mutants: ## delete each check, flush and patch of the pipe in turn; a test must fail. MUTANTS='-packages plan,verify' for some
	ulimit -v $$((2 * $(FUZZ_MEMORY))); nice $(GO) run ./internal/disktest/mutants $(MUTANTS)

.PHONY: boots
boots: export REQUIRE_TOOLS ?= 1
boots: export TRUEUP_EXHAUSTIVE := 1
boots: ## start every bootable disk before and after the move; test starts one of each family
	@$(GO) test -list '$(BOOTS)' ./cmd/... | grep -x TestAlignedGrub2InTheGapBoots
	$(GO) test -count=1 -timeout 2h -run '$(BOOTS)' ./cmd/...

.PHONY: handover
handover: export REQUIRE_TOOLS ?= 1
handover: export TRUEUP_TESTS = all
handover: ## guests that work while their disks are handed over: Linux, FreeDOS, a domain of libvirt; kills at KILLS points (300)
	@$(GO) test -list '^TestHandover' ./cmd/... | grep -x TestHandoverOfALinuxGuest
	TRUEUP_SHARES=all TRUEUP_KILLS=$(KILLS) $(GO) test -count=1 -timeout 6h -run '^TestHandover' ./cmd/...

.PHONY: opinions
opinions: export REQUIRE_TOOLS ?= 1
opinions: export TRUEUP_TESTS = all
opinions: ## have qemu-img and libguestfs judge a copy of each kind of volume, and find a changed byte in each
	@$(GO) test -list '^TestOpinions$$' ./cmd/... | grep -x TestOpinions
	TRUEUP_OPINIONS=1 $(GO) test -count=1 -timeout 2h -v -run '^TestOpinions$$' ./cmd/...

.PHONY: bench
bench: build ## every row beside its yardstick, into docs/dev/benchmarks.md; moves in place; serve
	scripts/bench.py --rounds $(ROUNDS)
	ROUNDS=$(ROUNDS) scripts/bench-inplace.sh
	ROUNDS=$(ROUNDS) scripts/bench-serve.sh

.PHONY: clean
clean: ## remove what make and the README's commands made
	rm -rf bin dist .cache .release-* aligned*.vmdk .*.partial
