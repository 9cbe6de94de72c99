#!/usr/bin/env bash
# Runs the Debian package's services under a real systemd, as process 1 of a bare Debian in
# namespaces of its own, and uses them as deploy/systemd/README.md says: first answer, a node that is
# killed comes back, a node that is stopped drains, all ends cleanly.
#
#   scripts/make_package.sh
#   tests/deploy/systemd_run.sh build/package/tandem_*.deb MODELS [ROOT]
#
# MODELS: a folder that has SmolLM2's GGUF file, as scripts/fetch_model.py leaves it. ROOT: a folder
# for the bare Debian; one that is there already is used again. Needs root, debootstrap, 1 GB, and a
# mirror of Debian's. Systemd gets namespaces for processes, mounts, network and control groups; the
# host's stay as they are.
set -euo pipefail

package=$(realpath "${1:?expected the package}")
models=$(realpath "${2:?expected the folder of models}")
root=${3:-$(mktemp -d)/debian}
answer="The capital of France is Paris."

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

if [ ! -e "$root/usr/bin/systemctl" ]; then
  debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus bookworm "$root" >"$root.log" 2>&1 ||
    fail "debootstrap, see $root.log"
fi
cp "$package" "$root/tandem.deb"
began=$(date +%s.%N)
chroot "$root" sh -c "apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
  apt-get install -qq -y --no-install-recommends --reinstall /tandem.deb" >"$root.log" 2>&1 ||
  fail "apt-get install, see $root.log"
installed=$(date +%s.%N)
cp "$models"/SmolLM2-135M-Instruct.Q4_1.gguf* "$root/var/lib/tandem/models/"
chroot "$root" chown -R tandem: /var/lib/tandem

# What becomes process 1. The file systems that a container's manager would mount.
boot() {
  mount --make-rprivate /
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount -t sysfs sysfs "$root/sys"
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
  mount -t tmpfs tmpfs "$root/run"
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  local node
  for node in null zero full random urandom tty; do
    touch "$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
  done
  mkdir "$root/dev/pts" "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts "$root/dev/pts"
  mount -t tmpfs tmpfs "$root/dev/shm"
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
  touch "$root/dev/console"
  ip link set lo up
  cd "$root"
  mkdir -p .old
  pivot_root . .old
  umount -l /.old
  exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd systemd.unit=multi-user.target
}

export -f boot
export root
unshare --mount --pid --uts --ipc --net --cgroup --fork --kill-child bash -c boot </dev/null >"$root.log" 2>&1 &
shell=$!
trap 'kill -KILL $shell 2>/dev/null || true' EXIT

init() { pgrep -P "$shell" | head -1; }
inside() { nsenter -t "$(init)" -m -p -u -i -n -C "$@"; }
await() { # LIMIT-S COMMAND...
  local left=$((10 * $1))
  shift
  until inside "$@" >/dev/null 2>&1; do
    left=$((left - 1))
    [ $left -gt 0 ] || fail "waited for: $*"
    sleep 0.1
  done
}
ask() { inside tandem generate --chat "What is the capital of France?" --temperature 0; }
pid_of() { inside systemctl show -p MainPID --value "$1"; }

await 60 systemctl is-active multi-user.target
started=$(date +%s.%N)
inside systemctl enable -q --now tandem-router tandem-prefill-node@0 tandem-decode-node@0 tandem-decode-node@1
until [ "$(ask 2>/dev/null)" = "$answer" ]; do sleep 0.1; done
echo "$answer"
awk -v b="$began" -v i="$installed" -v s="$started" -v a="$(date +%s.%N)" \
  'BEGIN {printf "installed in %.1f s; first answer %.1f s after systemctl\n", i - b, a - s}'

killed=$(pid_of tandem-decode-node@0)
inside systemctl kill --signal=KILL tandem-decode-node@0
until [ "$(pid_of tandem-decode-node@0)" != "$killed" ] && [ "$(pid_of tandem-decode-node@0)" != 0 ]; do sleep 0.1; done
[ "$(ask)" = "$answer" ] || fail "no answer after a decode node was killed"
echo "a killed node came back"

inside systemctl stop tandem-decode-node@1
[ "$(inside systemctl show -p Result --value tandem-decode-node@1)" = success ] || fail "a node did not drain"
inside journalctl -u tandem-decode-node@1 | grep -q " drained" || fail "a stopped node did not drain"
[ "$(ask)" = "$answer" ] || fail "no answer after a decode node was stopped"
echo "a stopped node drained"

inside systemctl stop tandem-router 'tandem-*'
for unit in tandem-router tandem-prefill-node@0 tandem-decode-node@0; do
  [ "$(inside systemctl show -p Result --value $unit)" = success ] || fail "$unit did not end cleanly"
done
echo "all ended cleanly"
