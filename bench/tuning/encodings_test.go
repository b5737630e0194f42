// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tuning

import (
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/cachetest"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// encodingSizes are EncodingBytes in MiB; 0 keeps nothing.
var encodingSizes = []int64{0, 1, 2, 4, 8, 16, 32}

// amounts say how much is encoded.
type amounts struct {
	// objects of 3.2 KB of JSON are in the list, of which changed change between two
	// of the lists.
	objects, changed, lists int
	// clients that are behind by so many events catch up.
	clients, events int
	repeats         int
}

var (
	full  = amounts{objects: 2000, changed: 20, lists: 10, clients: 20, events: 1000, repeats: 5}
	small = amounts{objects: 20, changed: 2, lists: 2, clients: 2, events: 10, repeats: 1}
)

// text is JSON that takes an encoder some work, and that objects share.
var text = strings.Repeat("0123456789 text", 200)

// encoding is a cache whose lists and events a server encodes.
type encoding struct {
	lists   *cacher.ListEncodings
	store   *memstore.Store
	cache   *cacher.Cacher
	encoder runtime.Encoder
	next    int
}

func newEncoding(t *testing.T, objects int, mib int64) *encoding {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{example.AddToScheme, examplev1.AddToScheme} {
		require.NoError(t, add(scheme))
	}
	scheme.AddKnownTypes(example.SchemeGroupVersion, &example.PodList{})
	scheme.AddKnownTypes(examplev1.SchemeGroupVersion, &examplev1.PodList{})
	stock := serializer.NewCodecFactory(scheme, serializer.WithStreamingCollectionEncodingToJSON())
	info, ok := runtime.SerializerInfoForMediaType(stock.SupportedMediaTypes(), runtime.ContentTypeJSON)
	require.True(t, ok)
	lists := &cacher.ListEncodings{}
	e := &encoding{lists: lists, store: cachetest.NewStore(), encoder: lists.Serializer(stock).EncoderForVersion(info.Serializer, examplev1.SchemeGroupVersion)}
	e.change(objects, objects)
	e.cache = cachetest.Start(t, e.store, func(c *cacher.Config) {
		c.ConsistencyCheckInterval, c.Lists = -1, lists
		c.EncodingBytes = mib << 20
		if mib == 0 {
			c.EncodingBytes = -1
		}
	})
	return e
}

// change changes n of the objects, in turn.
func (e *encoding) change(n, objects int) {
	for range n {
		pod := poddata.Pod(fmt.Sprintf("a/pod-%05d", e.next%objects), "app=a", "tier=b")
		pod.Annotations = map[string]string{"text": text}
		cachetest.Put(e.store, pod)
		e.next++
	}
}

// cpu returns the CPU time of the process while f runs.
func cpu(t *testing.T, f func()) time.Duration {
	t.Helper()
	spent := func() int64 {
		var usage syscall.Rusage
		require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
		return usage.Utime.Nano() + usage.Stime.Nano()
	}
	before := spent()
	f()
	return time.Duration(spent() - before)
}

// list has the cache fill a list, and encodes it.
func (e *encoding) list(t *testing.T, objects int) {
	t.Helper()
	var list example.PodList
	options := storage.ListOptions{Recursive: true, Predicate: storage.Everything}
	ctx, end := e.lists.Begin(t.Context())
	defer end()
	require.NoError(t, e.cache.GetList(ctx, poddata.Prefix, options, &list))
	require.Len(t, list.Items, objects)
	require.NoError(t, e.encoder.Encode(&list, io.Discard))
}

// listCost returns the milliseconds of CPU of a list, in JSON.
func listCost(t *testing.T, a amounts, mib int64) float64 {
	e := newEncoding(t, a.objects, mib)
	for range 3 { // serializations are kept from the second use on
		e.list(t, a.objects)
	}
	spent := cpu(t, func() {
		for range a.lists {
			e.change(a.changed, a.objects)
			e.list(t, a.objects)
		}
	})
	return spent.Seconds() * 1000 / float64(a.lists)
}

// eventCost returns the microseconds of CPU of an event for one client, in JSON.
// The clients catch up one after the other.
func eventCost(t *testing.T, a amounts, mib int64) float64 {
	e := newEncoding(t, 1, mib)
	rv := fmt.Sprint(e.cache.Status().ResourceVersion)
	e.change(a.events, a.events)
	cachetest.Until(t, "the window has all events", func() bool { return e.cache.Status().WindowEvents == a.events })
	spent := cpu(t, func() {
		for range a.clients {
			w, err := e.cache.Watch(t.Context(), poddata.Prefix, storage.ListOptions{ResourceVersion: rv, Recursive: true, Predicate: storage.Everything})
			require.NoError(t, err)
			for range a.events {
				event := <-w.ResultChan()
				require.NoError(t, e.encoder.Encode(event.Object, io.Discard))
			}
			w.Stop()
		}
	})
	return spent.Seconds() * 1e6 / float64(a.clients) / float64(a.events)
}

// encodingTables are the runs about EncodingBytes.
func encodingTables(t *testing.T, a amounts) []table {
	t.Helper()
	lists := newTable("Milliseconds of CPU for a list", "EncodingBytes", encodingSizes)
	events := newTable("Microseconds of CPU for an event and client", "EncodingBytes", encodingSizes)
	for _, run := range []struct {
		name string
		to   *table
		cost func(*testing.T, amounts, int64) float64
	}{{"list", &lists, listCost}, {"event", &events, eventCost}} {
		costs := make([][]float64, len(encodingSizes))
		for range a.repeats {
			for i, mib := range encodingSizes {
				t.Run(fmt.Sprintf("%s/%d", run.name, mib), func(t *testing.T) {
					costs[i] = append(costs[i], run.cost(t, a, mib))
				})
			}
		}
		run.to.addSpread(run.name, costs)
	}
	return []table{lists, events}
}
