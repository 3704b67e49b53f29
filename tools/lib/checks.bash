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
    tests/package/descriptions tests/package/debian_packages tests/package/bare_root tests/package/ssh_nodes tests/package/slurm \
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

# lint_units PRESET: of the files on standard input, the sources that clang-tidy is to read, in the same order: a source that
# build/PRESET compiles, and for a header, unless one of them includes it, a source that does. Needs a finished build. Without the sources
# that include LibTorch, whose headers clang 19 cannot compile.
lint_units() {
  local dir="$troupe_root/build/$1"
  awk -v root="$troupe_root/" '
    function name(path) {
      sub(/^(\.\.\/)+/, "", path)
      return index(path, root) == 1 ? substr(path, length(root) + 1) : path
    }
    part == "compiled" {
      if (match($0, /"file": "[^"]*"/))
        compiled[name(substr($0, RSTART + 9, RLENGTH - 10))] = 1
      next
    }
    part == "asked" {
      asked[++count] = $0
      changed[$0] = 1
      next
    }
    # The dependencies that ninja keeps: a line for the object, then its source, then the headers.
    /^[^ ]/ { source = ""; next }
    NF {
      file = name($1)
      if (source == "")
        source = file
      else if (file ~ /\/ATen\//)
        delete compiled[source]
      else if (file in changed)
        included[source, file]
    }
    END {
      for (pair in included) {
        split(pair, names, SUBSEP)
        if (names[1] in compiled && (!(names[2] in includer) || names[1] in changed))
          includer[names[2]] = names[1]
      }
      for (i = 1; i <= count; i++) {
        unit = asked[i] ~ /\.hpp$/ ? includer[asked[i]] : asked[i]
        if (unit in compiled && !printed[unit]++)
          print unit
      }
    }' part=compiled "$dir/compile_commands.json" part=asked - part=included <(ninja -C "$dir" -t deps)
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

# lint PRESET SECONDS FILE...: clang-tidy over what lint_units makes of the files, in that order, as many at once as there are cores. After
# SECONDS (0: never) it stops and says what it has left out. Fails when clang-tidy finds something.
lint() {
  local preset=$1 seconds=$2 started=$SECONDS good bad left
  local -a units=()
  shift 2
  cd "$troupe_root" || return
  mapfile -t units < <(printf '%s\n' "$@" | lint_units "$preset")
  say "$# file(s), read by way of ${#units[@]} source(s)"
  [[ ${#units[@]} -gt 0 ]] || return 0
  export clang_tidy lint_dir="build/$preset" lint_deadline="" lint_notes
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
