// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// addCompression makes the server of the Config send lists and watches in the
// compressed form that is kept of them. Its handlers are within the server's own: those that
// log, audit, measure or delay responses see them as before.
func addCompression(config *genericapiserver.Config, installed *installation) {
	build := config.BuildHandlerChainFunc
	if build == nil {
		build = genericapiserver.DefaultBuildHandlerChain
	}
	lists := &installed.lists
	config.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return build(installed.shareInitialEvents(lists.Stream(lists.Serve(api, installed.asksForList), installed.asksForWatch)), c)
	}
}

// asksForList reports whether a request is a LIST of a resource that InstallAPIGroup has
// installed, and whether the server, of itself, would compress a long response: whether
// the request accepts gzip by the server's own rule, and the server's feature
// APIResponseCompression is on.
func (i *installation) asksForList(r *http.Request) (list, compressed bool) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest || info.Verb != "list" || r.Method != http.MethodGet {
		return false, false
	}
	_, served := i.servedBy(info)
	return served != nil, served != nil && answersCompressed(r)
}

// asksForWatch reports whether a request is for a watch of a resource that InstallAPIGroup
// has installed, and whether the server, of itself, would compress the answer: whether
// the watch begins with the whole state and the bookmark behind it, and accepts
// gzip, by the server's own rule and its feature WatchListCompression.
func (i *installation) asksForWatch(r *http.Request) (watch, compressed bool) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest || info.Verb != "watch" || r.Method != http.MethodGet || r.Header.Get("Upgrade") != "" {
		return false, false
	}
	if _, served := i.servedBy(info); served == nil {
		return false, false
	}
	if !watchesCompressed(r) {
		return true, false
	}
	var opts metainternalversion.ListOptions
	if metainternalversionscheme.ParameterCodec.DecodeParameters(r.URL.Query(), metav1.SchemeGroupVersion, &opts) != nil {
		return true, false // and the server says so
	}
	metainternalversion.SetListOptionsDefaults(&opts, utilfeature.DefaultFeatureGate.Enabled(features.WatchList))
	return true, opts.SendInitialEvents != nil && *opts.SendInitialEvents && opts.AllowWatchBookmarks
}
