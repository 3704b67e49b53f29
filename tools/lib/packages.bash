# Sourced by the commands in tools/: installs the packages of tools/packages.txt.
# shellcheck shell=bash
: "${troupe_root:?is set by build.bash}"

# listed_packages SECTION: prints the names in that section.
listed_packages() {
  awk -v want="[$1]" '/^\[/ { section = $1; next } section == want && NF && $1 !~ /^#/ { print $1 }' \
    "$troupe_root/tools/packages.txt"
}

# missing_packages NAME...: prints those that are not installed.
missing_packages() {
  local installed
  # dpkg-query fails for an unknown package but still prints the others.
  # shellcheck disable=SC2016 # the format is dpkg-query's
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
  printf '%s\n' "$@" | awk -v installed="$installed" '
    BEGIN { n = split(installed, lines, "\n"); for (i = 1; i <= n; i++) { split(lines[i], f, " "); if (f[2] == "installed") have[f[1]] } }
    !($1 in have)'
}

# Prints the prefix that runs apt-get as root; fails if there is no way to become root.
root_prefix() {
  if [[ $(id -u) == 0 ]]; then
    return 0
  fi
  command -v sudo >/dev/null || return 1
  if sudo -n true 2>/dev/null; then
    printf 'sudo -n'
  elif [[ -t 0 && -t 2 ]]; then
    printf 'sudo'
  else
    return 1
  fi
}

install_packages() {
  local log=$1 prefix
  shift
  if ! prefix=$(root_prefix); then
    stop 2 "$# packages are missing, and only root can install them. Run this, then the same command again:" \
      "sudo apt-get update && sudo apt-get install --no-install-recommends -y $*"
  fi
  say_phase "Installing packages: $* ($# of them, about a minute for all)"
  local -a as_root=()
  read -ra as_root <<<"$prefix"
  local -a apt=(${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  run_logged "apt-get update" "$log" "${apt[@]}" update
  run_logged "apt-get install" "$log" "${apt[@]}" install -y --no-install-recommends "$@"
}

# Without apt: lists the required packages, and continues if the tools themselves are present.
check_tools() {
  local tool
  say_phase "This system has no apt. Troupe needs the content of these Debian packages (tools/packages.txt explains why):"
  # shellcheck disable=SC2046 # names without blanks
  say $(listed_packages needed)
  for tool in g++ cmake ninja pkg-config capnp; do
    command -v "$tool" >/dev/null ||
      stop 2 "$tool is not in PATH." "Install it with this system's package manager, then run the same command again."
  done
}

# ensure_packages SECTION...: installs the missing packages of these sections.
ensure_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    check_tools
    return
  fi
  local section
  local -a names=() missing=()
  for section in "$@"; do
    mapfile -t -O "${#names[@]}" names <<<"$(listed_packages "$section")"
  done
  mapfile -t missing <<<"$(missing_packages "${names[@]}")"
  if [[ -z ${missing[0]} ]]; then
    say_phase "Packages: all ${#names[@]} are installed"
    return
  fi
  mkdir -p "$(troupe_cache)/logs"
  install_packages "$(new_log packages)" "${missing[@]}"
  # CMake may now find what it did not find before.
  rm -f "$troupe_root"/build/*/.troupe-configured
}
