#!/usr/bin/env bash
# Configures (once) and builds Tandem in Release into build/; binaries end up in build/bin/.
#
#   scripts/build.sh                 everything, tests included
#   scripts/build.sh --binaries      only the programs
#   scripts/build.sh TARGET...       these targets
#
# CUDA kernels are built where nvcc is found. An option before the targets changes that:
#
#   --cuda           fails where nvcc is not found
#   --cuda-if-gpu    leaves them out of a new build folder on a machine without an NVIDIA GPU; the
#                    next build without this option adds them
#
# TANDEM_JOBS=N limits the compiler processes. Without it: one per core, but no more than one per
# 1.5 GiB of memory at hand, what the larger sources take.
set -euo pipefail

cd "$(dirname "$0")/.."
readonly kib_per_job=$((1536 * 1024))

fail() {
  echo "build: $*" >&2
  exit 1
}

# Memory this process may still use, in KiB: the machine's, or what the limit of its control group,
# or of one around that, leaves if that is less.
available_kib() {
  local available limit used cache left group root=/sys/fs/cgroup
  available=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  group=$(sed -n 's/^0:://p' /proc/self/cgroup 2>/dev/null || true)
  group=${group%/}
  while true; do
    limit=$(cat "$root$group/memory.max" 2>/dev/null || echo max)
    if [ "$limit" != max ]; then
      used=$(cat "$root$group/memory.current")
      # Files that were read count as used until something else needs the memory.
      cache=$(awk '$1 == "inactive_file" {print $2}' "$root$group/memory.stat" 2>/dev/null || true)
      left=$(((limit - used + ${cache:-0}) / 1024))
      [ "$left" -ge "$available" ] || available=$left
    fi
    [ -n "$group" ] || break
    group=${group%/*}
  done
  echo "$available"
}

jobs_count() {
  local cores by_memory
  cores=$(nproc)
  by_memory=$(($(available_kib) / kib_per_job))
  [ "$by_memory" -ge 1 ] || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}

# Whether this machine has an NVIDIA GPU that a process may open.
has_gpu() {
  compgen -G '/dev/nvidia[0-9]*' >/dev/null || [ -e /dev/dxg ] || nvidia-smi -L >/dev/null 2>&1
}

# A variable of build/CMakeCache.txt; empty when it is not set.
cached() { sed -n "s/^$1:[A-Z]*=//p" build/CMakeCache.txt 2>/dev/null || true; }

# What TANDEM_CUDA shall be. SKIP is OFF as this script chose it, and goes when it is not asked for;
# AUTO, ON and OFF in a configured folder stay.
choose_cuda() {
  local now
  now=$(cached TANDEM_CUDA)
  case "$cuda:${now:-SKIP}" in
    on:*) echo ON ;;
    if_gpu:SKIP) if has_gpu; then echo AUTO; else echo SKIP; fi ;;
    auto:SKIP) echo AUTO ;;
    *) echo "$now" ;;
  esac
}

configure() {
  local log
  log=$(mktemp)
  echo "build: configuring build/ (CUDA kernels: $1)"
  if ! cmake --preset release "-DTANDEM_CUDA=$1" "${@:2}" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    fail "cmake could not configure build/; its output is above"
  fi
  rm -f "$log"
}

cuda=auto
targets=()
for argument in "$@"; do
  case "$argument" in
    -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" && exit 0 ;;
    --binaries) targets+=(tandem tandem-router tandem-prefill-node tandem-decode-node) ;;
    --cuda) cuda=on ;;
    --cuda-if-gpu) cuda=if_gpu ;;
    -*)
      fail "unknown argument $argument (expected --binaries, --cuda, --cuda-if-gpu, --help or" \
        "target names)"
      ;;
    *) targets+=("$argument") ;;
  esac
done

for tool in cmake ninja ccache c++ python3; do
  command -v "$tool" >/dev/null || fail "$tool not found: run scripts/install_packages.sh first"
done

jobs="${TANDEM_JOBS:-$(jobs_count)}"
[[ "$jobs" =~ ^[1-9][0-9]*$ ]] || fail "TANDEM_JOBS is '$jobs', expected a number from 1"

# Lets a checkout in another folder find what this one compiled.
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$PWD}"
export CCACHE_NOHASHDIR="${CCACHE_NOHASHDIR:-1}"
# Takes the headers of a source from the compiler instead of from a preprocessor run before it.
export CCACHE_DEPEND="${CCACHE_DEPEND:-1}"

# ninja configures again by itself when a build file changes; a build folder that was copied here
# from elsewhere has to start over.
wanted_cuda=$(choose_cuda)
if [ "$(cached CMAKE_HOME_DIRECTORY)" != "$PWD" ]; then
  configure "$wanted_cuda" --fresh
elif [ ! -e build/build.ninja ] || [ "$(cached TANDEM_CUDA)" != "$wanted_cuda" ]; then
  configure "$wanted_cuda"
fi

echo "build: $jobs jobs"
exec python3 scripts/build_progress.py -C build -j "$jobs" "${targets[@]}"
