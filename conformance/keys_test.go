// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/memstore"
)

const fleetPrefix = "/fleet/clusters/one/pods/"

// fleetKey puts Pods under the keys of a cluster.
func fleetKey(key string) string { return fleetPrefix + strings.TrimPrefix(key, Prefix) }

// reader is a storage that only reads. It counts the writes that it refuses.
type reader struct {
	memory
	refused *atomic.Int64
}

var errReadOnly = errors.New("this storage only reads")

// Create implements storage.Interface.
func (r reader) Create(context.Context, string, runtime.Object, runtime.Object, uint64) error {
	r.refused.Add(1)
	return errReadOnly
}

// Delete implements storage.Interface.
func (r reader) Delete(context.Context, string, runtime.Object, *storage.Preconditions, storage.ValidateObjectFunc, runtime.Object, storage.DeleteOptions) error {
	r.refused.Add(1)
	return errReadOnly
}

// GuaranteedUpdate implements storage.Interface.
func (r reader) GuaranteedUpdate(context.Context, string, runtime.Object, bool, *storage.Preconditions, storage.UpdateFunc, runtime.Object) error {
	r.refused.Add(1)
	return errReadOnly
}

// A storage that only reads, and has keys of its own, is judged by all clauses but those
// about writes, with and without a cacher, and never asked to write.
func TestReadOnlyStorage(t *testing.T) {
	var refused atomic.Int64
	r := &runner{test: t.Name(), all: ours(), open: func(*testing.T) Backend {
		m := memory{memstore.New(fleetPrefix, NewPod)}
		b := m.backend(reader{m, &refused})
		b.Key, b.Writer = fleetKey, m
		return b
	}}
	r.run(t)
	assert.NotZero(t, r.mu.hold, r.report())
	reason := ": Backend.Storage only reads: Backend.Writer is set"
	assert.ElementsMatch(t, []string{
		"Storage/ConcurrentUpdates" + reason, "Storage/ConcurrentCreates" + reason,
		"Cacher/ConcurrentUpdates" + reason, "Cacher/ConcurrentCreates" + reason, "Cacher/StaleCache" + reason,
	}, r.mu.skipped)
	assert.Zero(t, refused.Load(), "writes to the storage that only reads")
}
