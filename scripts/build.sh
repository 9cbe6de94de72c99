#!/usr/bin/env bash
# Configures (once) and builds Tandem in Release into build/; binaries end up in build/bin/.
#
#   scripts/build.sh                 everything, tests included
#   scripts/build.sh --binaries      only the programs
#   scripts/build.sh TARGET...       these targets
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

# Memory this process may still use, in KiB: the machine's, or its control group's if that is less.
available_kib() {
  local available limit used
  available=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  if [ "$limit" != max ]; then
    used=$(cat /sys/fs/cgroup/memory.current)
    limit=$(((limit - used) / 1024))
    [ "$limit" -lt "$available" ] && available=$limit
  fi
  echo "$available"
}

jobs_count() {
  local cores by_memory
  cores=$(nproc)
  by_memory=$(($(available_kib) / kib_per_job))
  [ "$by_memory" -ge 1 ] || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}

case "${1:-}" in
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" && exit 0 ;;
  --binaries) shift && set -- tandem tandem-router tandem-prefill-node tandem-decode-node "$@" ;;
  -*) fail "unknown argument $1 (expected --binaries, --help or target names)" ;;
esac

for tool in cmake ninja ccache c++; do
  command -v "$tool" >/dev/null || fail "$tool not found: run scripts/install_packages.sh first"
done

jobs="${TANDEM_JOBS:-$(jobs_count)}"
[[ "$jobs" =~ ^[1-9][0-9]*$ ]] || fail "TANDEM_JOBS is '$jobs', expected a number from 1"

# Lets a checkout in another folder find what this one compiled.
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$PWD}"

# ninja configures again by itself when a build file changes; a build folder that was copied here
# from elsewhere has to start over.
if ! grep -qsx "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" build/CMakeCache.txt; then
  echo "build: configuring build/"
  cmake --preset release --fresh
elif [ ! -e build/build.ninja ]; then
  echo "build: configuring build/"
  cmake --preset release
fi

echo "build: $jobs jobs"
exec ninja -C build -j "$jobs" "$@"
