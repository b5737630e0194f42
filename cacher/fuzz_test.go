// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// selectors that the fuzzer chooses from: every operator, alone and together,
// with equalities that dispatch looks watchers up by and without.
var (
	fuzzLabels = []string{
		"", "color=red", "color=blue", "color!=red", "color in (red,blue)", "color in (red,green),size=1",
		"color notin (red)", "color", "!color", "size=1", "size!=1,color=red", "size in (1),color notin (blue)",
	}
	fuzzFields = []string{
		"", "metadata.name=one", "metadata.name!=one", "spec.nodeName=n1", "spec.nodeName=", "spec.nodeName!=n1",
		"metadata.namespace=a", "metadata.namespace=a,metadata.name=two", "spec.nodeName=n2,status.phase=Running", "no.such=field", "no.such=",
	}
	fuzzKeys   = []string{"/pods/", "/pods/a/", "/pods/aa/", "/pods/a/one"}
	fuzzPods   = []string{"a/one", "a/two", "aa/one", "b/one"}
	fuzzColors = []string{"", "red", "blue", "green"}
	fuzzSizes  = []string{"", "1", "2"}
	fuzzNodes  = []string{"", "n1", "n2"}
	fuzzPhases = []string{"", "Running"}
)

// fuzzInput deals out choices from the fuzzer's bytes.
type fuzzInput []byte

func (in *fuzzInput) choose(n int) int {
	if len(*in) == 0 {
		return 0
	}
	b := (*in)[0]
	*in = (*in)[1:]
	return int(b) % n
}

func pick[T any](in *fuzzInput, from []T) T { return from[in.choose(len(from))] }

// naiveWatch filters everything, one event after the other.
type naiveWatch struct {
	key       string
	predicate storage.SelectionPredicate
	want      []string
}

func (n *naiveWatch) matches(key string, pod *example.Pod) bool {
	inScope := key == n.key || (n.key[len(n.key)-1] == '/' && len(key) > len(n.key) && key[:len(n.key)] == n.key)
	if !inScope || pod == nil {
		return false
	}
	matches, err := n.predicate.Matches(pod)
	return err == nil && matches
}

func (n *naiveWatch) see(key string, before, after *example.Pod, rv uint64) {
	was, is := n.matches(key, before), n.matches(key, after)
	name := key[len("/pods/"):]
	switch {
	case was && is:
		n.want = append(n.want, fmt.Sprintf("MODIFIED %s@%d", name, rv))
	case is:
		n.want = append(n.want, fmt.Sprintf("ADDED %s@%d", name, rv))
	case was:
		n.want = append(n.want, fmt.Sprintf("DELETED %s@%d", name, rv))
	}
}

// FuzzWatch opens watches with random scopes and selectors at random times,
// lets some of them read late, changes objects at random, and compares what
// each watch gets with a watch that filters every event by itself.
func FuzzWatch(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"))
	f.Add([]byte("watch the cache, and the cache watches you: again and again and again"))
	for seed := range 8 { // a spread of choices, also without -fuzz
		data := make([]byte, 400)
		x := uint32(seed)*2654435761 + 1
		for i := range data {
			x = x*1664525 + 1013904223
			data[i] = byte(x >> 24)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			fuzzWatches(t, store, c, data)
		}, func(config *cacher.Config) {
			config.WatchBuffer = 2
			config.DispatchBudget = -1
			config.IndexerFuncs = poddata.Triggers()
		})
	})
}

func fuzzWatches(t *testing.T, store *memstore.Store, c *cacher.Cacher, data []byte) {
	in := fuzzInput(data)
	pods := map[string]*example.Pod{}
	var naive []*naiveWatch
	var watches []*podWatch
	var got [][]string
	for len(in) > 0 {
		switch in.choose(8) {
		case 0:
			if len(watches) == 20 {
				continue
			}
			n := &naiveWatch{key: pick(&in, fuzzKeys), predicate: poddata.Predicate(pick(&in, fuzzLabels), pick(&in, fuzzFields))}
			rv, _ := store.GetCurrentResourceVersion(t.Context())
			w := watchPods(t, c, n.key, fmt.Sprint(rv), func(o *storage.ListOptions) {
				o.Predicate = n.predicate
				o.Recursive = n.key[len(n.key)-1] == '/'
			})
			naive, watches, got = append(naive, n), append(watches, w), append(got, nil)
		case 1:
			synctest.Wait()
		case 2:
			if len(watches) > 0 {
				i := in.choose(len(watches))
				got[i] = append(got[i], received(watches[i])...)
			}
		case 3:
			key := "/pods/" + pick(&in, fuzzPods)
			if rv := store.Remove(key); rv > 0 {
				for _, n := range naive {
					n.see(key, pods[key], nil, rv)
				}
				delete(pods, key)
			}
		default:
			pod := fuzzPod(&in)
			key, _ := poddata.Key(pod)
			rv := put(store, pod)
			for _, n := range naive {
				n.see(key, pods[key], pod, rv)
			}
			pods[key] = pod
		}
	}
	for i, w := range watches {
		for more := received(w); len(more) > 0; more = received(w) {
			got[i] = append(got[i], more...)
		}
		assert.Equal(t, fmt.Sprint(naive[i].want), fmt.Sprint(got[i]), "watch %d of %s, labels %q, fields %q", i, naive[i].key, naive[i].predicate.Label, naive[i].predicate.Field)
	}
}

func fuzzPod(in *fuzzInput) *example.Pod {
	attrs := []string{"spec.nodeName=" + pick(in, fuzzNodes), "status.phase=" + pick(in, fuzzPhases)}
	name := pick(in, fuzzPods)
	if color := pick(in, fuzzColors); color != "" {
		attrs = append(attrs, "color="+color)
	}
	if size := pick(in, fuzzSizes); size != "" {
		attrs = append(attrs, "size="+size)
	}
	return poddata.Pod(name, attrs...)
}
