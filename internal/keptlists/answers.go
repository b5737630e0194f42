// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"context"
	"net/http"
	"runtime/debug"
	"sync"

	endpoints "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// answers bounds the memory of lists that the server encodes as a whole before it writes. Lists
// assembled here need little memory and are not counted.
type answers struct {
	mu struct {
		sync.Mutex
		held  int64
		bound int64 // the largest seen; depends on a cache's limit of kept bytes
		users map[string]int64
	}
}

// answer is one such list, owned by the request's goroutine.
type answer struct {
	of    *answers
	user  string
	bytes int64
}

type answerKey struct{}

// A user's only answer is always admitted up to bound/smallAnswer.
const smallAnswer = 64

// Bound returns a handler in which Admit counts the requests selected by whole, for lists that the
// server would encode as a whole.
func (l *Encoder) Bound(next http.Handler, whole func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if whole(r) {
			a := &answer{of: &l.answers}
			if u, ok := endpoints.UserFrom(r.Context()); ok {
				a.user = u.GetName()
			}
			defer a.take(0, 0)
			r = r.WithContext(context.WithValue(r.Context(), answerKey{}, a))
		}
		next.ServeHTTP(w, r)
	})
}

// Admit reserves memory for the response to a LIST of these elements, estimated at four times their
// size, until the request ends. It returns false if there is none.
func (l *Encoder) Admit(ctx context.Context, elements []*watchcache.Element, store *Store) bool {
	a, ok := ctx.Value(answerKey{}).(*answer)
	if r, _ := ctx.Value(requestKey{}).(*listRequest); !ok || r != nil && r.wanted != nil && !store.off() {
		return true
	}
	bytes := int64(0)
	for _, e := range elements {
		bytes += 4 * e.Size
	}
	// Eight times the limit of kept bytes, at most a quarter of the process's memory limit.
	return a.take(bytes, min(8*max(store.limit.Load(), 32<<20), debug.SetMemoryLimit(-1)/4))
}

// take replaces the bytes of the answer if the bound allows that. Below the bound, a user's first
// answer may have any size, further ones half of the bound in total: clients who don't read block
// their own user first. A small first answer is always admitted.
func (a *answer) take(bytes, bound int64) bool {
	mu := &a.of.mu
	mu.Lock()
	defer mu.Unlock()
	held, own := mu.held-a.bytes, mu.users[a.user]-a.bytes
	mu.bound = max(mu.bound, bound)
	allowed := bytes == 0 || own == 0 && bytes <= mu.bound/smallAnswer || held < mu.bound && (own == 0 || own+bytes <= mu.bound/2)
	if !allowed {
		bytes = 0
	}
	if mu.users == nil {
		mu.users = map[string]int64{}
	}
	a.bytes, mu.held, mu.users[a.user] = bytes, held+bytes, own+bytes
	if own+bytes == 0 {
		delete(mu.users, a.user)
	}
	return allowed
}
