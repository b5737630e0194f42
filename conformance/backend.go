// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/client-go/util/watchlist"

	"github.com/kube-watchcache/watchcache/storage/capability"
)

// Backend is one storage to be judged. Only Storage is required. Clauses that
// need what is left out are skipped, with a reason, and counted.
type Backend struct {
	// Storage stores Pods, the objects of NewPod, under Prefix (see Key). There is
	// nothing in it yet. If it has a method WatchProgress() bool, that tells
	// whether it answers RequestWatchProgress, as it tells the cacher.
	Storage storage.Interface

	// Key returns the key of Storage for a key of the clauses, "/pods/NAMESPACE/NAME", or
	// for a prefix of keys, "/pods/NAMESPACE" or "/pods/". A cacher over Storage gets
	// Storage's keys. nil: they are the same.
	Key func(key string) string

	// Writer writes to the data of a Storage that only reads, with Storage's keys. The
	// clauses about writes are skipped then, and a cacher finds none of the methods of
	// package capability. nil: Storage takes writes.
	Writer Writer

	// WatchProgress tells whether Storage answers RequestWatchProgress. nil:
	// Storage is asked, else k8s.io/apiserver's process-wide checker of etcd's
	// features.
	WatchProgress func() bool

	// Compact makes the backend forget its history before the
	// resourceVersion, and returns when it has: a LIST at exactly an earlier
	// one fails then, a LIST at exactly rv does not. A backend may do so to
	// everything on the same server. nil: the backend can't be told to.
	Compact func(ctx context.Context, rv uint64) error

	// Touch writes something that is not under Prefix, so that the
	// resourceVersion moves on by one while Pods are idle, and returns it.
	// nil: resourceVersions count the writes of Pods only, or there is nothing
	// else to write.
	Touch func(ctx context.Context) (uint64, error)

	// Patience is how long is waited for what is sure to come. The requests of a
	// clause as a whole take four times that at most: then their context ends. 0:
	// DefaultPatience.
	Patience time.Duration

	// ClauseTimeout is for how long a clause may go on in all before it is taken
	// for one that hangs: because the backend does not return when a context ends,
	// say. The clause fails then, with the stacks of all goroutines, and the others
	// are judged. Closing the backend may take as long; if it does not end, the
	// process does, after the report of what was judged. At least four times
	// Patience. 0: eight times Patience.
	ClauseTimeout time.Duration

	// Deviations are the clauses that the backend is known to break: the
	// clause's name, as "Storage/EventOrder", and the reason. Such a clause
	// runs in a process of its own, the same test binary, and must fail
	// there, a race in one of a few runs. If it holds, Run fails, so that the
	// entry goes when the backend has improved.
	Deviations map[string]string
}

// Writer is the writing methods of storage.Interface.
type Writer interface {
	Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error
	Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
		validateDeletion storage.ValidateObjectFunc, cachedExistingObject runtime.Object, opts storage.DeleteOptions) error
	GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
		preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cachedExistingObject runtime.Object) error
}

// DefaultPatience is what Backend.Patience is if it is not set.
const DefaultPatience = 30 * time.Second

// bound is the time after which the context of a clause ends.
func (b Backend) bound() time.Duration {
	return 4 * cmp.Or(b.Patience, DefaultPatience)
}

func (b Backend) clauseTimeout() time.Duration {
	return cmp.Or(b.ClauseTimeout, 2*b.bound())
}

func (b Backend) progress() bool {
	if b.WatchProgress != nil {
		return b.WatchProgress()
	}
	if s, ok := b.Storage.(capability.ProgressReporter); ok {
		return s.WatchProgress()
	}
	return etcdfeature.DefaultFeatureSupportChecker.Supports(storage.RequestWatchProgress)
}

// needs is what a clause needs of a backend beyond Storage.
type needs int

const (
	progress needs = 1 << iota
	compaction
	touch
	initialEvents
	writes
)

// lack says what is missing, "" if nothing is.
func (n needs) lack(b Backend) string {
	switch {
	case n&progress != 0 && !b.progress():
		return "the backend does not claim to answer RequestWatchProgress"
	case n&compaction != 0 && b.Compact == nil:
		return "Backend.Compact is nil"
	case n&writes != 0 && b.Writer != nil:
		return "Backend.Storage only reads: Backend.Writer is set"
	case n&touch != 0 && b.Touch == nil:
		return "Backend.Touch is nil"
	case n&initialEvents != 0 && watchlist.DoesClientNotSupportWatchListSemantics(b.Storage):
		return "Backend.Storage says that its watches can't begin with the initial state"
	}
	return ""
}
