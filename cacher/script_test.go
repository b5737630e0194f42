// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/internal/script"
)

// TestScripts runs testdata/*.txt, which say what clients see. The README
// there describes the commands. Each script has virtual time of its own.
func TestScripts(t *testing.T) {
	script.Test(t, "testdata/*.txt", func(t *testing.T, play script.Play) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			play(f.run)
			f.end()
		})
	})
}

// fixture is a storage, a cache over it, and the clients of the cache.
type fixture struct {
	t        *testing.T
	store    *scriptStore
	poisoned *atomic.Bool
	cacher   *cacher.Cacher // nil before the command start
	metric   func(series string) float64
	// releases undo what was ordered, by what it was.
	releases map[string]func()
	// clients are in the order in which they came.
	clients []scriptClient
	// requests are those that storage got before the last command requests.
	requests map[string]int
}

// scriptClient is a watcher or a reader.
type scriptClient interface {
	label() string
	// news returns what has happened since the last call, "" if nothing did.
	news() string
	// giveUp ends the context of the client's request, end the client.
	giveUp()
	end()
}

func newFixture(t *testing.T) *fixture {
	return &fixture{
		t:        t,
		store:    &scriptStore{Store: newStore()},
		poisoned: &atomic.Bool{}, releases: map[string]func(){}, requests: map[string]int{},
	}
}

// end lets go of everything, so that no goroutine is left.
func (f *fixture) end() {
	for _, client := range f.clients {
		client.end()
	}
	for _, release := range f.releases {
		release()
	}
	if f.cacher != nil {
		f.cacher.Stop()
	}
	synctest.Wait()
}

// run runs a command, lets everything come to rest, and returns what the
// command printed and what each client got.
func (f *fixture) run(c *script.Command) (string, error) {
	commands := map[string]func(*script.Command) (string, error){
		"new": f.new, "start": f.start, "stop": f.stop, "ready": f.ready, "wait": f.wait, "watches": f.watches, "elapse": f.elapse, "status": f.status,
		"requests": f.requested, "metric": f.printMetric,
		"put": f.put, "remove": f.remove, "txn": f.txn, "fill": f.fill, "touch": f.touch, "compact": f.compact,
		"progress": f.progress, "restore": f.restore, "skip": f.skip, "inject": f.inject,
		"hold": f.hold, "release": f.release, "fail": f.fail, "break": f.breakWatches, "hang": f.hang, "corrupt": f.corrupt, "poison": f.poison,
		"watch": f.watch, "take": f.take, "cancel": f.cancel, "end": f.endWatches, "list": f.list, "get": f.get,
		"create": f.create, "delete": f.delete, "count": f.count, "bookmark": f.bookmark,
	}
	run, ok := commands[c.Name]
	if !ok {
		return "", fmt.Errorf("no command %q", c.Name)
	}
	printed, err := run(c)
	synctest.Wait()
	var lines []string
	if printed != "" {
		lines = append(lines, printed)
	}
	for _, client := range f.clients {
		if news := client.news(); news != "" {
			lines = append(lines, client.label()+": "+news)
		}
	}
	return strings.Join(lines, "\n"), err
}

// scriptStore marks the reads that it answers.
type scriptStore struct {
	*memstore.Store
	noProgress bool
}

// readMark is where a read notes that storage was asked for it.
type readMark struct{}

func mark(ctx context.Context) {
	if asked, ok := ctx.Value(readMark{}).(*atomic.Bool); ok {
		asked.Store(true)
	}
}

func (s *scriptStore) WatchProgress() bool { return !s.noProgress }

func (s *scriptStore) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	mark(ctx)
	return s.Store.Get(ctx, key, opts, out)
}

func (s *scriptStore) GetList(ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error {
	mark(ctx)
	return s.Store.GetList(ctx, key, opts, out)
}

// The commands about the cache.

func (f *fixture) new(c *script.Command) (string, error) {
	f.end()
	*f = *newFixture(f.t)
	f.store.noProgress, f.store.History = c.Flag("no-progress"), c.Flag("history")
	return "", nil
}

func (f *fixture) start(c *script.Command) (string, error) {
	change, err := f.configure(c)
	if err != nil {
		return "", err
	}
	if f.cacher != nil {
		f.cacher.Stop()
	}
	meters, metric := metered(f.t)
	f.metric = metric
	f.requests = f.store.Requests()
	f.cacher = newCache(f.t, f.store, change, meters)
	return "", nil
}

// configure reads the options of start.
func (f *fixture) configure(c *script.Command) (change func(*cacher.Config), err error) {
	var config cacher.Config
	duration := func(to *time.Duration, name string) {
		if d, e := c.Duration(name); d != 0 || e != nil {
			*to, err = d, errors.Join(err, e)
		}
	}
	number := func(name string) int {
		n, e := c.Number(name)
		err = errors.Join(err, e)
		return int(n)
	}
	duration(&config.EventsHistoryWindow, "history")
	duration(&config.BookmarkInterval, "bookmarks")
	duration(&config.FreshnessTimeout, "freshness")
	// Scripts count requests, and when a silent storage is asked whether it is there
	// depends on when it was heard of.
	config.StorageTimeout = 24 * time.Hour
	var initial time.Duration
	duration(&initial, "initial")
	duration(&config.IdleTimeout, "idle")
	duration(&config.DispatchBudget, "budget")
	config.WindowBytes = int64(number("window-bytes"))
	config.BoundInitialEvents(initial, int64(number("initial-bytes")))
	config.WatchBuffer = number("buffer")
	if c.Flag("no-stale-reads") {
		config.MaxFallbackLists = -1
	} else {
		config.MaxFallbackLists = number("stale-reads")
	}
	config.LazyStart = c.Flag("lazy")
	config.ConsistentGetFromStorage = c.Flag("get-from-storage")
	if !c.Flag("checks") {
		config.ConsistencyCheckInterval = -1
	}
	poisoned := f.poisoned
	return func(to *cacher.Config) {
		pods := podConfig(to.Storage)
		config.Storage, config.Versioner, config.GroupResource, config.ResourcePrefix = pods.Storage, pods.Versioner, pods.GroupResource, pods.ResourcePrefix
		config.KeyFunc, config.NewFunc, config.NewListFunc, config.Codec = pods.KeyFunc, pods.NewFunc, pods.NewListFunc, pods.Codec
		config.GetAttrsFunc = func(object runtime.Object) (labels.Set, fields.Set, error) {
			if l, _, _ := poddata.Attrs(object); poisoned.Load() && l["poison"] != "" {
				return nil, nil, errors.New("the object is poisoned")
			}
			return poddata.Attrs(object)
		}
		*to = config
	}, err
}

func (f *fixture) stop(*script.Command) (string, error) {
	f.cacher.Stop()
	return "", nil
}

func (f *fixture) ready(*script.Command) (string, error) {
	if err := f.cacher.ReadinessCheck(); err != nil {
		return "not ready", nil
	}
	return "ready", nil
}

func (f *fixture) wait(*script.Command) (string, error) {
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	if f.cacher.Wait(ctx) != nil {
		return "never ready", nil
	}
	return "became ready", nil
}

// watches prints how many watches of the storage are open.
func (f *fixture) watches(*script.Command) (string, error) {
	synctest.Wait()
	return fmt.Sprintf("%d watches of storage", f.store.Watches()), nil
}

// elapse lets virtual time pass.
func (f *fixture) elapse(c *script.Command) (string, error) {
	d, err := time.ParseDuration(c.Word())
	if err != nil {
		return "", err
	}
	elapse(d)
	return "", nil
}

func (f *fixture) status(*script.Command) (string, error) {
	s := f.cacher.Status()
	parts := []string{"not ready"}
	if s.Ready {
		parts[0] = "ready"
	}
	if s.Asleep {
		parts = append(parts, "asleep")
	}
	parts = append(parts, fmt.Sprintf("at %d, oldest %d, %d objects, %d events", s.ResourceVersion, s.OldestResourceVersion, s.Objects, s.WindowEvents))
	live, parked := 0, 0
	for _, w := range s.Watchers {
		if w.Parked {
			parked++
		} else {
			live++
		}
	}
	parts = append(parts, fmt.Sprintf("%d live, %d parked", live, parked))
	if s.Paused != nil {
		parts = append(parts, "paused")
	}
	return strings.Join(parts, ", "), nil
}

// requested prints the requests that storage got since the last time, all or
// those of some kinds.
func (f *fixture) requested(c *script.Command) (string, error) {
	now, kinds := f.store.Requests(), c.Words
	c.Words = nil
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(now)) {
		if n := now[kind] - f.requests[kind]; n > 0 && (len(kinds) == 0 || slices.Contains(kinds, kind)) {
			parts = append(parts, fmt.Sprintf("%s %d", kind, n))
		}
	}
	f.requests = now
	if parts == nil {
		return "no requests", nil
	}
	return "requests: " + strings.Join(parts, ", "), nil
}

func (f *fixture) printMetric(c *script.Command) (string, error) {
	name := c.Word()
	series := name
	var ls []string
	for _, p := range c.Pairs {
		ls = append(ls, fmt.Sprintf("%s=%q", p[0], p[1]))
	}
	c.Pairs = nil
	if ls != nil {
		series += "{" + strings.Join(ls, ",") + "}"
	}
	return fmt.Sprintf("%s %v", series, f.metric(series)), nil
}

// podOf makes the pod that a name and the remaining pairs say.
func podOf(name string, c *script.Command) (*example.Pod, error) {
	if !strings.Contains(name, "/") {
		return nil, fmt.Errorf("%q is no namespace/name", name)
	}
	var attrs []string
	for _, p := range c.Pairs {
		attrs = append(attrs, p[0]+"="+p[1])
	}
	return poddata.Pod(name, attrs...), nil
}
