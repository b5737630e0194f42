// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kube-watchcache/watchcache/cacher"
)

// addCompression makes the server of the Config send lists in the compressed form
// that is kept of them. The handler that does it is the innermost of the chain:
// what logs, audits, measures or delays answers sees what it saw before.
func addCompression(config *genericapiserver.Config, lists *cacher.Lists) {
	build := config.BuildHandlerChainFunc
	if build == nil {
		build = genericapiserver.DefaultBuildHandlerChain
	}
	config.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return build(lists.Compress(api, mayCompressList), c)
	}
}

// mayCompressList reports whether the server, of itself, would compress a long
// answer to a LIST: whether the request is one, accepts gzip by the server's own
// rule, and the server's feature APIResponseCompression is on.
func mayCompressList(r *http.Request) bool {
	info, ok := request.RequestInfoFrom(r.Context())
	return ok && info.IsResourceRequest && info.Verb == "list" && r.Method == http.MethodGet &&
		responsewriters.ContentEncodingSupported(r, features.APIResponseCompression) == "gzip"
}
