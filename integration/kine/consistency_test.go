// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/integration/internal/counting"
)

var checkedOften = cacher.Configure(func(c *cacher.Config) { c.ConsistencyCheckInterval = time.Second })

// TestConsistencyCheck: the cache compares itself with kine at one version, by
// keys alone where the storage can, else by whole objects, while writes go on.
func TestConsistencyCheck(t *testing.T) { onEach(t, testConsistencyCheck) }

func testConsistencyCheck(t *testing.T, db database) {
	t.Parallel()
	for name, test := range map[string]struct {
		whole bool
		by    counting.Kind
	}{
		"keys":    {false, counting.Keys},
		"objects": {true, counting.List},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixtureThrough(t, startKine(t, db), func(s storage.Interface) storage.Interface {
				if test.whole {
					return struct{ storage.Interface }{s}
				}
				return s
			}, noProgress, checkedOften)
			f.requests.Reset()
			for i := 0; f.metric(t, "consistency_checks_total", "passed") < 3; i++ {
				require.NoError(t, f.ctx.Err())
				f.create(t, f.stored, "ns/pod-"+strconv.Itoa(i))
				f.remove(t, f.stored, "ns/pod-"+strconv.Itoa(i))
				f.create(t, f.stored, "ns/kept-"+strconv.Itoa(i))
			}
			require.Zero(t, f.metric(t, "consistency_checks_total", "failed"), "%+v", f.cacher.Status().LastError)
			ranges := f.requests.Counts()
			require.Len(t, ranges, 1, "%v", ranges)
			require.GreaterOrEqual(t, ranges[test.by], 3)
			require.Equal(t, test.whole, f.requests.Bytes() > 0, "values crossed the wire")
		})
	}
}

// TestConsistencyCheckFindsAMissedEvent: a cache that was not told of a change
// finds out, and lists kine again.
func TestConsistencyCheckFindsAMissedEvent(t *testing.T) {
	onEach(t, testConsistencyCheckFindsAMissedEvent)
}

func testConsistencyCheckFindsAMissedEvent(t *testing.T, db database) {
	t.Parallel()
	f := newFixtureThrough(t, startKine(t, db), func(s storage.Interface) storage.Interface {
		return forgetful{Interface: s, versions: s.(versionLister)}
	}, noProgress, checkedOften)
	f.create(t, f.stored, "ns/forgotten")
	last := f.create(t, f.stored, "ns/last")
	f.reached(t, last.ResourceVersion)
	require.Equal(t, []string{"ns/last"}, names(f.list(t, f.cacher, "", from("0"))))
	eventually(t, func() bool { return f.metric(t, "consistency_checks_total", "failed") > 0 }, "no check fails")
	eventually(t, func() bool { return len(names(f.list(t, f.cacher, "", from("0")))) == 2 }, "the cache is not listed again")
	require.Equal(t, []string{"ns/forgotten", "ns/last"}, names(f.list(t, f.cacher, "", exactly(last.ResourceVersion))))
}

type versionLister interface {
	Versions(ctx context.Context, prefix string, rv uint64, visit func(key string, rv uint64) error) error
}

// forgetful does not tell its watches that an object called forgotten was
// written. The object is among the initial events of those that begin later.
type forgetful struct {
	storage.Interface
	versions versionLister
}

func (s forgetful) Versions(ctx context.Context, prefix string, rv uint64, visit func(key string, rv uint64) error) error {
	return s.versions.Versions(ctx, prefix, rv, visit)
}

// Watch implements storage.Interface.
func (s forgetful) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	w, err := s.Interface.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	initial := opts.SendInitialEvents != nil && *opts.SendInitialEvents
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		object, err := meta.Accessor(e.Object)
		if err != nil {
			return e, true
		}
		if object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			initial = false
		}
		return e, initial || object.GetName() != "forgotten"
	}), nil
}
