// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"slices"
	"testing"

	"k8s.io/apiserver/pkg/storage"
)

// storeOf chooses what a clause is judged on.
type storeOf func(t *testing.T, f *fixture) storage.Interface

func rawStorage(_ *testing.T, f *fixture) storage.Interface    { return f.raw }
func throughCacher(t *testing.T, f *fixture) storage.Interface { return f.cache(t) }

// storeClause is a clause about any storage.Interface, cached or not.
type storeClause struct {
	name, rule string
	needs      needs
	races      bool
	run        func(t *testing.T, f *fixture, s storage.Interface)
}

// onBoth returns the clauses that hold with a cacher and without.
func onBoth(store storeOf) (out []clause) {
	for _, c := range slices.Concat(eventClauses, watchClauses, selectionClauses, versionClauses, writeClauses, onceClauses, concurrentClauses) {
		out = append(out, clause{name: c.name, rule: c.rule, needs: c.needs, races: c.races, run: func(t *testing.T, f *fixture) {
			c.run(t, f, store(t, f))
		}})
	}
	return out
}

// storageClauses are about what only the storage itself does.
func storageClauses() []clause {
	return slices.Concat(progressClauses, []clause{concurrentProgress}, signalClauses)
}

// cacherClauses are about what comes of both together.
func cacherClauses() []clause {
	return slices.Concat(cacheClauses, bookmarkClauses, slowClauses)
}
