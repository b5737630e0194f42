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
)

// shareInitialEvents returns a handler that serves requests as next does. Watches of the
// groups of InstallAPIGroup share their initial events where the API's handler reads the
// watch of a cache as it is. A registry's Decorator, or a storage that filters its
// watches, gets private copies.
func (i *installation) shareInitialEvents(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if i.mayShare(r) {
			r = r.WithContext(i.lists.ShareInitialEvents(r.Context()))
		}
		next.ServeHTTP(w, r)
	})
}

// mayShare reports whether a request is for a watch with initial events which nothing
// but the API's handler will read. The storage of the resource answers that: the cache
// returns a watch without events for this question, and the storage must return the very
// same. A storage that returned another one is not asked again.
func (i *installation) mayShare(r *http.Request) bool {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest || info.Verb != "watch" || info.Subresource != "" || r.Method != http.MethodGet {
		return false
	}
	group, served := i.servedBy(info)
	storage, ok := served.(rest.Watcher)
	if !ok {
		return false
	}
	if _, private := group.private.Load(info.Resource); private {
		return false
	}
	query := r.URL.Query()
	if rv := query.Get("resourceVersion"); rv != "" && rv != "0" && !query.Has("sendInitialEvents") {
		return false // there are no initial events
	}
	var opts metainternalversion.ListOptions
	if metainternalversionscheme.ParameterCodec.DecodeParameters(query, metav1.SchemeGroupVersion, &opts) != nil {
		return false // and the server says so
	}
	metainternalversion.SetListOptionsDefaults(&opts, utilfeature.DefaultFeatureGate.Enabled(features.WatchList))
	same, other := i.lists.ReturnsWatches(request.WithNamespace(r.Context(), info.Namespace), func(ctx context.Context) (watch.Interface, error) {
		return storage.Watch(ctx, &opts)
	})
	if other {
		group.private.Store(info.Resource, struct{}{})
	}
	return same
}
