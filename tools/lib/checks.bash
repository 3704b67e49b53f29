# Sourced by tools/check and .ci/run: format, scripts, class names and clang-tidy, the same for both.
# shellcheck shell=bash
: "${troupe_root:?is set by build.bash}"

# Debian 12's default, 14, cannot read the ranges of its own libstdc++.
clang_tidy=$(command -v clang-tidy-19 || command -v clang-tidy || printf 'clang-tidy-19\n')

failed_checks=()
skipped_checks=()

# check STEP COMMAND...: runs the step in a shell of its own, so that its end is not ours. Adds it to failed_checks when it fails.
check() {
  local step=$1 status=0
  shift
  say_phase "Check: $step"
  # Not `("$@") || ...`, where errors inside the step would not end it.
  set +e
  (set -e; "$@")
  status=$?
  set -e
  [[ $status -eq 0 ]] || failed_checks+=("$step")
}

# check_with TOOL STEP COMMAND...: as check, where the tool is installed.
check_with() {
  local tool=$1
  shift
  if command -v "$tool" >/dev/null; then
    check "$@"
  else
    say_phase "Check: $1: skipped, $tool is not installed"
    skipped_checks+=("$1")
  fi
}

in_git() { git -C "$troupe_root" rev-parse --git-dir >/dev/null 2>&1; }

# The C++ files of the checkout, without what git ignores.
all_sources() {
  cd "$troupe_root" || return
  if in_git; then
    git ls-files -co --exclude-standard -- '*.cpp' '*.hpp'
  else
    find . \( -path ./build -o -path ./runs -o -path './.*' \) -prune -o \( -name '*.cpp' -o -name '*.hpp' \) -print |
      sed 's|^\./||'
  fi | sort -u | existing
}

# Of the files on standard input those that exist: what was removed and not committed yet is still listed.
existing() {
  while IFS= read -r file; do
    [[ ! -e $file ]] || printf '%s\n' "$file"
  done
}

# changed_sources COMMIT: the C++ files that differ from it, committed or not.
changed_sources() {
  cd "$troupe_root" || return
  {
    git diff --name-only --diff-filter=d "$1" -- '*.cpp' '*.hpp'
    git ls-files -o --exclude-standard -- '*.cpp' '*.hpp'
  } | sort -u
}

# latest_sources COUNT: the C++ files that the latest COUNT commits changed, the latest first.
latest_sources() {
  cd "$troupe_root" || return
  git log --max-count="$1" --no-merges --format= --name-only -- '*.cpp' '*.hpp' | awk '!seen[$0]++' | existing
}

check_format() {
  if ! all_sources | xargs -r -d '\n' clang-format --dry-run -Werror; then
    say "To mend it: clang-format -i FILE"
    return 1
  fi
}

check_scripts() {
  cd "$troupe_root" || return
  shellcheck -x tools/setup tools/quickstart tools/test tools/package tools/check tools/chaos tools/gpu-check tools/bench/collectives/run \
    tools/lib/*.bash tests/support/run_fuzzer tests/package/package_test tests/package/second_hour tests/package/lib.bash \
    tests/package/descriptions tests/package/debian_packages tests/package/bare_root tests/package/ssh_nodes tests/package/slurm tests/package/systemd_jobs \
    tools/deploy/ssh-nodes tools/deploy/slurm.sbatch tools/deploy/debian/p* .ci/run
}

# A qualified name belongs to one class. The tests are not read.
check_class_names() {
  cd "$troupe_root" || return
  if ! all_sources | grep -v '^tests/' | awk -f tools/lib/class_names.awk; then
    say "To mend it: rename the narrower class, or make the definitions one"
    return 1
  fi
}

# heavy_headers: "LIBRARY HEADER" for each of our headers that includes a library which takes a second or more to compile.
heavy_headers() {
  # shellcheck disable=SC2016 # for awk
  all_sources | grep '\.hpp$' | grep -v '^tests/' \
    | xargs awk '/^#include <(nlohmann\/json\.hpp|caf\/|CLI\/|httplib|torch\/|ATen\/)/ && !/fwd\.hpp/ {
        library = $2; sub(/^</, "", library); sub(/[\/.].*/, "", library); print library, FILENAME }' | LC_ALL=C sort -u
}

# check_heavy_headers: only the headers that tools/heavy_headers.txt names include such libraries, so that a change compiles while one waits.
check_heavy_headers() {
  cd "$troupe_root" || return
  if ! diff --label tools/heavy_headers.txt --label "the headers" -U 0 <(grep -v '^#' tools/heavy_headers.txt) <(heavy_headers); then
    say "To mend it: include the library in the sources, and its forward declarations here; or say in tools/heavy_headers.txt why not"
    return 1
  fi
}

# configure_lint: configures build/lint, which compiles nothing: clang-tidy reads each source by itself, and build/release compiles them together.
# Makes the headers that the build writes.
configure_lint() {
  local dir="$troupe_root/build/lint" identity
  identity=$(configuration_identity)
  if [[ $(cat "$dir/.troupe-configured" 2>/dev/null || true) != "$identity" ]]; then
    mkdir -p "$dir"
    : >"$dir/configure.log"
    run_logged "Configuring build/lint" "$dir/configure.log" cmake --preset release -B "$dir" -DTROUPE_UNITY=OFF "-DCAF_DIR=${caf_dir:?is set by troupe_setup}" \
      ${caf_prefix:+"-DCMAKE_PREFIX_PATH=$caf_prefix"}
    printf '%s\n' "$identity" >"$dir/.troupe-configured"
  fi
  run_logged "Writing headers in build/lint" "$dir/configure.log" ninja -C "$dir" serialization/schema/snapshot.capnp.h
}

# lint_units: of the files on standard input, the sources that clang-tidy is to read, in the same order: a source that build/lint compiles,
# and for a header a source that includes it, if possible a changed one. Without those that include LibTorch, whose headers clang 19 cannot
# compile: they become a line "without FILE".
lint_units() {
  awk -v root="$troupe_root/" '
    part == "compiled" {
      if (/"command":/)
        uses_torch = /torch\/csrc\/api\/include/
      else if (match($0, /"file": "[^"]*"/)) {
        file = substr($0, RSTART + 9, RLENGTH - 10)
        if (index(file, root) == 1) {
          file = substr(file, length(root) + 1)
          compiled[file] = 1
          if (uses_torch)
            torch[file] = 1
        }
      }
      next
    }
    part == "asked" {
      asked[++count] = $0
      changed[$0] = 1
      # A header is included by the end of its path.
      if ($0 ~ /\.hpp$/)
        for (name = $0; name != ""; name = index(name, "/") ? substr(name, index(name, "/") + 1) : "")
          headers[name] = headers[name] " " $0
      next
    }
    # Lines of grep: SOURCE:#include <HEADER>
    {
      source = substr($0, 1, index($0, ":") - 1)
      match($0, /[<"][^>"]*/)
      name = substr($0, RSTART + 1, RLENGTH - 1)
      if (!(source in compiled) || source in torch || !(name in headers))
        next
      n = split(headers[name], paths, " ")
      for (i = 1; i <= n; i++)
        if (!(paths[i] in includer) || source in changed)
          includer[paths[i]] = source
    }
    END {
      for (i = 1; i <= count; i++) {
        unit = asked[i] ~ /\.hpp$/ ? includer[asked[i]] : asked[i]
        if (unit in torch)
          print "without " asked[i]
        else if (unit in compiled && !printed[unit]++)
          print unit
      }
    }' part=compiled "$troupe_root/build/lint/compile_commands.json" part=asked - part=included \
    <(grep -rE --include=*.cpp '^#include [<"]' \
      serialization collectives actors runtime data training inference serving frameworks apps tools tests)
}

# lint_one SOURCE: as a part of lint. Notes in $lint_notes how it went.
lint_one() {
  local left=86400 started=$EPOCHSECONDS status=0 output
  [[ -z $lint_deadline ]] || left=$((lint_deadline - started))
  if ((left <= 0)); then
    printf 'left %s\n' "$1" >>"$lint_notes"
    return
  fi
  output=$(timeout "$left" "$clang_tidy" -p "$lint_dir" --quiet --warnings-as-errors='*' "$1" 2>&1) || status=$?
  case $status in
    0) printf 'good %s\n' "$1" >>"$lint_notes" ;;
    124) printf 'left %s\n' "$1" >>"$lint_notes" ;;
    *)
      printf 'bad %s\n' "$1" >>"$lint_notes"
      printf '%s\n' "$output" | grep -v ' warnings\? generated\.$'
      ;;
  esac
}

# lint SECONDS FILE...: clang-tidy over what lint_units makes of the files, in that order, as many at once as there are cores. After
# SECONDS (0: never) it stops and says what it has left out. Fails when clang-tidy finds something, and when it has nothing to read. Uses
# caf_dir and caf_prefix from troupe_setup.
lint() {
  local seconds=$1 started=$SECONDS good bad left without
  local -a units=()
  shift
  [[ $# -gt 0 ]] || return 0
  cd "$troupe_root" || return
  configure_lint
  mapfile -t units < <(printf '%s\n' "$@" | lint_units)
  without=$(printf '%s\n' "${units[@]}" | grep -c '^without ' || true)
  mapfile -t units < <(printf '%s\n' "${units[@]}" | grep -v -e '^without ' -e '^$')
  say "$# file(s), read by way of ${#units[@]} source(s); $without file(s) with LibTorch are not read"
  if [[ ${#units[@]} -eq 0 ]]; then
    [[ $without -eq 0 ]] || return 0
    say "build/lint compiles none of these files: $*"
    return 1
  fi
  export clang_tidy lint_dir="build/lint" lint_deadline="" lint_notes
  ((seconds == 0)) || lint_deadline=$((EPOCHSECONDS + seconds))
  lint_notes=$(mktemp)
  export -f lint_one
  # shellcheck disable=SC2016 # for the inner shell
  printf '%s\n' "${units[@]}" | xargs -d '\n' -n 1 -P "$(parallel_jobs)" bash -c 'lint_one "$1"' lint || true
  good=$(grep -c '^good ' "$lint_notes" || true)
  bad=$(sed -n 's/^bad //p' "$lint_notes")
  left=$(sed -n 's/^left //p' "$lint_notes")
  rm -f "$lint_notes"
  say "$good good in $((SECONDS - started)) s"
  if [[ -n $left ]]; then
    say "NOTE: $(wc -l <<<"$left") source(s) are left out after $seconds s; tools/check --all reads everything"
  fi
  [[ -n $bad ]] || return 0
  # shellcheck disable=SC2086 # names without blanks
  say clang-tidy found something in: $bad
  return 1
}
