# Sourced by the commands in tools/: set-up, configuration and build.
# shellcheck shell=bash

troupe_root=$(cd "${BASH_SOURCE[0]%/*}/../.." && pwd -P)
# shellcheck source=tools/lib/report.bash
source "$troupe_root/tools/lib/report.bash"
# shellcheck source=tools/lib/packages.bash
source "$troupe_root/tools/lib/packages.bash"
# shellcheck source=tools/lib/caf.bash
source "$troupe_root/tools/lib/caf.bash"

# require_preset NAME
require_preset() {
  case $1 in
    release | dev | asan | tsan) ;;
    *) stop 2 "There is no preset '$1'." "Presets are release, dev, asan and tsan." ;;
  esac
}

# The programs use /proc to find their own files and their children. A bare root directory (chroot) lacks it.
ensure_proc() {
  [[ ! -e /proc/self/exe ]] || return 0
  say_phase "Mounting /proc, which this root directory lacks"
  mount -t proc proc /proc 2>/dev/null \
    || stop 2 "/proc is not mounted and cannot be mounted." "Mount it and run this again: mount -t proc proc /proc"
}

# troupe_setup PRESET [SECTION...]: installs missing packages (of section [needed] by default) and CAF. Sets caf_dir and
# caf_prefix.
troupe_setup() {
  local preset=$1 cache
  shift
  cache=$(troupe_cache)
  mkdir -p "$cache/logs" 2>/dev/null || true
  [[ -w $cache/logs ]] || stop 1 "Cannot write to the cache $cache." "Name another directory: TROUPE_CACHE=DIRECTORY $0"
  [[ $# -gt 0 ]] || set -- needed
  ensure_packages "$@"
  ensure_proc
  ensure_caf "$preset"
}

# Identifies what a build directory was configured from. It is configured again when this changes.
configuration_identity() {
  printf '%s\n%s\n' "$troupe_root" "$caf_dir"
  cksum <"$troupe_root/CMakePresets.json"
}

# configure PRESET: configures build/PRESET if necessary. Uses caf_dir and caf_prefix from troupe_setup.
configure() {
  local preset=$1 dir="$troupe_root/build/$1" identity
  local stamp="$dir/.troupe-configured"
  identity=$(configuration_identity)
  if [[ -e $dir/build.ninja && $(cat "$stamp" 2>/dev/null || true) == "$identity" ]]; then
    return
  fi
  local -a options=(--preset "$preset" "-DCAF_DIR=$caf_dir")
  [[ -z $caf_prefix ]] || options+=("-DCMAKE_PREFIX_PATH=$caf_prefix")
  # A build directory contains the path of its sources.
  if [[ -e $dir/CMakeCache.txt ]] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$troupe_root" "$dir/CMakeCache.txt"; then
    options+=(--fresh)
  fi
  say_phase "Configuring build/$preset"
  mkdir -p "$dir"
  : >"$dir/configure.log"
  cd "$troupe_root" || exit
  run_logged "Configuring build/$preset" "$dir/configure.log" cmake "${options[@]}"
  printf '%s\n' "$identity" >"$stamp"
}

# configure_torch PRESET DIRECTORY: takes LibTorch from there; from find_package if it is empty. The build directory remembers it.
configure_torch() {
  local preset=$1 torch=$2
  configure "$preset"
  say_phase "Configuring build/$preset with ${torch:-the LibTorch that CMake finds}"
  cd "$troupe_root" || exit
  run_logged "Configuring build/$preset" "$troupe_root/build/$preset/configure.log" cmake -B "build/$preset" "-DTROUPE_TORCH=$torch" -S .
}

# build PRESET [TARGET...]: shows progress on a terminal, otherwise writes a log.
build() {
  local preset=$1 started=$SECONDS
  export CCACHE_STATSLOG="$troupe_root/build/$1/ccache.log"
  shift
  rm -f "$CCACHE_STATSLOG"
  local -a command=(cmake --build --preset "$preset" -j "$(parallel_jobs)")
  [[ $# -eq 0 ]] || command+=(--target "$@")
  cd "$troupe_root" || exit
  if [[ -t 1 ]]; then
    "${command[@]}" || stop 1 "Building build/$preset failed." \
      "The first line with FAILED shows the cause. Repair it and run the same command again."
  else
    : >"build/$preset/build.log"
    run_logged "Building build/$preset" "$troupe_root/build/$preset/build.log" "${command[@]}"
  fi
  say "built in $((SECONDS - started)) s$(cache_use "$CCACHE_STATSLOG")"
}

# cache_use LOG: how many objects of a build came from ccache; nothing where none was compiled.
cache_use() {
  [[ -s $1 ]] || return 0
  awk '/^(direct|preprocessed)_cache_hit$/ { hits++ } /^cache_miss$/ { misses++ }
    END { if (hits + misses) printf "; ccache had %d of %d objects", hits, hits + misses }' "$1"
}

# troupe_configure_and_build PRESET [TARGET...]: builds everything by default.
troupe_configure_and_build() {
  local preset=$1
  shift
  configure "$preset"
  say_phase "Building build/$preset: ${*:-everything} (some minutes the first time on two cores, seconds after that)"
  build "$preset" "$@"
}
