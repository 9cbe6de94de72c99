#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that building, running and testing Tandem needs.
#
#   scripts/install_packages.sh            installs what scripts/packages.txt lists and is missing
#   scripts/install_packages.sh --tests    also installs what only some tests need
#   scripts/install_packages.sh --check    installs nothing; lists what is missing, exit status 1 if any;
#                                          with --tests, of what tests need as well
#
# Asks nothing and reads no input. Calls apt-get only when something is missing; that needs root or
# sudo. Made for Debian 12 and Ubuntu 24.04.
set -euo pipefail

list="$(dirname "$0")/packages.txt"
readonly list

fail() {
  echo "install_packages: $*" >&2
  exit 1
}

# Names in the list that dpkg does not call installed, one a line.
missing_packages() {
  local wanted installed skipped='# tests$'
  [ "$tests" = yes ] && skipped='^$'
  mapfile -t wanted < <(sed -e "/$skipped/d" -e 's/#.*//' "$list" | tr -s ' \t' '\n' |
    sed '/^$/d' | sort -u)
  # dpkg-query fails when it does not know a name at all; those are missing too.
  # shellcheck disable=SC2016
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null |
    sed -n 's/^installed //p' | sort -u || true)
  comm -23 <(printf '%s\n' "${wanted[@]}") <(echo "$installed")
}

tests=no check=no
for argument in "$@"; do
  case "$argument" in
    --tests) tests=yes ;;
    --check) check=yes ;;
    -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" && exit 0 ;;
    *) fail "unknown argument $argument (expected --tests, --check, both, --help or none)" ;;
  esac
done
[ -r "$list" ] || fail "$list cannot be read"
for tool in dpkg-query apt-get; do
  command -v "$tool" >/dev/null ||
    fail "$tool not found: this script knows Debian 12 and Ubuntu 24.04 only; on another system
  install the counterparts of the packages in $list by its own means"
done

mapfile -t missing < <(missing_packages)
if [ "$check" = yes ]; then
  [ ${#missing[@]} -eq 0 ] && exit 0
  printf '%s\n' "${missing[@]}"
  exit 1
fi
if [ ${#missing[@]} -eq 0 ]; then
  echo "install_packages: all packages of scripts/packages.txt are installed"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null ||
    fail "neither root nor sudo; as root, run:
  apt-get install --no-install-recommends ${missing[*]}"
  as_root=(sudo)
  # Without a terminal sudo cannot ask for a password: fail instead of hanging.
  [ -t 2 ] || as_root=(sudo -n)
fi

apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q \
    -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 \
    -o Dpkg::Options::=--force-confold "$@" </dev/null
}

echo "install_packages: installing ${#missing[@]} packages: ${missing[*]}"
apt update || fail "apt-get update failed: see the messages above"
apt install -y --no-install-recommends "${missing[@]}" ||
  fail "apt-get install failed; on Ubuntu some packages come from the 'universe' component: add it
  to the apt sources if the messages above say that a package cannot be located"

mapfile -t missing < <(missing_packages)
[ ${#missing[@]} -eq 0 ] ||
  fail "apt-get reported success, but these are still missing: ${missing[*]}"
echo "install_packages: done"
