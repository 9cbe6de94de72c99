#!/usr/bin/env bash
# Runs every GPU test and benchmark from programs that were built elsewhere; builds nothing. For machines that are
# lent for minutes: copy the programs and this script there, or run it in a build tree.
#
#   tests/gpu/run_all.sh [FOLDER]     FOLDER holds the programs (default: build/tests)
#
# Prints a short table last: one line for each suite and each benchmark figure. Logs go to $OUT, or a temporary
# folder. Exit status 0 means that everything that is there ran and passed, and that there is a GPU; 77 that there is
# none. Suites are bounded so that all of it ends within 8 minutes.
set -uo pipefail

readonly folder=${1:-build/tests}
readonly logs=${OUT:-$(mktemp -d)}
if ! "$folder/gpu_bench" --describe; then
  echo "SKIPPED: no GPU that this build can use"
  exit 77
fi

table=()
failed=0

# A name, its time limit in seconds and its command; the last line of its log joins the table.
run() {
  local name=$1 limit=$2
  shift 2
  local start=$SECONDS status=0
  timeout "$limit" "$@" >"$logs/$name.log" 2>&1 || status=$?
  local word=passed
  if [ "$status" -ne 0 ]; then
    word="FAILED ($status)"
    failed=1
    tail -n 30 "$logs/$name.log"
  fi
  table+=("$(printf '%-34s %-12s %3d s  %s' "$name" "$word" $((SECONDS - start)) \
    "$(grep -E '^\[  (PASSED|FAILED)' "$logs/$name.log" | head -n 1)")")
}

run differential 120 "$folder/differential_device" --gtest_filter='*/Cuda*'
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    run "sanitizer_$tool" 90 compute-sanitizer --tool "$tool" --error-exitcode 9 "$folder/differential_device" \
      --gtest_filter='*Gemm*/Cuda*:*RowOps*/Cuda:*Attention*BlockSize*/Cuda'
  done
else
  table+=("sanitizer                          SKIPPED      compute-sanitizer is not here")
fi
if [ -x "$folder/golden_device_engine" ]; then
  run engine 120 "$folder/golden_device_engine" --gtest_filter='*Cuda*'
else
  table+=("engine                             SKIPPED      golden_device_engine was not brought along")
fi
if [ -x "$folder/unit_gemm_tiles" ]; then
  run gemm_tiles 60 "$folder/unit_gemm_tiles" --gtest_filter='*Cuda*'
else
  table+=("gemm_tiles                         SKIPPED      unit_gemm_tiles was not brought along")
fi
run bench 60 "$folder/gpu_bench"

cat "$logs/bench.log"
printf '%s\n' "${table[@]}"
exit "$failed"
