// SPDX-License-Identifier: Apache-2.0

//go:build !k8s36

package server

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/features"
)

// answersCompressed reports whether the server compresses the response to the request.
func answersCompressed(r *http.Request) bool {
	return responsewriters.ContentEncodingSupported(r, features.APIResponseCompression) == "gzip"
}

// watchesCompressed is answersCompressed for watches with initial events.
func watchesCompressed(r *http.Request) bool {
	return responsewriters.ContentEncodingSupported(r, features.WatchListCompression) == "gzip"
}
