# The commands that people type. `make help` lists them; each says what it installs before it does.

MODEL ?= smollm2-135m
PROMPT ?= What is 2 + 2?
TRACE ?= functions
SERVE ?= 1
FUZZ_SECONDS ?= 600
JOBS ?= $(shell nproc)

CUTAWAY := build/release/cutaway
MODEL_FILE := $(or $(CUTAWAY_HOME),$(HOME)/.cache/cutaway)/models/$(MODEL).gguf
# A cargo that is new enough may be in a directory that PATH does not name, or names too late.
WITH_CARGO := export PATH="$$(tools/bootstrap.sh cargo):$$PATH";
export PROMPT

.DEFAULT_GOAL := help
.PHONY: help build run test sanitize peers fuzz soak compare tidy format clean bootstrap bootstrap-test

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | \
	  while IFS="$$(printf '\t')" read -r name what; do printf '  make %-10s %s\n' "$$name" "$$what"; done

bootstrap:
	@tools/bootstrap.sh build

bootstrap-test:
	@tools/bootstrap.sh test

build: bootstrap ## the release program, at build/release/cutaway
	@mkdir -p build
	@$(WITH_CARGO) cmake --preset release -DCUTAWAY_TESTS=OFF > build/configure-release.log 2>&1 || \
	  { cat build/configure-release.log; exit 1; }
	@$(WITH_CARGO) cmake --build build/release --parallel $(JOBS)

run: build ## installs, builds, gets the default model, answers a first prompt with its trace
	@$(CUTAWAY) pull $(MODEL)
	@$(CUTAWAY) run -m $(MODEL) --trace $(TRACE) "$$PROMPT"
	@if [ "$(SERVE)" != 0 ]; then \
	  echo "make run ends here: this version has no server yet (SERVE=0 leaves this line out)." >&2; fi

test: bootstrap-test ## builds, and runs the test suite; the last line counts what passed and failed
	@$(WITH_CARGO) python3 tools/run_tests.py --jobs $(JOBS)

sanitize: bootstrap-test ## the whole suite under ASan + UBSan, then under TSan
	@$(WITH_CARGO) python3 tools/run_tests.py --jobs $(JOBS) --preset asan-ubsan --only build,ctest
	@$(WITH_CARGO) python3 tools/run_tests.py --jobs $(JOBS) --preset tsan --only build,ctest

fuzz: bootstrap-test ## every fuzzer for FUZZ_SECONDS (600) on its saved corpus
	@$(WITH_CARGO) python3 tools/run_tests.py --jobs $(JOBS) --only fuzz --fuzz-seconds $(FUZZ_SECONDS)

peers: ## the environments of the reference and of the peer (torch, llama.cpp), then the comparisons with them
	@tools/bootstrap.sh peers
	@tools/peers.sh
	@$(MAKE) --no-print-directory build
	@$(CUTAWAY) pull $(MODEL)
	@python3 tools/run_tests.py --jobs $(JOBS) --only peers --binary $(CUTAWAY)

compare: build ## speed, start and memory against llama.cpp, side by side on this machine (about an hour)
	@tools/peers.sh llama_cpp
	@$(CUTAWAY) pull $(MODEL)
	@bench/make_types.py -m "$(MODEL_FILE)" > build/types.json
	@python3 bench/compare.py --set targets --bin $(CUTAWAY) --results bench/results > build/compare.json
	@cat build/compare.json

soak: ## mixed traffic for 100 minutes (arrives with the server)
	@echo "soak: mixed traffic needs the server, which this version does not have yet" >&2; exit 1

tidy: bootstrap-test ## clang-tidy over every C++ source
	@$(WITH_CARGO) python3 tools/run_tests.py --jobs $(JOBS) --only tidy

format: ## clang-format over every C++ file, in place
	@python3 tools/check_style.py --fix

clean: ## removes build/
	rm -rf build
