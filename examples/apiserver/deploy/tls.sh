#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes a certificate for the Service and tells kube-apiserver to trust it. Needs
# openssl 3 and kubectl, and the other files of this folder to be applied. Run it
# again before the certificate ends: every run makes a new authority, whose key is
# not kept.
set -euo pipefail

namespace=fleet-system
service=fleet-apiserver
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

kubectl -n "$namespace" create secret tls "$service-tls" --cert=tls.crt --key=tls.key --dry-run=client -o yaml | kubectl apply -f -
bundle="$(base64 < ca.crt | tr -d '\n')"
for version in v1 v1beta1; do
  kubectl patch apiservice "$version.fleet.example.com" --type=merge -p "{\"spec\":{\"caBundle\":\"$bundle\"}}"
done
