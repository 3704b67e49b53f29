# Sourced by the commands in tools/: finds an installed CAF, or builds one from Debian's source package into a cache outside
# the checkout.
# shellcheck shell=bash

# Without a sanitizer, an installed CAF >= 0.18.7 and < 1.2 is used. Otherwise this version is built.
caf_version=0.18.7
caf_sha256=d5c3abe8fd67a729aab1baeece10367637d903ba335f4c79378bcadfbcd34552

troupe_cache() {
  local home=~ # also without HOME
  printf '%s\n' "${TROUPE_CACHE:-${XDG_CACHE_HOME:-$home/.cache}/troupe}"
}

# new_log NAME: prints the path of an empty log.
new_log() {
  local log
  log="$(troupe_cache)/logs/$1.log"
  : >"$log"
  printf '%s\n' "$log"
}

# Sanitizers need a CAF that was built with them; otherwise CAF's queues look like races.
caf_flavour() {
  case $1 in
    asan | tsan) printf '%s\n' "$1" ;;
    *) printf 'release\n' ;;
  esac
}

# g++ 13 and later no longer include <cstdint> by the way, on which CAF 0.18 relies.
caf_flags() {
  local flags="-include cstdint"
  case $1 in
    asan) flags+=" -fsanitize=address,undefined -fno-omit-frame-pointer" ;;
    tsan) flags+=" -fsanitize=thread -fno-omit-frame-pointer" ;;
  esac
  printf '%s\n' "$flags"
}

# Whether a prefix contains a complete CAF. An interrupted build never gets there, because the rename is its last step.
caf_is_whole() {
  local file
  for file in lib/cmake/CAF/CAFConfig.cmake lib/cmake/CAF/CAFTargets-release.cmake include/caf/io/middleman.hpp \
    lib/libcaf_core.a lib/libcaf_io.a; do
    [[ -s $1/$file ]] || return 1
  done
}

# caf_cached FLAVOUR: prints the prefix of the CAF in the cache; prefers our version, then the newest.
caf_cached() {
  local cache candidate
  cache=$(troupe_cache)
  local -a candidates=("$cache/caf-$caf_version-$1")
  while IFS= read -r candidate; do
    candidates+=("$candidate")
  done <<<"$(printf '%s\n' "$cache"/caf-*-"$1" | sort -rV)"
  for candidate in "${candidates[@]}"; do
    if caf_is_whole "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  return 1
}

# Prints the directory of the CMake package of a suitable installed CAF; fails if there is none.
caf_installed() {
  local dir found
  dir=$(mktemp -d)
  cat >"$dir/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(find_caf LANGUAGES CXX)
find_package(OpenSSL QUIET)
find_package(CAF QUIET CONFIG COMPONENTS core io)
if(CAF_FOUND AND TARGET CAF::core AND TARGET CAF::io
   AND CAF_VERSION VERSION_GREATER_EQUAL 0.18.7 AND CAF_VERSION VERSION_LESS 1.2)
  file(WRITE ${CMAKE_BINARY_DIR}/found "${CAF_DIR}\n")
endif()
CMAKE
  cmake -S "$dir" -B "$dir/build" -G Ninja -DCMAKE_CXX_COMPILER_WORKS=ON >/dev/null 2>&1 || true
  found=$(cat "$dir/build/found" 2>/dev/null || true)
  rm -rf "$dir"
  [[ -n $found ]] && printf '%s\n' "$found"
}

# Prints the archives that apt is configured with, Debian's own first, without security archives, which lack other suites.
# Then TROUPE_DEBIAN_ARCHIVE, for systems such as Ubuntu, whose archives lack Debian's suites.
apt_mirrors() {
  local uris
  # shellcheck disable=SC2016 # the format is apt's
  uris=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null || true)
  if [[ -z $uris ]]; then
    # Without package lists, apt still prints where it would get them.
    uris=$(apt-get update --print-uris 2>/dev/null | sed -n "s|^'\(.*\)/dists/.*|\1|p" || true)
  fi
  printf '%s\n' "$uris" | awk -v named="${TROUPE_DEBIAN_ARCHIVE:-}" '
    { sub(/\/*$/, "") }
    /^$/ || /security/ || seen[$0]++ { next }
    /\/debian$/ { print; next }
    { others = others $0 "\n" }
    END { printf "%s", others; if (named != "") print named }'
}

# Writes a separate apt configuration. Read after the system's, it uses a single source list and keeps all state under
# $dir. The system's configuration does not change. $dir/doubt says why the index proves nothing, if so.
write_apt_configuration() {
  local dir=$1 mirror=$2 options
  local keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  if [[ -e $keyring ]]; then
    options="signed-by=$keyring"
  else
    # Not a Debian system: only the version with a known checksum is used.
    options="trusted=yes"
    printf 'is not verified without the package debian-archive-keyring' >"$dir/doubt"
  fi
  printf 'deb-src [%s] %s experimental main\n' "$options" "$mirror" >"$dir/sources.list"
  cat >"$dir/apt.conf" <<CONF
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::Etc::sourcelist "$dir/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$dir/lists";
Dir::Cache::srcpkgcache "";
Dir::Cache::pkgcache "";
CONF
  mkdir -p "$dir/lists/partial"
}

# download_from MIRROR DIR LOG: downloads the original source archive into DIR. Fails quietly if the mirror lacks it.
download_from() {
  local mirror=$1 dir=$2 log=$3
  local -a apt=(apt-get -q -c "$dir/apt.conf")
  write_apt_configuration "$dir" "$mirror"
  printf '\n# %s\n' "$mirror" >>"$log"
  if ! "${apt[@]}" update >"$dir/update.log" 2>&1; then
    cat "$dir/update.log" >>"$log"
    grep -q 'is expired' "$dir/update.log" || return 1
    # The mirror is outdated, or the clock is wrong. From such an index only the version with a known checksum is used.
    printf 'is out of date' >"$dir/doubt"
    apt+=(-o Acquire::Check-Valid-Until=false)
    "${apt[@]}" update >>"$log" 2>&1 || return 1
  fi
  (cd "$dir" && "${apt[@]}" source --download-only --tar-only actor-framework) >>"$log" 2>&1
}

# check_source FILE [DOUBT]: stops unless the archive is trusted. DOUBT: why the index that named it is not.
check_source() {
  local file=$1 doubt=${2:-} sum version
  version=$(source_version "$file")
  if [[ $version == "$caf_version" ]]; then
    sum=$(sha256sum "$file" | cut -d' ' -f1)
    [[ $sum == "$caf_sha256" ]] || stop 1 "The source of CAF $version is not the one that Troupe was tested with." \
      "file:     $file" "SHA-256:  $sum" "expected: $caf_sha256" \
      "Remove the file and try another mirror, or find out who changed it."
  elif [[ -n $doubt ]]; then
    stop 1 "The mirror's index $doubt, and offers CAF $version, for which no checksum is known." \
      "Check this machine's clock (it says $(date -u +%F)), or use another mirror in apt's sources."
  else
    say "NOTE: Debian's experimental suite now contains CAF $version instead of $caf_version: using it."
    say "apt has verified its signature; Troupe was tested with $caf_version."
  fi
}

source_version() {
  local name=${1##*/actor-framework_}
  printf '%s\n' "${name%.orig.tar.*}"
}

# fetch_caf_source LOG: sets caf_source to the verified archive in the cache.
fetch_caf_source() {
  local log=$1 sources dir mirror doubt="" file=""
  sources="$(troupe_cache)/sources"
  mkdir -p "$sources"
  caf_source="$sources/actor-framework_$caf_version.orig.tar.gz"
  if [[ -s $caf_source ]]; then
    check_source "$caf_source"
    return
  fi
  command -v apt-get >/dev/null || stop 1 "CMake finds no CAF >= $caf_version, and there is no apt to get its source." \
    "Install CAF $caf_version or later (core, io) and put its prefix into CMAKE_PREFIX_PATH," \
    "or put the source archive with SHA-256 $caf_sha256 at $caf_source."
  say "Fetching its source from Debian's experimental suite (3 MB)"
  dir=$(mktemp -d)
  # apt downloads as a separate user.
  chmod 755 "$dir"
  while IFS= read -r mirror; do
    [[ -n $mirror ]] || continue
    if download_from "$mirror" "$dir" "$log"; then
      file=$(find "$dir" -maxdepth 1 -name 'actor-framework_*.orig.tar.*' ! -name '*.asc' | head -n 1)
      break
    fi
    rm -f "$dir/doubt"
  done <<<"$(apt_mirrors)"
  if [[ -z $file ]]; then
    rm -rf "$dir"
    show_log "$log"
    stop 1 "Could not get the source package actor-framework from Debian's experimental suite." \
      "The log is in $log. Is the network there?" \
      "Where apt's sources name no archive of Debian, as on Ubuntu, name one: TROUPE_DEBIAN_ARCHIVE=URL $0" \
      "Otherwise put the source archive with SHA-256 $caf_sha256 at $caf_source," \
      "or install CAF $caf_version or later and put its prefix into CMAKE_PREFIX_PATH."
  fi
  doubt=$(cat "$dir/doubt" 2>/dev/null || true)
  check_source "$file" "$doubt"
  caf_source="$sources/${file##*/}"
  mv "$file" "$caf_source.$$"
  mv "$caf_source.$$" "$caf_source"
  rm -rf "$dir"
}

# compile_caf FLAVOUR VERSION DIR LOG: configures, builds and installs the source in DIR/source to DIR/prefix. Only the modules that Troupe
# links: its TLS lies below CAF.
compile_caf() {
  local flavour=$1 version=$2 dir=$3 log=$4
  local -a options=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON
    -DCAF_ENABLE_EXAMPLES=OFF -DCAF_ENABLE_TESTING=OFF -DCAF_ENABLE_TOOLS=OFF -DCAF_ENABLE_OPENSSL_MODULE=OFF
    -DCMAKE_INSTALL_PREFIX="$dir/prefix" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_CXX_FLAGS="$(caf_flags "$flavour")"
    -DCMAKE_CXX_FLAGS_RELEASE="-O2 -DNDEBUG")
  [[ $version != "$caf_version" ]] || options+=(-DCMAKE_PROJECT_CAF_INCLUDE="$troupe_root/tools/cmake/CafUnity.cmake")
  run_logged "Configuring CAF" "$log" cmake -S "$dir/source" -B "$dir/build" "${options[@]}"
  run_logged "Building CAF" "$log" cmake --build "$dir/build" -j "$(parallel_jobs)"
  run_logged "Installing CAF" "$log" cmake --install "$dir/build"
  caf_is_whole "$dir/prefix" || stop 1 "The build of CAF in $dir is incomplete." "The log is in $log."
}

# build_caf FLAVOUR: builds CAF into the cache. Works in a temporary directory beside the final one; the rename is the last
# step.
build_caf() {
  local flavour=$1 cache log work version started=$SECONDS
  cache=$(troupe_cache)
  log=$(new_log "caf-$flavour")
  say_phase "Building CAF $caf_version ($flavour), about a minute on two cores, once. Log: $log"
  fetch_caf_source "$log"
  version=$(source_version "$caf_source")
  # We hold the lock, so remains of an interrupted build can be removed.
  work="$cache/building-$version-$flavour"
  rm -rf "$work"
  mkdir -p "$work/source"
  run_logged "Unpacking $caf_source" "$log" tar -xf "$caf_source" -C "$work/source" --strip-components=1
  compile_caf "$flavour" "$version" "$work" "$log"
  rm -rf "$cache/caf-$version-$flavour"
  mv -T "$work/prefix" "$cache/caf-$version-$flavour"
  rm -rf "$work"
  say "CAF $version is in $cache/caf-$version-$flavour ($((SECONDS - started)) s)"
}

# build_caf_once FLAVOUR: as build_caf, but concurrent set-ups build it once.
build_caf_once() {
  local cache lock
  cache=$(troupe_cache)
  exec {lock}>"$cache/.lock-$1"
  if ! flock -n "$lock"; then
    say_phase "Another set-up is building CAF ($1): waiting for it"
    flock "$lock"
  fi
  caf_cached "$1" >/dev/null || build_caf "$1"
  exec {lock}>&-
}

# ensure_caf PRESET: sets caf_dir, the directory of CAF's CMake package, and caf_prefix, the entry for CMAKE_PREFIX_PATH
# (empty for an installed CAF, which CMake finds without it).
ensure_caf() {
  local flavour
  flavour=$(caf_flavour "$1")
  caf_prefix=""
  if [[ $flavour == release ]] || ! command -v apt-get >/dev/null; then
    if caf_dir=$(caf_installed); then
      say_phase "CAF: using the installed one, $caf_dir"
      [[ $flavour == release ]] || say "It was built without the sanitizer of preset $1: expect false reports about CAF itself."
      return
    fi
  fi
  caf_cached "$flavour" >/dev/null || build_caf_once "$flavour"
  caf_prefix=$(caf_cached "$flavour")
  caf_dir="$caf_prefix/lib/cmake/CAF"
  say_phase "CAF: $caf_prefix"
}
