# Sourced by the commands in tools/: output, and running steps with error reports.
# shellcheck shell=bash

# Prints the current phase as a heading.
say_phase() { printf '==> %s\n' "$*"; }

say() { printf '    %s\n' "$*"; }

# stop EXIT_CODE LINE...: prints the error and how to continue (the lines), and ends the command.
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

# Prints the comment at the top of the command, which is its help.
print_help() {
  awk 'NR == 1 { next } !/^#/ { exit } { sub(/^# ?/, ""); print }' "$0"
}

# Prints the relevant part of a log: from a build's first failed command on, or else the end.
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

# run_logged STEP LOG COMMAND...: runs the command with its output in the log. On failure prints the relevant part of the
# log and stops with the step's name.
run_logged() {
  local step=$1 log=$2
  shift 2
  if ! "$@" >>"$log" 2>&1; then
    show_log "$log"
    stop 1 "$step failed." "The whole log is in $log." \
      "Repair the cause and run the same command again: it continues where it stopped."
  fi
}

# Prints the number of compilers to run at once: one per core, as far as memory allows (1.2 GB each).
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
