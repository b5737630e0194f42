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

// answers counts the memory of the lists under way that the server encodes as a whole before it
// writes. A list that is put together here takes little of its own, and is not counted.
type answers struct {
	mu struct {
		sync.Mutex
		held  int64
		bound int64 // the largest that a cache's room for kept bytes allows
		users map[string]int64
	}
}

// answer is one such list. The goroutine of the request owns it.
type answer struct {
	of    *answers
	user  string
	bytes int64
}

type answerKey struct{}

// smallAnswer is which part of the bound an answer takes at most that always has room.
const smallAnswer = 64

// Bound returns a handler within which Admit counts the lists of some requests: whole reports
// whether the server, of itself, encodes the whole list before it writes.
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

// Admit reports whether there is memory for the answer to a LIST with these elements, about four
// times their objects, which the answer has until its request ends.
func (l *Encoder) Admit(ctx context.Context, elements []*watchcache.Element, store *Store) bool {
	a, ok := ctx.Value(answerKey{}).(*answer)
	if r, _ := ctx.Value(requestKey{}).(*listRequest); !ok || r != nil && r.wanted != nil && !store.off() {
		return true
	}
	bytes := int64(0)
	for _, e := range elements {
		bytes += 4 * e.Size
	}
	// Eight times the room for kept bytes, and a quarter of the process's memory at most.
	return a.take(bytes, min(8*max(store.limit.Load(), 32<<20), debug.SetMemoryLimit(-1)/4))
}

// take replaces the bytes of the answer, and reports whether the bound allows that. Below the
// bound a user who holds nothing may have an answer of any size, and others half of the bound:
// clients who do not read turn away their own user first. A small answer of a user who holds
// nothing always has room.
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
