# Sourced by the tests of the installed package, with the options that ctest gives to them: makes a temporary directory, which is
# removed at the end, and installs the build there.
# shellcheck shell=bash

# shellcheck disable=SC2034  # for those who source this
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
declare -A option
while [[ $# -gt 0 ]]; do
  option[${1#--}]=$2
  shift 2
done

scratch=$(mktemp -d)
prefix=$scratch/prefix
# Processes that end with the test.
background=()
clean_up() {
  for pid in ${background[@]+"${background[@]}"}; do kill "$pid" 2>/dev/null || true; done
  wait
  rm -rf "$scratch"
}
trap clean_up EXIT

# fail WHAT FILE...: ends the test, and prints the files.
fail() {
  printf 'FAILED: %s\n' "$1"
  shift
  [[ $# -eq 0 ]] || cat "$@"
  exit 1
}

say() { printf -- '-- %s (second %d)\n' "$1" "$SECONDS"; }

# attempt WHAT COMMAND...: prints nothing unless the command fails.
attempt() {
  local what=$1
  shift
  say "$what"
  "$@" >"$scratch/log" 2>&1 || fail "$what" "$scratch/log"
}

install_package() { attempt "installing" "${option[cmake]}" --install "${option[build]}" --prefix "$prefix"; }

# configure SOURCE BUILD: uses the build's compiler, to match the compiler cache and the sanitizers, but nothing else of the build.
configure() {
  "${option[cmake]}" -S "$1" -B "$2" -G "${option[generator]}" -DCMAKE_BUILD_TYPE="${option[config]}" \
    -DCMAKE_CXX_COMPILER="${option[compiler]}" -DCMAKE_CXX_COMPILER_LAUNCHER="${option[launcher]}" \
    -DCMAKE_CXX_FLAGS="${option[flags]}" -DCMAKE_PREFIX_PATH="$prefix;${option[caf]%/lib*/cmake/*}"
}

state_of() { sed -n 's/^state \([0-9a-f]\{64\}\)$/\1/p' "$1"; }

# Workers run programs of the scratch directory, so no process may execute one any more.
check_nothing_runs() {
  local left
  left=$(find /proc/[0-9]*/exe -lname "$scratch/*" -printf '%h -> %l\n' 2>/dev/null || true)
  [[ -z $left ]] || fail "still running: $left"
}
