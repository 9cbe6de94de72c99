#!/usr/bin/env bash
# From a fresh checkout to an answer: installs packages, builds, fetches a real model, starts a
# cluster of local processes, asks it something, prints the streamed answer and stops the cluster.
set -euo pipefail

root="$(cd "$(dirname "$0")/.." && pwd)"
readonly root
readonly ready_seconds_max=300  # loading a model on a slow disk
readonly drain_seconds_max=60

usage() {
  cat <<'TEXT'
Usage: scripts/quickstart.sh [options]

Installs the packages of scripts/packages.txt (if any is missing), builds Tandem, fetches a model,
starts a cluster of local processes, streams one answer and stops the cluster again. Running it
again repeats only what is needed.

  --model NAME     smollm2 (default; SmolLM2-135M-Instruct, answers chats) or
                   gemma3 (Gemma-3-270M, a base model: continues plain text)
  --prompt TEXT    what to ask (default: a question about France)
  --prefill N      prefill nodes (default 1)
  --decode N       decode nodes (default 1)
  --grpc ADDRESS   where the router listens, a port or host:port (default 50051, or a free port if
                   taken)
  --http ADDRESS   the same for the OpenAI-compatible HTTP API (default 8000)
  --cuda           build CUDA kernels without a GPU, too
  --serve          leave the cluster up until Ctrl-C, and say how to talk to it
  --help           this text

The cluster's log is build/quickstart.log. TANDEM_MODELS names the folder models are kept in,
TANDEM_JOBS limits the compiler processes.
TEXT
}

fail() {
  echo "quickstart: $*" >&2
  exit 1
}

say() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }

# Sets the options from the command line.
parse_arguments() {
  model=smollm2 prompt="" prefill=1 decode=1 grpc="" http="" serve=no cuda=--cuda-if-gpu
  while [ $# -gt 0 ]; do
    case "$1" in
      --model | --prompt | --prefill | --decode | --grpc | --http)
        [ $# -ge 2 ] || fail "$1 needs a value (see --help)"
        printf -v "${1#--}" '%s' "$2"
        shift 2
        ;;
      --model=* | --prompt=* | --prefill=* | --decode=* | --grpc=* | --http=*)
        set -- "${1%%=*}" "${1#*=}" "${@:2}"
        ;;
      --serve) serve=yes && shift ;;
      --cuda) cuda=--cuda && shift ;;
      -h | --help) usage && exit 0 ;;
      *) fail "unknown argument $1 (see --help)" ;;
    esac
  done
  case "$model" in
    smollm2) request=("--chat=${prompt:=What is the capital of France?}") ;;
    gemma3) request=("${prompt:=The capital of France is}") ;;
    *) fail "--model is '$model', expected smollm2 or gemma3" ;;
  esac
  [[ "$prefill" =~ ^[0-9]+$ ]] || fail "--prefill is '$prefill', expected a number from 0"
  [[ "$decode" =~ ^[1-9][0-9]*$ ]] || fail "--decode is '$decode', expected a number from 1"
}

port_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# The default port, or a free one when another program (or another run of this one) has it.
choose_address() {
  [ -n "$http" ] || { port_taken 8000 && http=0; } || http=8000
  [[ ! "$grpc" =~ ^[0-9]+$ ]] || grpc="127.0.0.1:$grpc"
  [ -z "$grpc" ] || return 0
  grpc=127.0.0.1:50051
  port_taken 50051 || return 0
  grpc="127.0.0.1:$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
  say "port 50051 is taken; using $grpc"
}

# Starts `tandem up` and returns once it says that it is ready. Its output goes to $log.
start_cluster() {
  local line part="" status deadline=$((SECONDS + ready_seconds_max))
  log="$root/build/quickstart.log"
  : >"$log"
  scratch=$(mktemp -d)
  mkfifo "$scratch/output"
  # A process group of its own: Ctrl-C reaches this script, which then stops the cluster in order.
  set -m
  "$root/build/bin/tandem" up --model "$model" --prefill "$prefill" --decode "$decode" \
    --routers 1 --engine cpu --grpc "$grpc" --http "$http" </dev/null >"$scratch/output" 2>&1 &
  cluster=$!
  set +m
  exec {output}<"$scratch/output"
  while true; do
    status=0
    IFS= read -r -t 10 line <&"$output" || status=$?
    part+=$line
    if [ "$status" -eq 0 ]; then
      echo "$part" >>"$log"
      [[ "$part" == "ready: "* ]] && break
      part=""
    elif [ "$status" -gt 128 ]; then
      [ "$SECONDS" -lt "$deadline" ] || fail "not ready after $ready_seconds_max s; see $log"
      say "still starting ..."
    else
      fail "the cluster ended before it was ready"
    fi
  done
  say "$part"
  # The address as it was bound: port 0 is any free one.
  grpc=${part#*gRPC on }
  grpc=${grpc%%[,;]*}
  cat <&"$output" >>"$log" &
  reader=$!
}

# Ends the cluster as Ctrl-C does and waits for it. Says so, and returns 1, if that was not clean.
stop_cluster() {
  local pid=$cluster status=0
  [ -n "$pid" ] || return 0
  cluster=""
  kill -INT "$pid" 2>/dev/null || true
  if ! timeout "$drain_seconds_max" tail -s 0.05 -f /dev/null --pid="$pid"; then
    kill -KILL -- "-$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    echo "quickstart: the cluster did not drain within $drain_seconds_max s and was killed;" \
      "see $log" >&2
    return 1
  fi
  wait "$pid" || status=$?
  [ -z "$reader" ] || wait "$reader" || true
  case "$status" in
    0 | 130) return 0 ;;
  esac
  tail -n 20 "$log" >&2
  echo "quickstart: the cluster ended with status $status; see $log" >&2
  return 1
}

on_exit() {
  local status=$?
  trap '' INT TERM HUP
  [ -z "$asking" ] || kill -TERM "$asking" 2>/dev/null || true
  stop_cluster || [ "$status" -ne 0 ] || status=1
  [ -z "$scratch" ] || rm -rf "$scratch"
  exit "$status"
}

ask() {
  local status=0
  say "asking: $prompt"
  echo
  # In the background, because bash acts on signals at once only while it waits.
  "$root/build/bin/tandem" generate --router "$grpc" "${request[@]}" --temperature 0 \
    --max-tokens 128 --summary </dev/null &
  asking=$!
  wait "$asking" || status=$?
  asking=""
  [ "$status" -eq 0 ] || fail "the request failed; the cluster's log is $log"
  echo
}

# On a terminal, and with a model that chats: a conversation with the running cluster.
offer_chat() {
  local answer=""
  [ -t 0 ] && [ -t 1 ] && [ "$model" = smollm2 ] || return 0
  read -r -p "Chat with it now? [y/N] " answer || true
  [[ "$answer" == [yY]* ]] || return 0
  # Ctrl-C inside the chat is the chat's.
  trap : INT
  "$root/build/bin/tandem" chat --router "$grpc" || true
  trap 'exit 130' INT
}

serve_until_stopped() {
  cat <<TEXT
The cluster is up; Ctrl-C stops it. From another terminal, in $root:
  build/bin/tandem generate --router $grpc $(printf '%q ' "${request[@]}")--summary
  build/bin/tandem status --router $grpc
Its log: $log
TEXT
  [ "$model" = gemma3 ] || echo "Or talk to it: build/bin/tandem chat --router $grpc"
  offer_chat
  local status=0
  wait "$cluster" || status=$?
  [ "$status" -eq 0 ] || fail "the cluster ended with status $status; see $log"
  cluster=""
}

main() {
  parse_arguments "$@"
  cluster="" asking="" reader="" scratch="" log=""
  trap on_exit EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  trap 'exit 129' HUP

  say "checking packages"
  "$root/scripts/install_packages.sh"
  say "building (the first time takes minutes)"
  "$root/scripts/build.sh" --binaries "$cuda"
  say "fetching the model $model (if it is not here yet)"
  local path
  path=$(python3 "$root/scripts/fetch_model.py" "$model" | tail -n 1)
  say "model: $path"
  choose_address
  say "starting 1 router, $prefill prefill and $decode decode nodes"
  start_cluster
  ask
  if [ "$serve" = yes ]; then
    serve_until_stopped
  else
    offer_chat
    say "stopping"
    stop_cluster
  fi
  say "done"
}

main "$@"
