# Summarises a run of ctest from its JUnit report (first file, the outcome of each test) and its log (second file, the output
# of each test). Prints the ten slowest, each skip with its reason, each failure with the command that repeats it, and the counts as the last
# line. Fails if a test failed.
#
# A test that prints "SKIP: reason" was skipped completely if it exits with 77, otherwise one of its test cases was.

function text(s) {
  gsub(/&lt;/, "<", s); gsub(/&gt;/, ">", s); gsub(/&quot;/, "\"", s); gsub(/&apos;/, "'", s); gsub(/&amp;/, "\\&", s)
  return s
}

function attribute(line, key) {
  if (!match(line, " " key "=\"[^\"]*\""))
    return ""
  return text(substr(line, RSTART + length(key) + 3, RLENGTH - length(key) - 4))
}

FNR == 1 { file++ }

file == 1 && /^[ \t]*<testcase / {
  current = attribute($0, "name")
  order[++tests] = current
  ending[current] = attribute($0, "status")
  seconds[current] = attribute($0, "time") + 0
}
file == 1 && /^[ \t]*<skipped message=/ {
  if (attribute($0, "message") ~ /SKIP_RETURN_CODE|SKIP_REGULAR_EXPRESSION/)
    ending[current] = "skipped"
}

file == 2 && /^[0-9]+\/[0-9]+ Test: / {
  current = $0
  sub(/^[0-9]+\/[0-9]+ Test: /, "", current)
}
file == 2 && /^SKIP:/ {
  reason = $0
  sub(/^SKIP:[ \t]*/, "", reason)
  skips[current]++
  reasons[current, skips[current]] = reason
}
file == 2 && /^\[doctest\] test cases:/ {
  split($0, part, "|")
  cases[current] = 1
  split(part[2], n, " "); case_passed[current] += n[1]
  split(part[3], n, " "); case_failed[current] += n[1]
}

END {
  for (i = 1; i <= tests; i++) {
    name = order[i]
    skipped_here = skips[name] + 0
    if (ending[name] == "disabled") {
      skips[name] = skipped_here = 1
      reasons[name, 1] = "disabled in its CMakeLists.txt"
    } else if (ending[name] == "skipped") {
      if (!skipped_here) {
        skips[name] = skipped_here = 1
        reasons[name, 1] = "gave no reason"
      }
    } else if (ending[name] == "run") {
      passed_here = cases[name] ? case_passed[name] - skipped_here : 1
      passed += passed_here > 0 ? passed_here : 0
    } else {
      passed_here = case_passed[name] - skipped_here
      passed += passed_here > 0 ? passed_here : 0
      failed += case_failed[name] > 0 ? case_failed[name] : 1
      failures[++failed_tests] = name
    }
    skipped += skipped_here
  }
  for (rank = 1; rank <= 10 && rank <= tests; rank++) {
    slowest = ""
    for (i = 1; i <= tests; i++)
      if (!told[order[i]] && (slowest == "" || seconds[order[i]] > seconds[slowest]))
        slowest = order[i]
    told[slowest] = 1
    printf "SLOWEST %2d. %s: %.0f s\n", rank, slowest, seconds[slowest]
  }
  for (i = 1; i <= tests; i++)
    for (k = 1; k <= skips[order[i]]; k++)
      printf "SKIPPED %s: %s\n", order[i], reasons[order[i], k]
  for (i = 1; i <= failed_tests; i++)
    printf "FAILED %s    again: tools/test --preset %s -R '^%s$'\n", failures[i], preset, failures[i]
  printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
  exit failed > 0
}
