#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Writes the generated files of the API: deepcopy functions and OpenAPI
# definitions. Run it after each change of api/v1.
set -eu
cd "$(dirname "$0")"
api="$(go list -m)/api"
meta="k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/version"
# The versions of the generators are those of the k8s.io modules in go.mod.
deepcopy_gen="${DEEPCOPY_GEN:-go run k8s.io/code-generator/cmd/deepcopy-gen@$(go list -m -f '{{.Version}}' k8s.io/apiserver)}"
openapi_gen="${OPENAPI_GEN:-go run k8s.io/kube-openapi/cmd/openapi-gen@$(go list -m -f '{{.Version}}' k8s.io/kube-openapi)}"

$deepcopy_gen --output-file zz_generated.deepcopy.go "$api/v1"
mkdir -p api/openapi
# shellcheck disable=SC2086 # the list of packages is several words
$openapi_gen --output-dir api/openapi --output-pkg "$api/openapi" --output-file zz_generated.openapi.go \
	--output-model-name-file zz_generated.model_name.go --report-filename /dev/null \
	$(for p in $meta; do echo --readonly-pkg "$p"; done) $meta "$api/v1"
