# Sourced by the commands in tools/: caf-node processes on this machine, which end with the command.
# shellcheck shell=bash

node_pids=()
node_addresses=()

# start_node LOG: starts a caf-node on a port chosen by the system and waits for its address.
start_node() {
  local log=$1 pid address="" tries
  # Read below, perhaps before the background process has opened it.
  : >"$log"
  "${bin:?names the directory of the programs}/caf-node" --listen 127.0.0.1:0 >"$log" 2>&1 &
  pid=$!
  node_pids+=("$pid")
  for ((tries = 0; tries < 200; tries++)); do
    address=$(sed -n 's/^caf-node: listening on //p' "$log" | head -n 1)
    [[ -z $address ]] || break
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.05
  done
  if [[ -z $address ]]; then
    show_log "$log"
    stop 1 "A caf-node did not start listening on 127.0.0.1." "Its output is in $log."
  fi
  node_addresses+=("$address")
}

# Ends all started nodes: with SIGTERM, and after three seconds with SIGKILL.
stop_nodes() {
  local pid tries
  for pid in ${node_pids[@]+"${node_pids[@]}"}; do
    kill -TERM "$pid" 2>/dev/null || continue
    for ((tries = 0; tries < 60; tries++)); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.05
    done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  node_pids=()
}
