// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/debug"
)

// withPage serves debug.Path to clients that pass the server's filters, adds the client to the
// context of each watch, and rejects new watches during shutdown.
func (i *installation) withPage(api http.Handler, c *genericapiserver.Config) http.Handler {
	page := debug.New(debug.Config{Caches: i.all, Authorizer: c.Authorization.Authorizer})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == debug.Path {
			page.ServeHTTP(w, r)
			return
		}
		if info, ok := request.RequestInfoFrom(r.Context()); ok && info.Verb == "watch" {
			if i.ending.Load() {
				w.Header().Set("Retry-After", "1")
				http.Error(w, "the server is shutting down", http.StatusTooManyRequests)
				return
			}
			client := status.Client{UserAgent: r.UserAgent(), Address: r.RemoteAddr}
			if user, ok := request.UserFrom(r.Context()); ok {
				client.User = user.GetName()
			}
			r = r.WithContext(cacher.WithClient(r.Context(), client))
		}
		api.ServeHTTP(w, r)
	})
}

// all returns the open caches without duplicates, by resource and then by age.
func (i *installation) all() []*cacher.Cacher {
	i.mu.Lock()
	entries := slices.Clone(i.mu.caches)
	i.mu.Unlock()
	slices.SortStableFunc(entries, func(a, b *entry) int { return cmp.Compare(a.resource.String(), b.resource.String()) })
	var all []*cacher.Cacher
	for _, e := range entries {
		if c := cacher.CacheOf(e.storage); c != nil && !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}
