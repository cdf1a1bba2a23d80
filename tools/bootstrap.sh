#!/usr/bin/env bash
# Installs what a Debian 12 machine lacks, and says what before it does. Does nothing twice.
#
#   tools/bootstrap.sh build     what `make build` needs (the default)
#   tools/bootstrap.sh test      that, and what `make test`, `sanitize`, `fuzz` and `tidy` need
#   tools/bootstrap.sh peers     what `make peers` needs beyond them: a browser
#   tools/bootstrap.sh all       what test installs, and Google Benchmark
#   tools/bootstrap.sh cargo     prints the directory of a cargo that is new enough
#
# Works as root and as a user with sudo. Nothing is downloaded when everything is there.
set -euo pipefail

readonly min_rust="1.87"
readonly build_packages=(
  g++ cmake ninja-build pkg-config ccache mold ca-certificates
  libssl-dev nlohmann-json3-dev libutf8proc-dev libxxhash-dev libcli11-dev libfmt-dev libedit-dev
  libzip-dev libcurl4-openssl-dev
  python3 python3-pip python3-venv)
readonly test_packages=(
  libgtest-dev libgmock-dev googletest g++-aarch64-linux-gnu qemu-user python3-jsonschema
  universal-ctags binutils clang-19 libclang-rt-19-dev clang-tidy-19 clang-format-19 llvm-19)
readonly peers_packages=(chromium fonts-noto-cjk)
readonly all_packages=(libbenchmark-dev)

die() { echo "bootstrap: $*" >&2; exit 1; }

# The directory of a cargo whose rustc is new enough: the machine's own first.
find_cargo() {
  local directory version
  local -a candidates=()
  IFS=: read -r -a candidates <<<"$PATH"
  candidates+=("${CARGO_HOME:-$HOME/.cargo}/bin" /usr/bin)
  for directory in "${candidates[@]}"; do
    [[ -x "$directory/cargo" && -x "$directory/rustc" ]] || continue
    version="$("$directory/rustc" --version 2>/dev/null | cut -d' ' -f2)" || continue
    if [[ -n "$version" && "$(printf '%s\n' "$min_rust" "$version" | sort -V | head -n1)" == "$min_rust" ]]
    then
      echo "$directory"
      return 0
    fi
  done
  return 1
}

missing_of() {
  local package
  local -A installed=()
  while read -r status package; do
    [[ "$status" == ii ]] && installed["${package%%:*}"]=1
  done < <(dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' "$@" 2>/dev/null || true)
  for package in "$@"; do
    [[ -n "${installed[$package]:-}" ]] || echo "$package"
  done
}

# Debian's HTTP mirrors drop a connection now and then: three tries.
apt() {
  local -a command=(apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
  local -a as_root=()
  if [[ "$(id -u)" != 0 ]]; then
    command -v sudo >/dev/null || die "neither root nor sudo: ask an administrator to run
  apt-get install --no-install-recommends ${missing[*]}"
    as_root=(sudo)
  fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "${command[@]}" "$@" </dev/null
}

profile="${1:-build}"
case "$profile" in
  build) wanted=("${build_packages[@]}") ;;
  test) wanted=("${build_packages[@]}" "${test_packages[@]}") ;;
  peers) wanted=("${build_packages[@]}" "${peers_packages[@]}"); command -v node >/dev/null || wanted+=(nodejs) ;;
  all) wanted=("${build_packages[@]}" "${test_packages[@]}" "${all_packages[@]}") ;;
  cargo) find_cargo || die "no cargo of Rust $min_rust or newer: tools/bootstrap.sh build"; exit 0 ;;
  *) die "no such profile: $profile (build, test, peers, all, cargo)" ;;
esac

command -v dpkg-query >/dev/null || die "this is not a Debian system; install the equivalents of:
  ${wanted[*]} and Rust $min_rust or newer"

mapfile -t missing < <(missing_of "${wanted[@]}")
find_cargo >/dev/null || missing+=(rustc-web cargo-web)
[[ ${#missing[@]} -gt 0 ]] || exit 0

echo "bootstrap: installing with apt-get: ${missing[*]}" >&2
apt update -qq >&2
apt install -y -qq --no-install-recommends "${missing[@]}" >&2
find_cargo >/dev/null || die "cargo is installed, but older than Rust $min_rust"
echo "bootstrap: done" >&2
