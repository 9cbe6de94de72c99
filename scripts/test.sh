#!/usr/bin/env bash
# Builds everything and runs every test with ctest; arguments are passed on to ctest.
#
#   scripts/test.sh                  all tests
#   scripts/test.sh -R unit_kv       those whose name matches
#   scripts/test.sh -L deploy        those with a label
#
# Installs missing packages first and fetches the models and Python packages that some tests use;
# tests whose model or tool cannot be had are reported as skipped. The last line counts tests:
# 'N passed, N failed, N skipped'. Exit status 0 means that tests ran and none failed.
set -euo pipefail

cd "$(dirname "$0")/.."
readonly root=$PWD
readonly results="$root/build/test-results.xml"

say() { printf 'test: [%3d s] %s\n' "$SECONDS" "$*"; }

case "${1:-}" in
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" && exit 0 ;;
esac

# A virtual environment with what scripts/test_requirements.txt pins, outside the source tree; one
# per content of that file, so checkouts do not disturb each other. Prints its folder.
prepare_python() {
  local key folder
  key=$({ python3 --version && cat scripts/test_requirements.txt; } | sha256sum | cut -c 1-12)
  folder="${XDG_CACHE_HOME:-$HOME/.cache}/tandem/test-python-$key"
  if [ ! -e "$folder/complete" ]; then
    mkdir -p "$folder" &&
      python3 -m venv --clear "$folder" >&2 &&
      "$folder/bin/python" -m pip install --disable-pip-version-check --no-input --no-deps \
        --only-binary :all: --requirement scripts/test_requirements.txt </dev/null >&2 &&
      touch "$folder/complete" || return 1
  fi
  echo "$folder"
}

say "checking packages"
scripts/install_packages.sh
scripts/install_packages.sh --tests ||
  say "a browser cannot be had; tests that need one are skipped"
say "building"
scripts/build.sh

for model in smollm2 gemma3; do
  say "model $model"
  python3 scripts/fetch_model.py "$model" </dev/null ||
    say "the model $model cannot be had; tests that need it are skipped"
done

say "Python packages for tests"
if python_folder=$(prepare_python); then
  export TANDEM_TEST_PYTHON="$python_folder/bin/python"
  export PATH="$python_folder/bin:$PATH"
else
  say "scripts/test_requirements.txt could not be installed; tests that need it are skipped"
fi

say "running tests"
rm -f "$results"
status=0
ctest --test-dir build -j 2 --output-on-failure "$@" --output-junit "$results" </dev/null ||
  status=$?
python3 scripts/summarise_tests.py "$results" "$status"
