// SPDX-License-Identifier: Apache-2.0

//go:build k8s36

package server

import (
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// answersCompressed reports whether the server compresses responses and the request accepts gzip.
// Kubernetes 1.36 does not export its rule: an element of the first header must be exactly "gzip",
// without a weight.
func answersCompressed(r *http.Request) bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.APIResponseCompression) &&
		slices.ContainsFunc(strings.Split(r.Header.Get("Accept-Encoding"), ","), func(token string) bool {
			return strings.TrimSpace(token) == "gzip"
		})
}

// watchesCompressed reports false: the server of Kubernetes 1.36 compresses no watch.
func watchesCompressed(*http.Request) bool { return false }
