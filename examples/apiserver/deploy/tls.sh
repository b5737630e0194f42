#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes a certificate for the Service and tells kube-apiserver, and Prometheus, to
# trust it. Needs openssl 3 and kubectl, and the other files of this folder to be
# applied. Run it again before the certificate ends: every run makes a new
# authority, whose key is not kept.
#
# A run that replaces a certificate interrupts nobody. The authorities of earlier
# runs stay trusted until they end, and the new one is trusted before the Secret
# has its certificate. So it does not matter when a pod sees the new file, which
# it then serves without a restart.
set -euo pipefail

namespace=fleet-system
service=fleet-apiserver
group=fleet.example.com
versions=(v1 v1beta1)
days="${DAYS:-365}"

dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
cd "$dir"
umask 077

key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
openssl req -x509 "${key[@]}" -days "$days" -subj "/CN=$service authority" -keyout ca.key -out ca.crt
openssl req "${key[@]}" -subj "/CN=$service.$namespace.svc" \
  -addext "subjectAltName=DNS:$service.$namespace.svc" -addext "extendedKeyUsage=serverAuth" \
  -keyout tls.key -out tls.csr
openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -copy_extensions copy -days "$days" -out tls.crt

# trusted prints the authorities in a caBundle that have not ended, in PEM.
trusted() {
  [ -n "$1" ] || return 0
  rm -f old.*
  base64 -d <<<"$1" | awk '/-----BEGIN CERTIFICATE-----/ { n++ } n { print > ("old." n) }'
  local old
  for old in old.*; do
    if openssl x509 -in "$old" -checkend 0 -noout >/dev/null; then
      openssl x509 -in "$old"
    fi
  done
}

# First everybody trusts the new authority as well ...
before="$(kubectl get apiservice "${versions[0]}.$group" -o 'jsonpath={.spec.caBundle}')"
cp ca.crt bundle.crt
trusted "$before" >>bundle.crt
bundle="$(base64 <bundle.crt | tr -d '\n')"
for version in "${versions[@]}"; do
  kubectl patch apiservice "$version.$group" --type=merge -p "{\"spec\":{\"caBundle\":\"$bundle\"}}"
done
kubectl -n "$namespace" create configmap "$service-ca" --from-file=ca.crt=bundle.crt --dry-run=client -o yaml | kubectl apply -f -

# ... then the pods get the new certificate.
kubectl -n "$namespace" create secret tls "$service-tls" --cert=tls.crt --key=tls.key --dry-run=client -o yaml | kubectl apply -f -
