// SPDX-License-Identifier: Apache-2.0

//go:build unix

package spans

import (
	"fmt"
	"io"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/race"
	"github.com/kube-watchcache/watchcache/storage/memory"
)

const (
	perNode = 60 // policies that a node sees
	span    = 20 // nodes that see a policy
)

var (
	nodes    = map[bool]int{false: 1000, true: 50}[race.Enabled]
	policies = nodes * perNode / span

	version  = schema.GroupVersion{Group: "spans.example.com", Version: "v1"}
	resource = version.WithResource("policies").GroupResource()
)

type strategy struct{ rest.RESTUpdateStrategy }

func (strategy) NamespaceScoped() bool { return false }

func serve(t *testing.T) (*memory.Store, REST, apiruntime.Codec) {
	t.Helper()
	scheme := apiruntime.NewScheme()
	scheme.AddKnownTypes(version, &Policy{}, &PolicyList{})
	scheme.AddKnownTypes(schema.GroupVersion{Group: version.Group, Version: apiruntime.APIVersionInternal}, &Policy{}, &PolicyList{})
	codec := serializer.NewCodecFactory(scheme).LegacyCodec(version)
	store, err := memory.New(memory.Config{
		GroupResource: resource, ResourcePrefix: "/policies", GetAttrsFunc: Attributes,
		KeyFunc: func(obj apiruntime.Object) (string, error) { return storage.NoNamespaceKeyFunc("/policies/", obj) },
		NewFunc: func() apiruntime.Object { return &Policy{} },
	})
	require.NoError(t, err)
	registry := &genericregistry.Store{
		NewFunc: func() apiruntime.Object { return &Policy{} }, NewListFunc: func() apiruntime.Object { return &PolicyList{} },
		DefaultQualifiedResource: resource, SingularQualifiedResource: resource,
		UpdateStrategy: strategy{}, DeleteStrategy: strategy{}, TableConvertor: rest.NewDefaultTableConvertor(resource),
	}
	restOptions := store.RESTOptions(codec)
	restOptions.Decorator = cacher.Decorator(cacher.WithRawStorage(store.RawStorage))
	options, err := store.StoreOptions(restOptions, scheme, version.WithKind("Policy"))
	require.NoError(t, err)
	require.NoError(t, registry.CompleteWithOptions(options))
	t.Cleanup(registry.Destroy)
	return store, REST{registry}, codec
}

func policy(n, change int) *Policy {
	p := &Policy{ObjectMeta: metav1.ObjectMeta{Name: "policy-" + strconv.Itoa(n)}}
	for i := range 20 {
		p.Rules = append(p.Rules, fmt.Sprintf("allow 10.0.%d.%d/32 tcp/%d", n%256, i, change))
	}
	for i := range span {
		p.Span = append(p.Span, nodeName((n+i*nodes/span)%nodes))
	}
	return p
}

func nodeName(n int) string { return "node-" + strconv.Itoa(n) }

// Each of 1,000 agents, 50 with the race detector, gets the changes and deletions of its node's policies, in the form for
// agents; each form of an event is encoded once.
func TestNodes(t *testing.T) {
	store, policiesREST, codec := serve(t)
	var encoded atomic.Int64
	encode := func(obj apiruntime.Object, w io.Writer) error {
		encoded.Add(1)
		return codec.Encode(obj, w)
	}
	cost := measure(t, "this store", func() (stop func()) {
		var reading sync.WaitGroup
		wrong := make(chan string, 2*nodes*perNode)
		for n := range nodes {
			w, err := policiesREST.Watch(t.Context(), &metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("nodeName", nodeName(n))})
			require.NoError(t, err)
			reading.Go(func() { // ends with the last event of the node, or with the watch
				defer w.Stop()
				for i := range 2 * perNode {
					event := <-w.ResultChan()
					shared, ok := event.Object.(apiruntime.CacheableObject)
					if !ok || shared.CacheEncode("json", encode, io.Discard) != nil || (i >= perNode) != (event.Type == watch.Deleted) {
						wrong <- fmt.Sprintf("event %d of %s: %v", i, nodeName(n), event)
						return
					}
					if event.Type == watch.Deleted && shared.GetObject().(*Policy).Rules != nil {
						wrong <- "a deletion with rules"
					}
				}
			})
		}
		return func() {
			for n := range policies {
				require.NoError(t, store.Upsert(t.Context(), policy(n, 1)))
			}
			require.NoError(t, store.Replace(t.Context(), nil))
			reading.Wait()
			close(wrong)
			for message := range wrong {
				require.Fail(t, message)
			}
		}
	})
	require.Equal(t, int64(2*policies), encoded.Load(), "once for all nodes")
	broadcast := measure(t, "a broadcast loop", func() func() { return broadcasting(codec) })
	t.Logf("%d watches, %d events: %v of CPU beside %v", nodes, 2*policies, cost, broadcast)

	list, err := policiesREST.List(t.Context(), &metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("nodeName", nodeName(1))})
	require.NoError(t, err)
	require.Empty(t, list.(*PolicyList).Items)
	require.NoError(t, store.Upsert(t.Context(), policy(1, 1)))
	require.NoError(t, store.Upsert(t.Context(), policy(2, 1)))
	list, err = policiesREST.List(t.Context(), &metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("nodeName", nodeName(1))})
	require.NoError(t, err)
	require.Len(t, list.(*PolicyList).Items, 1)
}

// broadcasting is the loop that such servers have: each event goes to all watches, which
// filter and encode it for themselves.
func broadcasting(codec apiruntime.Codec) (run func()) {
	var reading sync.WaitGroup
	watches := make([]chan *Policy, nodes)
	for n := range watches {
		watches[n] = make(chan *Policy, 1000)
		own := nodeName(n)
		reading.Go(func() { // ends with the channel
			for p := range watches[n] {
				for _, node := range p.Span {
					if node == own {
						_ = codec.Encode(p.DeepCopyObject(), io.Discard)
					}
				}
			}
		})
	}
	return func() {
		for n := range 2 * policies {
			p := policy(n%policies, 1)
			if n >= policies { // a deletion
				p.Rules = nil
			}
			for _, w := range watches {
				w <- p
			}
		}
		for _, w := range watches {
			close(w)
		}
		reading.Wait()
	}
}

// measure logs the memory of what open opens, and returns the CPU time of what that returns.
func measure(t *testing.T, name string, open func() (run func())) time.Duration {
	t.Helper()
	memory := func() uint64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc + stats.StackInuse
	}
	cpu := func() time.Duration {
		var usage syscall.Rusage
		require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	before := memory()
	run := open()
	t.Logf("%s: %d KiB a watch", name, (int64(memory())-int64(before))/int64(nodes)/1024)
	start := cpu()
	run()
	return cpu() - start
}
