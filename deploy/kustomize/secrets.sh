#!/usr/bin/env bash
# Prints the Secrets that the base reads, to be piped into `kubectl apply -f -`:
#   tandem-fleet                                              the fleet's secret
#   tandem-router-tls, tandem-prefill-tls, tandem-decode-tls  certificates, one role each
#   tandem-keys                                               hashes of API keys
#
#   deploy/kustomize/secrets.sh [--no-certificates] FOLDER [NAMESPACE] | kubectl apply -f -
#
# --no-certificates: only tandem-fleet and tandem-keys, where cert-manager or an authority of yours
# makes the certificates. FOLDER keeps all of it, the authority's key too: guard it. What lies there is used again, except
# the certificates, which each run renews. NAMESPACE: tandem. Needs `kubectl`, and `tandem`: that of
# TANDEM, of build/bin here, or of PATH.
set -euo pipefail

certificates=yes
if [ "${1:-}" = --no-certificates ]; then
  certificates=no
  shift
fi
if [ $# -lt 1 ] || [[ "$1" == -* ]] || [ $# -gt 2 ]; then
  sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
folder=$1
namespace=${2:-tandem}
built=$(dirname "$0")/../../build/bin/tandem
[ -x "$built" ] || built=tandem
tandem=${TANDEM:-$built}
kubectl=${KUBECTL:-kubectl}

umask 077
mkdir -p "$folder"
[ -s "$folder/fleet-secret" ] || head -c 32 /dev/urandom | base64 > "$folder/fleet-secret"
if [ "$certificates" = yes ]; then
  "$tandem" certs make --folder "$folder/certs" --fleet "$namespace" --names \
    "tandem,tandem.$namespace,tandem.$namespace.svc,tandem.$namespace.svc.cluster.local,localhost,127.0.0.1" >&2
fi
if [ ! -s "$folder/keys" ]; then
  echo "a key for clients, in $folder/first-key:" >&2
  "$tandem" keys add first --file "$folder/keys" > "$folder/first-key"
fi

secret() {
  "$kubectl" create secret generic "$@" --namespace "$namespace" --dry-run=client --output yaml
  echo ---
}
secret tandem-fleet --from-file "secret=$folder/fleet-secret"
secret tandem-keys --from-file "keys=$folder/keys"
[ "$certificates" = yes ] || exit 0
for role in router prefill decode; do
  secret "tandem-$role-tls" --from-file "$folder/certs/$role"
done
