# Sourced by tools/test: LightGBM's library for the tests that train with it. No Debian package has it.
# shellcheck shell=bash

# Fetches it from the Python package index into the cache, once, and names it in TROUPE_LIGHTGBM. Goes on without it where there is
# no pip or no network: those tests are left out then.
offer_lightgbm() {
  local directory library
  directory=$(troupe_cache)/lightgbm
  library=$directory/lightgbm/lib/lib_lightgbm.so
  [[ -z ${TROUPE_LIGHTGBM:-} ]] || return 0
  if [[ ! -s $library ]]; then
    say "Fetching LightGBM's library (4 MB) into $directory"
    mkdir -p "$(troupe_cache)/logs"
    if ! timeout 120 python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --target "$directory" \
      'lightgbm>=4.3,<5' >"$(troupe_cache)/logs/lightgbm.log" 2>&1; then
      say "Without LightGBM's library: pip has not fetched it ($(troupe_cache)/logs/lightgbm.log). The tests that train with it are left out."
      return 0
    fi
  fi
  export TROUPE_LIGHTGBM=$library
}
