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

// answersCompressed reports whether the server compresses responses and the request accepts gzip,
// by the unexported rule of Kubernetes 1.36: the first header must list "gzip" without a weight.
func answersCompressed(r *http.Request) bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.APIResponseCompression) &&
		slices.ContainsFunc(strings.Split(r.Header.Get("Accept-Encoding"), ","), func(token string) bool {
			return strings.TrimSpace(token) == "gzip"
		})
}

// watchesCompressed returns false. Kubernetes 1.36 compresses no watch.
func watchesCompressed(*http.Request) bool { return false }
