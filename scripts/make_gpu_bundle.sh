#!/usr/bin/env bash
# Makes one archive with everything that a machine with a GPU needs to run the GPU tests and benchmarks: programs,
# the libraries they load, goldens and tests/gpu/run_all.sh. That machine needs a CUDA driver and a C library of at
# least this machine's version; it compiles and installs nothing.
#
#   scripts/make_gpu_bundle.sh [BUILD]        BUILD: a build tree with CUDA (default: build)
#
#   then there:   tar xzf gpu_bundle.tar.gz && gpu_bundle/run_all.sh
#
# Builds the programs first. Leaves BUILD/gpu_bundle/ and BUILD/gpu_bundle.tar.gz. In the archive the programs are
# compressed by xz, which halves them; xz lies beside them, and run_all.sh unpacks them when it starts.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly build=${1:-build}
readonly bundle=$build/gpu_bundle
readonly archive=$build/gpu_bundle.tar.gz
readonly bytes_max=$((64 << 20)) # what machines that are lent for minutes take at once, with the tree
readonly suites=(differential_device golden_device_engine unit_gemm_tiles gpu_bench)
# Parts of the C library: they belong to the machine's own loader.
readonly of_libc='/(ld-linux[^/]*|libc|libm|libdl|libpthread|librt|libresolv)\.so'

fail() {
  echo "make_gpu_bundle: $*" >&2
  exit 1
}

for tool in cmake ninja patchelf strip ldd xz; do
  command -v "$tool" >/dev/null || fail "$tool not found: scripts/install_packages.sh installs it"
done
[ -e "$build/build.ninja" ] || cmake --preset release -B "$build" -DTANDEM_CUDA=ON
# AUTO builds no kernels where nvcc is not found, and SKIP none at all.
if grep -qE '^TANDEM_CUDA:.*=(OFF|SKIP)$' "$build/CMakeCache.txt" ||
  ! grep '^TANDEM_NVCC:' "$build/CMakeCache.txt" | grep -qv 'NOTFOUND$'; then
  fail "$build was configured without CUDA: expected a folder of cmake --preset release -DTANDEM_CUDA=ON"
fi
ninja -C "$build" "${suites[@]}" tandem

rm -rf "$bundle" "$archive"
mkdir -p "$bundle/bin" "$bundle/lib"
programs=("$build/bin/tandem")
for suite in "${suites[@]}"; do programs+=("$build/tests/$suite"); done
for program in "${programs[@]}"; do
  to=$bundle/bin/$(basename "$program")
  strip -o "$to" "$program"
  # RPATH, not RUNPATH: it holds for the libraries' own libraries, too.
  patchelf --force-rpath --set-rpath "\$ORIGIN/../lib" "$to"
done

missing=$(for program in "${programs[@]}"; do ldd "$program"; done | awk '/not found/ {print $1}' | sort -u)
[ -z "$missing" ] || fail "these libraries are not on this machine: $missing"
for program in "${programs[@]}"; do ldd "$program"; done |
  awk '$3 ~ /^\// {print $3}' | sort -u | grep -vE "$of_libc" |
  while read -r library; do
    strip --strip-unneeded -o "$bundle/lib/$(basename "$library")" "$library"
  done
# What UCX loads by name when it starts.
ucx=$(ldd "$build/bin/tandem" | awk '$1 ~ /^libucs\.so/ {print $3}')
if [ -d "$(dirname "$ucx")/ucx" ]; then
  mkdir "$bundle/lib/ucx"
  for module in "$(dirname "$ucx")"/ucx/*.so.0; do
    strip --strip-unneeded -o "$bundle/lib/ucx/$(basename "$module")" "$module"
  done
fi

cp -r tests/golden "$bundle/goldens"
cp tests/gpu/run_all.sh "$bundle/run_all.sh"
git rev-parse HEAD >"$bundle/COMMIT" 2>/dev/null || true

packed=$(mktemp -d "$build/gpu_bundle.XXXXXX")
trap 'rm -rf "$packed"' EXIT
mkdir -p "$packed/gpu_bundle/xz"
mv "$bundle/run_all.sh" "$packed/gpu_bundle"
tar -C "$bundle" -c . | xz -T0 -3 >"$packed/gpu_bundle/programs.tar.xz"
install -m 755 "$(command -v xz)" "$packed/gpu_bundle/xz/xz"
cp -L "$(ldd "$(command -v xz)" | awk '$1 ~ /^liblzma/ {print $3}')" "$packed/gpu_bundle/xz"
patchelf --force-rpath --set-rpath "\$ORIGIN" "$packed/gpu_bundle/xz/xz"
tar -C "$packed" -cz gpu_bundle >"$archive"
cp "$packed/gpu_bundle/run_all.sh" "$bundle"

bytes=$(stat -c %s "$archive")
tree=$(git ls-files -z 2>/dev/null | du --files0-from=- -cb | tail -1 | cut -f1)
echo "$archive: $((bytes >> 20)) MiB packed, $(du -sm "$bundle" | cut -f1) MiB unpacked; the tree: $((tree >> 20)) MiB"
[ $((bytes + tree)) -le "$bytes_max" ] || fail "archive and tree are larger than $((bytes_max >> 20)) MiB"
