// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// replay is the naive store: the whole state at every version, for ever.
type replay struct {
	store *memstore.Store

	mu struct {
		sync.Mutex
		states    map[uint64]map[string]*example.Pod
		rv        uint64
		compacted uint64
	}
}

func newReplay() *replay {
	r := &replay{store: newStore()}
	r.mu.rv = 1
	r.mu.states = map[uint64]map[string]*example.Pod{1: {}}
	return r
}

// write does a write to the store and remembers what it has become. Nobody
// sees the one without the other.
func (r *replay) write(f func(state map[string]*example.Pod) uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := maps.Clone(r.mu.states[r.mu.rv])
	if rv := f(state); rv > 0 {
		r.mu.rv = rv
		r.mu.states[rv] = state
	}
}

func (r *replay) put(pod *example.Pod) {
	r.write(func(state map[string]*example.Pod) uint64 {
		key, _ := poddata.Key(pod)
		state[key] = pod
		return put(r.store, pod)
	})
}

func (r *replay) remove(key string) {
	r.write(func(state map[string]*example.Pod) uint64 {
		delete(state, key)
		return r.store.Remove(key)
	})
}

func (r *replay) touch() {
	r.write(func(map[string]*example.Pod) uint64 { return r.store.Touch() })
}

func (r *replay) compact(rv uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.compacted = max(r.mu.compacted, rv)
	r.store.Compact(rv)
}

func (r *replay) now() (rv, compacted uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.rv, r.mu.compacted
}

// list is what a LIST at rv is to give: the selected pods in scope from a key
// on, each with its version.
func (r *replay) list(rv uint64, key, from string, recursive bool, predicate storage.SelectionPredicate) []string {
	r.mu.Lock()
	state := r.mu.states[rv]
	r.mu.Unlock()
	lines := []string{}
	for _, k := range slices.Sorted(maps.Keys(state)) {
		if k < from || (k != key && !(recursive && strings.HasPrefix(k, key))) {
			continue
		}
		if matches, err := predicate.Matches(state[k]); err == nil && matches {
			lines = append(lines, k+"@"+state[k].ResourceVersion)
		}
	}
	return lines
}

func linesOf(pods *example.PodList) []string {
	lines := []string{}
	for i := range pods.Items {
		key, _ := poddata.Key(&pods.Items[i])
		lines = append(lines, key+"@"+pods.Items[i].ResourceVersion)
	}
	return lines
}

// checker does reads of a cache over a replay and compares.
type checker struct {
	*rapid.T
	ctx    context.Context
	replay *replay
	cacher *cacher.Cacher
}

var (
	replayPods   = []string{"a/one", "a/two", "a/three", "aa/one", "b/one", "b/two"}
	replayKeys   = []string{"/pods/", "/pods/a/", "/pods/aa/", "/pods/b", "/pods/none/"}
	replayLabels = []string{"", "", "color=red", "color in (red,blue)", "color!=red", "color", "!color", "color in (red),size=1"}
	replayFields = []string{"", "", "spec.nodeName=n1", "spec.nodeName=", "metadata.namespace=a", "metadata.name=one", "spec.nodeName!=n1,metadata.namespace=b"}
)

func draw[T any](t *rapid.T, what string, from []T) T { return rapid.SampledFrom(from).Draw(t, what) }

func randomPod(t *rapid.T) *example.Pod {
	var attrs []string
	for _, values := range [][]string{{"", "color=red", "color=blue"}, {"", "size=1", "size=2"}, {"", "spec.nodeName=n1", "spec.nodeName=n2"}} {
		if attr := draw(t, "attribute", values); attr != "" {
			attrs = append(attrs, attr)
		}
	}
	return poddata.Pod(draw(t, "pod", replayPods), attrs...)
}

func (c *checker) write() {
	switch rapid.IntRange(0, 9).Draw(c.T, "write") {
	case 0, 1, 2, 3, 4, 5:
		c.replay.put(randomPod(c.T))
	case 6, 7:
		c.replay.remove("/pods/" + draw(c.T, "remove", replayPods))
	case 8:
		c.replay.touch()
	case 9:
		if rv, _ := c.replay.now(); rapid.IntRange(0, 2).Draw(c.T, "compact") == 0 {
			c.replay.compact(rv - min(rv-1, uint64(rapid.IntRange(0, 10).Draw(c.T, "back"))))
		}
	}
}

// version draws one that exists, and may have been compacted.
func (c *checker) version() uint64 {
	rv, _ := c.replay.now()
	return rv - min(rv-1, uint64(rapid.IntRange(0, 20).Draw(c.T, "back")))
}

// list does one LIST without a continue token and compares it with the replay
// at its version, which must be one that was asked for.
func (c *checker) list() {
	opts := everything("")
	opts.Predicate = poddata.Predicate(draw(c.T, "label", replayLabels), draw(c.T, "field", replayFields))
	key := draw(c.T, "key", replayKeys)
	if rapid.IntRange(0, 9).Draw(c.T, "one key") == 0 {
		key, opts.Recursive = "/pods/"+draw(c.T, "pod", replayPods), false
	}
	current, compacted := c.replay.now()
	version := c.version()
	least, most := current, current
	switch rapid.IntRange(0, 3).Draw(c.T, "version") {
	case 1:
		opts.ResourceVersion, least = "0", 1
	case 2:
		opts.ResourceVersion, least = fmt.Sprint(version), version
		opts.ResourceVersionMatch = draw(c.T, "match", []metav1.ResourceVersionMatch{"", metav1.ResourceVersionMatchNotOlderThan})
	case 3:
		opts.ResourceVersion, least, most = fmt.Sprint(version), version, version
		opts.ResourceVersionMatch = metav1.ResourceVersionMatchExact
	}
	pods := &example.PodList{}
	err := c.cacher.GetList(c.ctx, key, opts, pods)
	if least == most && least < compacted {
		require.True(c, apierrors.IsResourceExpired(err), "LIST %s exactly at %d, compacted up to %d: got %v", key, version, compacted, err)
		return
	}
	require.NoError(c, err, "LIST %s at %q %s", key, opts.ResourceVersion, opts.ResourceVersionMatch)
	at, _ := strconv.ParseUint(pods.ResourceVersion, 10, 64)
	require.GreaterOrEqual(c, at, least, "LIST %s at %q %s", key, opts.ResourceVersion, opts.ResourceVersionMatch)
	require.LessOrEqual(c, at, most, "LIST %s at %q %s", key, opts.ResourceVersion, opts.ResourceVersionMatch)
	if opts.Recursive && !strings.HasSuffix(key, "/") {
		key += "/"
	}
	c.compare(fmt.Sprintf("LIST %s at %q %s", key, opts.ResourceVersion, opts.ResourceVersionMatch), linesOf(pods),
		c.replay.list(at, key, "", opts.Recursive, opts.Predicate))
}

// pages walks through a list with writes between its pages. They concatenate
// to the version of the first one; or, if that was compacted, the walk may be
// continued at the latest version.
func (c *checker) pages() {
	predicate := poddata.Predicate(draw(c.T, "label", replayLabels), draw(c.T, "field", replayFields))
	key := draw(c.T, "key", []string{"/pods/", "/pods/a/"})
	opts := everything("")
	opts.Predicate = predicate
	opts.Predicate.Limit = int64(rapid.IntRange(1, 4).Draw(c.T, "limit"))
	got := []string{}
	var at uint64
	for {
		current, _ := c.replay.now()
		pods := &example.PodList{}
		err := c.cacher.GetList(c.ctx, key, opts, pods)
		if _, compacted := c.replay.now(); at > 0 && at < compacted {
			c.rest(err, key, predicate)
			return
		}
		require.NoError(c, err, "a page of %s at %d", key, at)
		rv, _ := strconv.ParseUint(pods.ResourceVersion, 10, 64)
		if at == 0 {
			require.Equal(c, current, rv, "where a page of %s is", key)
		} else {
			require.Equal(c, at, rv, "where a page of %s is", key)
		}
		at = rv
		got = append(got, linesOf(pods)...)
		if opts.Predicate.Continue = pods.Continue; pods.Continue == "" {
			break
		}
		require.Equal(c, opts.Predicate.Limit, int64(len(pods.Items)), "a page of %s has %d items, and there are more", key, len(pods.Items))
		for range rapid.IntRange(0, 3).Draw(c.T, "writes") {
			c.write()
		}
	}
	c.compare(fmt.Sprintf("the pages of %s at %d", key, at), got, c.replay.list(at, key, "", true, predicate))
}

// rest goes on with a walk whose version was compacted, by the token that the
// error has.
func (c *checker) rest(err error, key string, predicate storage.SelectionPredicate) {
	var status apierrors.APIStatus
	require.True(c, apierrors.IsResourceExpired(err), "a page of a compacted version: got %v", err)
	require.True(c, errors.As(err, &status), "a page of a compacted version: %v has no status", err)
	opts := everything("")
	opts.Predicate = predicate
	opts.Predicate.Continue = status.Status().Continue
	from, _, err := storage.DecodeContinue(opts.Predicate.Continue, key)
	require.NoError(c, err)
	current, _ := c.replay.now()
	pods := &example.PodList{}
	err = c.cacher.GetList(c.ctx, key, opts, pods)
	require.NoError(c, err, "going on at the latest version, %d", current)
	require.Equal(c, fmt.Sprint(current), pods.ResourceVersion, "going on at the latest version")
	c.compare("the rest of "+key, linesOf(pods), c.replay.list(current, key, from, true, predicate))
}

func (c *checker) get() {
	key := "/pods/" + draw(c.T, "pod", replayPods)
	version, current := c.version(), uint64(0)
	current, _ = c.replay.now()
	rv, least := "", current
	switch rapid.IntRange(0, 2).Draw(c.T, "version") {
	case 1:
		rv, least = "0", 1
	case 2:
		rv, least = fmt.Sprint(version), version
	}
	pod := &example.Pod{}
	require.NoError(c, c.cacher.Get(c.ctx, key, storage.GetOptions{ResourceVersion: rv, IgnoreNotFound: true}, pod), "GET %s at %q", key, rv)
	for at := least; at <= current; at++ {
		c.replay.mu.Lock()
		want, has := c.replay.mu.states[at][key]
		c.replay.mu.Unlock()
		if has && want.ResourceVersion == pod.ResourceVersion || !has && pod.ResourceVersion == "" {
			return
		}
	}
	require.FailNow(c, fmt.Sprintf("GET %s at %q: got version %q, which it has not had from %d to %d", key, rv, pod.ResourceVersion, least, current))
}

func (c *checker) compare(what string, got, want []string) {
	require.Equal(c, want, got, what)
}

// Every read equals the naive replay at its version, pages concatenate, and a
// read without a version is not older than any write that had completed;
// whatever was written and compacted, whether the window holds much or hardly
// anything, and whether there are indexes or not.
func TestReadsEqualTheReplay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newReplay()
		config := podConfig(r.store)
		if rapid.Bool().Draw(rt, "indexes") {
			config.LabelIndexes = []string{"color"}
			config.Indexers = &cache.Indexers{storage.FieldIndex("spec.nodeName"): byNode}
		}
		if rapid.Bool().Draw(rt, "a small window") {
			config.WindowBytes = 4000
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c := &checker{T: rt, ctx: ctx, replay: r}
		for range rapid.IntRange(0, 10).Draw(rt, "writes before the cache") {
			c.write()
		}
		var err error
		c.cacher, err = cacher.New(config)
		require.NoError(rt, err)
		defer c.cacher.Stop()
		require.NoError(rt, c.cacher.Wait(ctx))
		for range rapid.IntRange(1, 40).Draw(rt, "operations") {
			switch rapid.IntRange(0, 5).Draw(rt, "operation") {
			case 0, 1, 2:
				c.write()
			case 3:
				c.list()
			case 4:
				c.get()
			case 5:
				c.pages()
			}
		}
	})
}

// The same while writes go on: what is read is some version's replay, and not
// older than what had been written when the read began.
func TestReadsDuringWrites(t *testing.T) {
	r := newReplay()
	c := start(t, r.store, withLabels("color"))
	ctx, cancel := context.WithCancel(testContext(t))
	var writer, readers sync.WaitGroup
	writer.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			name := replayPods[i*7%len(replayPods)]
			if i%5 == 4 {
				r.remove("/pods/" + name)
			} else {
				r.put(poddata.Pod(name, fmt.Sprintf("color=%d", i%3)))
			}
			if i%50 == 0 {
				// and let readers come
				_, _, err := listAt(ctx, c, everything(""))
				if err != nil {
					assert.Error(t, ctx.Err(), err)
				}
			}
		}
	})
	predicate := poddata.Predicate("color in (0,1)", "")
	for range 4 {
		readers.Go(func() {
			for range 100 {
				before, _ := r.now()
				opts := everything("")
				opts.Predicate = predicate
				pods, at, err := listAt(ctx, c, opts)
				if !assert.NoError(t, err) || !assert.GreaterOrEqual(t, at, before, "the version of a read, and the one that was written before it") {
					return
				}
				got, want := linesOf(pods), r.list(at, "/pods/", "", true, predicate)
				if !assert.Equal(t, want, got, "at %d", at) {
					return
				}
				opts = everything(fmt.Sprint(before))
				opts.ResourceVersionMatch = metav1.ResourceVersionMatchExact
				pods, _, err = listAt(ctx, c, opts)
				if !assert.NoError(t, err) {
					return
				}
				got, want = linesOf(pods), r.list(before, "/pods/", "", true, storage.Everything)
				if !assert.Equal(t, want, got, "exactly at %d", before) {
					return
				}
			}
		})
	}
	readers.Wait()
	cancel()
	writer.Wait()
}

func listAt(ctx context.Context, c storage.Interface, opts storage.ListOptions) (*example.PodList, uint64, error) {
	pods := &example.PodList{}
	if err := c.GetList(ctx, "/pods/", opts, pods); err != nil {
		return nil, 0, err
	}
	at, err := strconv.ParseUint(pods.ResourceVersion, 10, 64)
	return pods, at, err
}
