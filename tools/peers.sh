#!/usr/bin/env bash
# The environments of the oracles and of the peer: ${CUTAWAY_HOME:-~/.cache/cutaway}/peers/NAME.
#
#   tools/peers.sh [torch] [llama_cpp]      without a name: both
#   tools/peers.sh lens                     TransformerLens, and what draws attention
#   tools/peers.sh tokenizers               the little of torch's that the tokenizer oracle needs
#
# Each is made once, from pinned versions (tools/peers/NAME.txt); a second call does nothing.
# llama_cpp is built from its source package for this machine's own CPU: about 7 minutes on two
# cores. Needs python3 with venv, and for llama_cpp a C++ compiler and CMake.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
home="${CUTAWAY_HOME:-$HOME/.cache/cutaway}/peers"

die() { echo "peers.sh: $*" >&2; exit 1; }

# make_env NAME [pip option…]: the stamp holds the requirements that the environment was made of.
make_env() {
  local name="$1" env="$home/$1" wanted="$here/peers/$1.txt"
  shift
  local stamp="$env/cutaway-requirements.txt"
  if [[ -x "$env/bin/python" ]] && cmp -s "$wanted" "$stamp"; then
    echo "$name: already there ($env)"
    return
  fi
  # An environment that already holds exactly these versions needs only its stamp.
  if [[ -x "$env/bin/python" ]] && has_all "$env" "$wanted"; then
    cp "$wanted" "$stamp"
    echo "$name: already installed ($env)"
    return
  fi
  echo "$name: installing into $env"
  mkdir -p "$home"
  python3 -m venv "$env"
  "$env/bin/python" -m pip install --quiet --disable-pip-version-check "$@" -r "$wanted"
  cp "$wanted" "$stamp"
  echo "$name: done"
}

# has_all ENV FILE: every pinned line of FILE is installed in ENV.
has_all() {
  local installed
  installed="$("$1/bin/python" -m pip list --disable-pip-version-check --format=freeze | tr _ -)"
  ! grep -v '^#' "$2" | grep -vxiF -f <(echo "$installed") | grep -q .
}

names=("$@")
[[ ${#names[@]} -gt 0 ]] || names=(torch llama_cpp)
for name in "${names[@]}"; do
  case "$name" in
    torch | tokenizers | lens) make_env "$name" ;;
    llama_cpp)
      CMAKE_ARGS="-DGGML_NATIVE=ON" CMAKE_BUILD_PARALLEL_LEVEL="$(nproc)" \
        make_env llama_cpp --no-binary llama-cpp-python ;;
    *) die "no such environment: $name (torch, llama_cpp, tokenizers, lens)" ;;
  esac
done
