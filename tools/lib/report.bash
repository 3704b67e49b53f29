# Sourced by the commands in tools/: what they say, and how a step runs and fails.
# shellcheck shell=bash

# Says what is being done, as a heading on the terminal.
say_phase() { printf '==> %s\n' "$*"; }

say() { printf '    %s\n' "$*"; }

# stop EXIT_CODE LINE...: names what went wrong and how to go on (the lines), and ends the command.
stop() {
  local code=$1
  shift
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  shift
  local line
  for line in "$@"; do
    printf '    %s\n' "$line" >&2
  done
  exit "$code"
}

# The comment block at the top of a command is its help.
print_help() {
  awk 'NR == 1 { next } !/^#/ { exit } { sub(/^# ?/, ""); print }' "$0"
}

# The part of a log that tells why: from a build's first failed command on, or else the end.
show_log() {
  local log=$1 first
  first=$(grep -n -m1 '^FAILED: ' "$log" | cut -d: -f1 || true)
  {
    printf -- '--- %s\n' "$log"
    if [[ -n $first ]]; then
      tail -n "+$first" "$log" | head -n 40
    else
      tail -n 20 "$log"
    fi
    printf -- '---\n'
  } >&2
}

# run_logged STEP LOG COMMAND...: runs the command with its output in the log. On failure shows the log's telling part and
# stops, naming the step.
run_logged() {
  local step=$1 log=$2
  shift 2
  if ! "$@" >>"$log" 2>&1; then
    show_log "$log"
    stop 1 "$step failed." "The whole log is in $log." \
      "Repair what it names and run the same command again: it goes on where it stopped."
  fi
}

# How many compilers to run at once: one per core, but no more than memory has room for (1.2 GB each).
parallel_jobs() {
  local cores available_kb room
  cores=$(nproc)
  available_kb=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo 2>/dev/null || true)
  if [[ -n $available_kb ]]; then
    room=$((available_kb / 1200000))
    ((room >= 1)) || room=1
    ((cores <= room)) || cores=$room
  fi
  printf '%s\n' "$cores"
}
