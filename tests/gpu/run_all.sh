#!/usr/bin/env bash
# Runs every GPU test and benchmark from programs that were built elsewhere; builds nothing. For machines that are
# lent for minutes: copy the programs and this script there, or run it in a build tree.
#
#   tests/gpu/run_all.sh [FOLDER]     FOLDER holds the programs (default: bin/ beside this script, else build/tests)
#
# scripts/make_gpu_bundle.sh packs this script with programs that load on a bare machine.
#
# A suite runs in shards side by side, and what fails there runs again alone.
# Prints each result when it comes, what matters most first. Logs and results.json go to $OUT, or to a temporary
# folder. Every suite has a limit, and all of it ends within 8 minutes, or $TANDEM_GPU_SECONDS. Exit status:
#   0   everything that is there ran and passed on a GPU
#   1   something failed, or the programs cannot load here
#   77  the programs load, and there is no GPU for them
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
readonly here
if [ -f "$here/programs.tar.xz" ]; then # as make_gpu_bundle.sh packs them
  "$here/xz/xz" -dc "$here/programs.tar.xz" | tar -C "$here" -x || exit 1
  rm "$here/programs.tar.xz"
fi
if [ -d "$here/bin" ]; then default=$here/bin; else default=build/tests; fi
readonly folder=${1:-$default}
readonly logs=${OUT:-$(mktemp -d)}
readonly total_limit=${TANDEM_GPU_SECONDS:-470}  # a command that ignores its end takes 5 more
shards=$(nproc)
((shards <= 12)) || shards=12
readonly shards
readonly no_gpu=77  # gpu_bench --describe ends with it
rows=()
failed=0

# Prints a result and writes results.json anew, so that a run that is cut off leaves what it found.
report() {  # name, outcome, seconds, note
  printf '%-24s %-14s %3d s  %s\n' "$1" "$2" "$3" "$4"
  rows+=("$(printf '{"name": "%s", "outcome": "%s", "seconds": %d}' "$1" "$2" "$3")")
  (IFS=,; printf '[%s]\n' "${rows[*]}") >"$logs/results.json"
}

# Sets `status` and `seconds`. The limit shrinks to what is left of the whole run's.
run_limited() {  # name, limit in seconds, command
  local name=$1 limit=$2 start=$SECONDS left=$((total_limit - SECONDS))
  shift 2
  status=124
  seconds=0
  if [ "$left" -le 0 ]; then
    : >"$logs/$name.log"
    return
  fi
  status=0
  timeout --kill-after=5 "$((limit < left ? limit : left))" "$@" >"$logs/$name.log" 2>&1 || status=$?
  seconds=$((SECONDS - start))
}

fail() {  # name, outcome
  failed=1
  report "$1" "$2" "$seconds" ''
  tail -n 30 "$logs/$1.log"
}

# The full names of a suite's tests.
list_tests() {  # program, filter
  "$folder/$1" --gtest_list_tests --gtest_filter="$2" | sed 's/ *#.*//' |
    awk '/^[^ ]/ {suite = $1; next} NF {print suite $1}' | sort
}

# The names behind a mark of GoogleTest's in the logs of a suite.
names_marked() {  # name, mark
  cat "$logs/$1".*.log | sed -nE "s/^\[ *$2 *\] ([^ ,]+).*/\1/p" | sort -u
}

# Runs a suite in shards side by side, then each test that no shard passed or skipped alone: what a broken kernel
# leaves behind fails the tests after it, and one that hangs takes them with it.
run_shards() {  # name, program, filter
  local name=$1 program=$folder/$2 filter=$3 i shard ended=0
  local running=()
  for ((i = 0; i < shards; ++i)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i timeout --kill-after=5 "$shard_limit" "$program" \
      --gtest_filter="$filter" >"$logs/$name.$i.log" 2>&1 &
    running+=($!)
  done
  for shard in "${running[@]}"; do wait "$shard" || ended=1; done
  list_tests "$2" "$filter" >"$logs/$name.tests"
  (names_marked "$name" OK; names_marked "$name" SKIPPED) | sort -u |
    comm -13 - "$logs/$name.tests" >"$logs/$name.again"
  : >"$logs/$name.failed"
  export name logs program
  # shellcheck disable=SC2016  # the inner shell expands
  xargs -r -n 1 -P "$shards" sh -c 'log=$logs/$name.alone.$(echo "$1" | tr / _).log
    timeout --kill-after=5 40 "$program" --gtest_filter="$1" >"$log" 2>&1 && exit
    echo "$1 ($?)" >>"$logs/$name.failed"; tail -n 12 "$log"' sh <"$logs/$name.again"
  [ ! -s "$logs/$name.again" ] && [ "$ended" -eq 0 ]
}

# A GoogleTest program. One whose filter finds nothing, or that skips every test, has proven nothing: that fails. So
# does one with a test that passes alone and not among the others, and one that ends badly after its tests.
run_suite() {  # name, limit in seconds, program, filter
  if [ ! -x "$folder/$3" ]; then
    seconds=0
    echo "$folder/$3 is not here" >"$logs/$1.log"
    fail "$1" missing
    return
  fi
  shard_limit=$2
  export folder logs shards shard_limit
  export -f list_tests names_marked run_shards
  run_limited "$1" "$(($2 * 2))" bash -c 'run_shards "$@"' bash "$1" "$3" "$4"
  local passed failed_tests
  passed=$(names_marked "$1" OK | wc -l)
  failed_tests=$(cat "$logs/$1.failed" 2>/dev/null)
  if [ "$status" -ne 0 ]; then
    fail "$1" "failed ($status)"
    echo "passed: $passed; not beside others: $(wc -l <"$logs/$1.again"); not alone: ${failed_tests:-none}"
  elif [ "$passed" -eq 0 ]; then
    fail "$1" 'none passed'
  else
    report "$1" passed "$seconds" "$passed tests"
  fi
}

# compute-sanitizer refuses some GPUs and drivers. What it says is worth reading and never decides.
run_sanitizer() {  # tool
  local name=sanitizer_$1
  if ! command -v compute-sanitizer >/dev/null; then
    report "$name" skipped 0 'compute-sanitizer is not here'
    return
  fi
  run_limited "$name" 60 compute-sanitizer --tool "$1" --error-exitcode 9 "$folder/differential_device" \
    --gtest_filter='*Gemm*/Cuda*:*RowOps*/Cuda:*Attention*BlockSize*/Cuda'
  local outcome=clean
  [ "$status" -eq 0 ] || outcome="advisory ($status)"
  report "$name" "$outcome" "$seconds" "see $logs/$name.log"
}

run_limited describe 30 "$folder/gpu_bench" --describe
cat "$logs/describe.log"
case $status in
  0) report describe passed "$seconds" '' ;;
  "$no_gpu")
    report describe 'no GPU' "$seconds" ''
    exit "$no_gpu"
    ;;
  *)
    fail describe "cannot load ($status)"
    exit 1
    ;;
esac

run_suite gemm_and_attention 60 differential_device '*Gemm*/Cuda*:*Attention*/Cuda*'
run_limited bench 90 "$folder/gpu_bench" --json "$logs/bench.json"  # for tests/gpu/fill_table.py
if [ "$status" -eq 0 ]; then
  report bench passed "$seconds" ''
  cat "$logs/bench.log"
else
  fail bench "failed ($status)"
fi
run_suite engine 60 golden_device_engine '*Cuda*'
run_suite operators 30 differential_device '*/Cuda*-*Gemm*:*Attention*'
run_suite gemm_tiles 20 unit_gemm_tiles '*Cuda*'
run_sanitizer memcheck
run_sanitizer racecheck
exit "$failed"
