#!/usr/bin/env bash
# Builds the programs and packs them: build/package/tandem_VERSION_ARCHITECTURE.deb, for the release
# of Debian or Ubuntu that this machine runs. `apt install ./FILE` then installs it with the shared
# libraries that it needs. deploy/systemd/README.md says how to start it.
set -euo pipefail

cd "$(dirname "$0")/.."
scripts/build.sh --binaries
rm -rf build/package
cpack --config build/CPackConfig.cmake >build/package.log 2>&1 || {
  cat build/package.log >&2
  exit 1
}
rm -rf build/package/_CPack_Packages
ls build/package/*.deb
