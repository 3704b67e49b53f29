# Reads lines "time what=NAME ranks=N bytes=B us=T ..." and prints medians as tables, then ratios as lines.

function median(list,   values, n, i, j, x) {
  n = split(list, values, " ")
  for (i = 2; i <= n; i++) {
    x = values[i] + 0
    for (j = i - 1; j >= 1 && values[j] + 0 > x; j--)
      values[j + 1] = values[j]
    values[j + 1] = x
  }
  return n % 2 ? values[(n + 1) / 2] : (values[n / 2] + values[n / 2 + 1]) / 2
}

function table(n, title, kind,   s, w, t) {
  printf "\n%s, %d ranks\n%12s", title, n, "bytes"
  for (w = 1; w <= whats; w++)
    printf " %*s", width(w), name[w]
  printf "\n"
  for (s = 1; s <= sizes; s++) {
    printf "%12d", size[s]
    for (w = 1; w <= whats; w++) {
      t = time[name[w], n, size[s]]
      if (t == 0)
        printf " %*s", width(w), "-"
      else if (kind == "time")
        printf " %*.2f", width(w), t
      else
        # Bytes per microsecond equal MB/s.
        printf " %*.3f", width(w), size[s] / t / 1000 * (kind == "bus" ? 2 * (n - 1) / n : 1)
    }
    printf "\n"
  }
}

function width(w) {
  return length(name[w]) > 10 ? length(name[w]) : 10
}

function ratio(n, bytes, left, right,   x, y) {
  x = time[left, n, bytes]
  y = time[right, n, bytes]
  if (x > 0 && y > 0)
    printf "ratio ranks=%d bytes=%d what=%s/%s value=%.3f\n", n, bytes, left, right, y / x
}

$1 == "time" {
  for (i = 2; i <= NF; i++) {
    split($i, pair, "=")
    field[pair[1]] = pair[2]
  }
  what = field["what"]
  n = field["ranks"]
  bytes = field["bytes"]
  if (!(what in seen_what)) {
    seen_what[what] = 1
    name[++whats] = what
  }
  if (!(n in seen_ranks)) {
    seen_ranks[n] = 1
    ranks[++groups] = n
  }
  if (!(bytes in seen_size)) {
    seen_size[bytes] = 1
    size[++sizes] = bytes
  }
  times[what, n, bytes] = times[what, n, bytes] " " field["us"]
}

END {
  for (key in times)
    time[key] = median(times[key])
  for (g = 1; g <= groups; g++) {
    table(ranks[g], "Time of one sum (microseconds)", "time")
    table(ranks[g], "Algorithm bandwidth (GB/s)", "algorithm")
    table(ranks[g], "Bus bandwidth (GB/s)", "bus")
  }
  printf "\n"
  for (g = 1; g <= groups; g++)
    for (s = 1; s <= sizes; s++) {
      n = ranks[g]
      bytes = size[s]
      ratio(n, bytes, "exact", "openmpi")
      ratio(n, bytes, "fast", "openmpi")
      ratio(n, bytes, "in-place", "openmpi")
      ratio(n, bytes, "unregistered", "openmpi")
      ratio(n, bytes, "exact-touched", "openmpi-touched")
      ratio(n, bytes, "in-place-touched", "openmpi-touched")
      ratio(n, bytes, "exact", "gloo")
      ratio(n, bytes, "tcp", "openmpi-tcp")
      ratio(n, bytes, "tcp-in-place", "openmpi-tcp")
      ratio(n, bytes, "tcp", "ucx")
      ratio(n, bytes, "tcp-barrier", "ucx-barrier")
      ratio(n, bytes, "tcp", "openmpi-ucx")
      ratio(n, bytes, "two-hosts", "tcp")
      ratio(n, bytes, "two-hosts-encrypted", "tcp-encrypted")
      ratio(n, bytes, "tcp", "gloo")
      ratio(n, bytes, "tcp", "tcp-limit")
      ratio(n, bytes, "tcp", "tcp-fast")
      ratio(n, bytes, "tcp-encrypted", "tcp")
      ratio(n, bytes, "tcp-encrypted", "openmpi-tcp")
      ratio(n, bytes, "tcp-barrier", "openmpi-tcp-barrier")
      ratio(n, bytes, "tcp-encrypted-barrier", "openmpi-tcp-barrier")
      ratio(n, bytes, "exact", "fast")
      ratio(n, bytes, "exact", "limit")
      ratio(n, bytes, "exact-touched", "limit-touched")
    }
}
