// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

var errEnded = errors.New("the watch has ended")

// change is what a watch tells of an object.
type change struct {
	typ  watch.EventType
	name string
	rv   uint64
}

// changes reads changes from w up to the first one of the object called last;
// bookmarks are left out. changes fails if the watch ends before.
func changes(ctx context.Context, w watch.Interface, last string) (all []change, err error) {
	for {
		select {
		case e, ok := <-w.ResultChan():
			switch {
			case !ok:
				return all, errEnded
			case e.Type == watch.Bookmark:
				continue
			}
			c, err := changeOf(e)
			if err != nil {
				return all, err
			}
			all = append(all, c)
			if c.name == last {
				return all, nil
			}
		case <-ctx.Done():
			return all, ctx.Err()
		}
	}
}

func changeOf(e watch.Event) (change, error) {
	if e.Type == watch.Error {
		return change{}, apierrors.FromObject(e.Object)
	}
	object, err := meta.Accessor(e.Object)
	if err != nil {
		return change{}, err
	}
	rv, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	return change{e.Type, object.GetNamespace() + "/" + object.GetName(), rv}, err
}

// watch opens a watch that ends with the test.
func (c *cached) watch(t *testing.T, s storage.Interface, namespace string, opts storage.ListOptions) watch.Interface {
	t.Helper()
	w, err := s.Watch(c.ctx, c.prefix+namespace, opts)
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	return w
}

// next is the next event of w.
func (c *cached) next(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		require.True(t, ok, "the watch has ended")
		return e
	case <-c.ctx.Done():
		require.FailNow(t, "no event came")
		return watch.Event{}
	}
}

// history is what has happened after a version, up to the first change of the
// object called last, as kine's own watch tells it afterwards. Nothing may have
// been compacted.
func (c *cached) history(t *testing.T, after, last string) []change {
	t.Helper()
	all, err := changes(c.ctx, c.watch(t, c.stored, "", from(after)), last)
	require.NoError(t, err)
	return all
}

// followers are watches of everything, each of which keeps what it is told.
type followers struct {
	cached      *cached
	after, last string
	group       sync.WaitGroup
	seen        [][]change
	errs        []error
}

// follow opens n watches of the cache after a version. They read up to the first
// change of the object called last.
func (c *cached) follow(t *testing.T, n int, after, last string) *followers {
	t.Helper()
	all := &followers{cached: c, after: after, last: last, seen: make([][]change, n), errs: make([]error, n)}
	for i := range n {
		w := c.watch(t, c.cacher, "", from(after))
		all.group.Go(func() { all.seen[i], all.errs[i] = changes(c.ctx, w, last) })
	}
	return all
}

// compare waits until the followers have read all, and compares what each was
// told with what has happened. compare returns how many changes that were.
func (all *followers) compare(t *testing.T) int {
	t.Helper()
	want := all.cached.history(t, all.after, all.last)
	all.group.Wait()
	for i, err := range all.errs {
		require.NoError(t, err, "watch %d, after %d changes", i, len(all.seen[i]))
		require.Equal(t, want, all.seen[i], "watch %d", i)
	}
	return len(want)
}
