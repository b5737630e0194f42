// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/kube-watchcache/watchcache/internal/keptlists"
)

// withKeptBytes serves lists and watches from kept bytes. Watches share their initial events if the
// API's handler reads the cache's watch directly, i.e. without a Decorator or filter.
func (i *installation) withKeptBytes(api http.Handler) http.Handler {
	compressed := i.lists.Serve(api, i.classify)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if i.mayShare(r) {
			r = r.WithContext(keptlists.ShareInitialEvents(r.Context()))
		}
		compressed.ServeHTTP(w, r)
	})
}

// classify returns the verb of a LIST or WATCH of a group of InstallAPIGroup, and whether the
// server would compress a long response. Watches are compressed only with initial events and their
// bookmark.
func (i *installation) classify(r *http.Request) (verb string, compressed bool) {
	if _, _, served := i.servedBy(r, "list"); served != nil {
		return "list", answersCompressed(r)
	}
	if _, _, served := i.servedBy(r, "watch"); served == nil || r.Header.Get("Upgrade") != "" {
		return "", false
	}
	if !watchesCompressed(r) {
		return "watch", false
	}
	opts, ok := listOptions(r)
	return "watch", ok && opts.SendInitialEvents != nil && *opts.SendInitialEvents && opts.AllowWatchBookmarks
}

// listOptions returns the options of a LIST or WATCH, and false if the API's handler rejects them.
func listOptions(r *http.Request) (opts metainternalversion.ListOptions, ok bool) {
	if metainternalversionscheme.ParameterCodec.DecodeParameters(r.URL.Query(), metav1.SchemeGroupVersion, &opts) != nil {
		return opts, false
	}
	metainternalversion.SetListOptionsDefaults(&opts, utilfeature.DefaultFeatureGate.Enabled(features.WatchList))
	return opts, true
}

// mayShare reports whether only the API's handler reads a watch's initial events. It opens a watch
// of the storage for which the cache returns a probe, and checks that it gets this probe. After
// another watch, it no longer probes the resource.
func (i *installation) mayShare(r *http.Request) bool {
	info, group, served := i.servedBy(r, "watch")
	storage, ok := served.(rest.Watcher)
	if !ok {
		return false
	}
	if _, private := group.private.Load(info.Resource); private {
		return false
	}
	query := r.URL.Query()
	if rv := query.Get("resourceVersion"); rv != "" && rv != "0" && !query.Has("sendInitialEvents") {
		return false // no initial events
	}
	opts, ok := listOptions(r)
	if !ok {
		return false
	}
	same, other := i.lists.ReturnsWatches(request.WithNamespace(r.Context(), info.Namespace), func(ctx context.Context) (watch.Interface, error) {
		return storage.Watch(ctx, &opts)
	})
	if other {
		group.private.Store(info.Resource, struct{}{})
	}
	return same
}
