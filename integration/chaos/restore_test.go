// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/integration/internal/judge"
)

// TestRestoredBackup puts an older state of all members back under servers
// that run on. The answers before it and those after it are judged, each by its
// own history; a watch that was open must end, for its client has a state that
// never was.
func TestRestoredBackup(t *testing.T) {
	asked := long.Only(t)
	noLeaks(t)
	ctx, dir := t.Context(), t.TempDir()
	r := newRun(t, asked.Seed, "")
	r.start()
	hold(ctx, 5*calm)
	backup := t.TempDir()
	resume := r.clients.pauseWrites()
	require.NoError(t, r.cluster.ReplaceData(ctx, func(data string) error {
		return os.CopyFS(filepath.Join(backup, filepath.Base(data)), os.DirFS(data))
	}))
	resume()
	hold(ctx, 5*calm)
	before := r.settle(ctx, dir)
	assert.Empty(t, before.violations, "before the backup was restored")
	r.unfollow()
	open := r.openWatches(ctx)

	require.NoError(t, r.cluster.ReplaceData(ctx, func(data string) error {
		if err := os.RemoveAll(data); err != nil {
			return err
		}
		return os.CopyFS(data, os.DirFS(filepath.Join(backup, filepath.Base(data))))
	}))
	restored := time.Now()
	lost := r.history.Rev()
	r.history.History = judge.NewHistory()
	upTo := r.recorded(ctx)
	require.Less(t, upTo, lost, "the revision has gone back")
	for _, s := range r.entries() {
		client := s.connect(t)
		r.await(ctx, "server "+s.name+" does not show the restored state", func() error {
			list, err := client.devices("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
			if err == nil && !maps.Equal(judge.ItemsOf(list), r.history.StateAt(judge.Selection{}, upTo)) {
				err = fmt.Errorf("another state, at %s", list.ResourceVersion)
			}
			return err
		})
	}
	for i, w := range open {
		r.awaitEnd(ctx, w, fmt.Sprintf("watch %d of the history that is gone", i))
	}
	fmt.Printf("backup restored, from revision %d back to %d: all servers show it, and %d watches have ended, after %v\n", lost, upTo, len(open), time.Since(restored).Round(time.Millisecond))

	r.clients = newClients(r, 1)
	r.clients.begin(r.history.StateAt(judge.Selection{}, upTo))
	r.timeline = newTimeline(r)
	r.start()
	hold(ctx, 5*calm)
	after := r.settle(ctx, dir)
	assert.Empty(t, after.violations, "after the backup was restored")
	assert.Positive(t, after.ops)
	fmt.Printf("judged before and after it: %d and %d operations, %d and %d events\n", before.ops, after.ops, before.events, after.events)
}

// openWatches opens watches at both servers that have the latest state.
func (r *run) openWatches(ctx context.Context) (all []watch.Interface) {
	r.t.Helper()
	for _, s := range r.entries() {
		client := s.connect(r.t)
		list, err := client.devices("").List(ctx, metav1.ListOptions{})
		require.NoError(r.t, err)
		for i := range 6 {
			options := metav1.ListOptions{ResourceVersion: list.ResourceVersion, AllowWatchBookmarks: i%2 == 0}
			if i > 3 {
				options.LabelSelector = "lane=" + strconv.Itoa(i-4)
			}
			w, err := client.devices("").Watch(ctx, options)
			require.NoError(r.t, err)
			r.t.Cleanup(w.Stop)
			all = append(all, w)
		}
	}
	return all
}

// awaitEnd reads a watch until it is closed, or is told that it has ended.
func (r *run) awaitEnd(ctx context.Context, w watch.Interface, what string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		select {
		case event, ok := <-w.ResultChan():
			if !ok || event.Type == watch.Error {
				return
			}
			require.Equal(r.t, watch.Bookmark, event.Type, "%s goes on: %v", what, event)
		case <-ctx.Done():
			require.Fail(r.t, what+" does not end")
			return
		}
	}
}
