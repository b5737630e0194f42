// SPDX-License-Identifier: Apache-2.0

package shadow

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/metrics"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// tampered is a storage whose answers a test changes. It answers as a cache does: the
// NotFound of a GET says its version.
type tampered struct {
	*memstore.Store
	get    func(key string, pod *example.Pod, err error) error
	list   func(opts storage.ListOptions, list *example.PodList, err error) error
	events func(event watch.Event, send func(watch.Event))
	opened error
}

func (s *tampered) Get(ctx context.Context, key string, opts storage.GetOptions, into runtime.Object) error {
	err := s.Store.Get(ctx, key, opts, into)
	if storage.IsNotFound(err) {
		current, _ := s.GetCurrentResourceVersion(ctx)
		err = storage.NewKeyNotFoundError(key, int64(current))
	}
	if s.get != nil {
		err = s.get(key, into.(*example.Pod), err)
	}
	return err
}

func (s *tampered) GetList(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	err := s.Store.GetList(ctx, key, opts, into)
	if s.list != nil {
		err = s.list(opts, into.(*example.PodList), err)
	}
	return err
}

func (s *tampered) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if s.opened != nil {
		return nil, s.opened
	}
	w, err := s.Store.Watch(ctx, key, opts)
	if err != nil || s.events == nil {
		return w, err
	}
	out := watch.NewRaceFreeFake() // has room for 100 events
	go func() {
		defer out.Stop()
		for event := range w.ResultChan() {
			s.events(event, func(e watch.Event) { out.Action(e.Type, e.Object) })
		}
	}()
	return forwarded{out, w}, nil
}

type forwarded struct {
	*watch.RaceFreeFakeWatcher
	from watch.Interface
}

func (f forwarded) Stop() { f.from.Stop() }

// fixture is a Storage that compares every request.
type fixture struct {
	*Storage
	store  *memstore.Store
	shadow *tampered
	counts *metrics.Resource
	report chan Difference
}

func newFixture(t testing.TB, pods ...string) *fixture {
	store := memstore.New(poddata.Prefix, poddata.New)
	f := &fixture{store: store, shadow: &tampered{Store: store}, counts: (*metrics.Metrics)(nil).For("", "pods"), report: make(chan Difference, 100)}
	f.Storage = New(Config{
		Serving: store, Shadow: f.shadow, Fraction: 1, NewFunc: poddata.New, NewListFunc: poddata.NewList,
		Context: context.Background(), Room: new(Room), Metrics: f.counts, Report: func(d Difference) { f.report <- d },
	})
	t.Cleanup(func() {
		f.Stop()
		require.Equal(t, [3]int64{}, f.room(), "the room is given back")
	})
	for _, pod := range pods {
		f.put(pod)
	}
	return f
}

func (f *fixture) room() [3]int64 {
	r := f.config.Room
	return [3]int64{r.reads.Load(), r.watches.Load(), r.objects.Load()}
}

func (f *fixture) put(name string, attrs ...string) uint64 {
	pod := poddata.Pod(name, attrs...)
	key, _ := poddata.Key(pod)
	return f.store.Put(key, pod)
}

// settle ends the Storage when no comparison is under way, and returns what was found.
func (f *fixture) settle() string {
	synctest.Wait()
	for f.room() != [3]int64{} {
		time.Sleep(patience) // of the bubble
		synctest.Wait()
	}
	f.Stop()
	close(f.report)
	var found []string
	for d := range f.report {
		found = append(found, d.Kind.String()+": "+d.What)
	}
	t := f.counts.Totals()
	return fmt.Sprintf("%v compared, %d differed %v, skipped %v", t.ShadowCompared, len(found), found, t.ShadowSkipped)
}

// result is what settle returns.
func result(compared map[string]uint64, skipped map[string]uint64, found ...string) string {
	if skipped == nil {
		skipped = map[string]uint64{}
	}
	if compared == nil {
		compared = map[string]uint64{}
	}
	if found == nil {
		return fmt.Sprintf("%v compared, 0 differed %v, skipped %v", compared, []string{}, skipped)
	}
	return fmt.Sprintf("%v compared, %d differed %v, skipped %v", compared, len(found), found, skipped)
}

type counts = map[string]uint64

var everything = storage.ListOptions{Recursive: true, Predicate: storage.Everything}

func (f *fixture) getPod(name string) error {
	return f.Get(context.Background(), poddata.Prefix+name, storage.GetOptions{}, poddata.New())
}

func (f *fixture) listPods(change ...func(*storage.ListOptions)) (*example.PodList, error) {
	opts := everything
	for _, c := range change {
		c(&opts)
	}
	list := &example.PodList{}
	return list, f.GetList(context.Background(), poddata.Prefix, opts, list)
}

func limited(o *storage.ListOptions) { o.Predicate.Limit = 2 }

// Each difference in the answer to a GET or LIST is found, and reported once.
func TestReadsThatDiffer(t *testing.T) {
	content := func(pod *example.Pod) {
		changed := pod.DeepCopy()
		changed.Spec.NodeName = "other"
		*pod = *changed
	}
	items := func(change func(items []example.Pod) []example.Pod) func(storage.ListOptions, *example.PodList, error) error {
		return func(_ storage.ListOptions, l *example.PodList, err error) error {
			l.Items = change(slices.Clone(l.Items))
			return err
		}
	}
	for what, test := range map[string]struct {
		get  func(key string, pod *example.Pod, err error) error
		list func(storage.ListOptions, *example.PodList, error) error
		read func(*fixture)
	}{
		"get: content of an object":    {get: func(_ string, pod *example.Pod, err error) error { content(pod); return err }},
		"get: version of an object":    {get: func(_ string, pod *example.Pod, err error) error { pod.ResourceVersion = "2"; return err }},
		"get: which object":            {get: func(_ string, pod *example.Pod, err error) error { pod.Name = "other"; return err }},
		"get: which object (lost)":     {get: func(key string, _ *example.Pod, _ error) error { return storage.NewKeyNotFoundError(key, 4) }},
		"get: which object (old lost)": {get: func(key string, _ *example.Pod, _ error) error { return storage.NewKeyNotFoundError(key, 1) }},
		"get: which object (deleted)": {
			get: func(_ string, pod *example.Pod, _ error) error {
				*pod = *poddata.Pod("a/gone")
				pod.ResourceVersion = "3"
				return nil
			}, read: func(f *fixture) { _ = f.getPod("a/gone") },
		},
		"get: panic":                   {get: func(string, *example.Pod, error) error { panic("at the disco") }},
		"list: panic":                  {list: func(storage.ListOptions, *example.PodList, error) error { panic("at the disco") }},
		"list: number of items":        {list: items(func(i []example.Pod) []example.Pod { return i[1:] })},
		"list: number of items (more)": {list: items(func(i []example.Pod) []example.Pod { return append(i, i[0]) })},
		"list: which object":           {list: items(func(i []example.Pod) []example.Pod { slices.Reverse(i); return i })},
		"list: version of an object":   {list: items(func(i []example.Pod) []example.Pod { i[1].ResourceVersion = "1"; return i })},
		"list: content of an object":   {list: items(func(i []example.Pod) []example.Pod { content(&i[2]); return i })},
		"list: version of a list":      {list: func(_ storage.ListOptions, l *example.PodList, err error) error { l.ResourceVersion = "1"; return err }},
		"list: remaining count": {
			list: func(_ storage.ListOptions, l *example.PodList, err error) error { *l.RemainingItemCount++; return err },
			read: func(f *fixture) { _, _ = f.listPods(limited) },
		},
		"list: remaining count (none)": {
			list: func(_ storage.ListOptions, l *example.PodList, err error) error {
				l.RemainingItemCount = nil
				return err
			},
			read: func(f *fixture) { _, _ = f.listPods(limited) },
		},
		"list: continue token": {
			list: func(_ storage.ListOptions, l *example.PodList, err error) error {
				l.Continue, _ = storage.EncodeContinue("/pods/a/one\x00", "/pods/", 4)
				return err
			}, read: func(f *fixture) { _, _ = f.listPods(limited) },
		},
		"list: continue token (early end)": {
			list: func(_ storage.ListOptions, l *example.PodList, err error) error { l.Continue = ""; return err },
			read: func(f *fixture) {
				_, _ = f.listPods(limited, func(o *storage.ListOptions) {
					o.Predicate = poddata.Predicate("app!=none", "")
					o.Predicate.Limit = 2
				})
			},
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, "a/one", "a/two", "b/three")
				f.put("a/gone")
				f.store.Remove("/pods/a/gone")
				f.shadow.get, f.shadow.list = test.get, test.list
				kind, _, _ := strings.Cut(what, ":")
				switch {
				case test.read != nil:
					test.read(f)
				case kind == "get":
					require.NoError(t, f.getPod("a/two"))
				default:
					_, err := f.listPods()
					require.NoError(t, err)
				}
				want, _, _ := strings.Cut(what, " (")
				require.Equal(t, result(counts{kind: 1}, nil, want), f.settle())
			})
		})
	}
}

// Equal answers are compared, and not reported: GETs of objects that exist or not, lists at all
// versions and in pages, and answers that a write has made old.
func TestReadsThatAgree(t *testing.T) {
	for what, test := range map[string]struct {
		read func(t *testing.T, f *fixture)
		kind string
		n    uint64
	}{
		"an object": {func(t *testing.T, f *fixture) { require.NoError(t, f.getPod("a/one")) }, "get", 1},
		"no object": {func(t *testing.T, f *fixture) { require.Error(t, f.getPod("a/none")) }, "get", 1},
		"an object that is written": {func(t *testing.T, f *fixture) {
			f.between(func() { f.put("a/one") })
			require.NoError(t, f.getPod("a/one"))
		}, "get", 1},
		"an object that is deleted": {func(t *testing.T, f *fixture) {
			f.between(func() { f.store.Remove("/pods/a/one") })
			require.NoError(t, f.getPod("a/one"))
		}, "get", 1},
		"an object that is made": {func(t *testing.T, f *fixture) {
			f.between(func() { f.put("a/none") })
			require.Error(t, f.getPod("a/none"))
		}, "get", 1},
		"a list that is written": {func(t *testing.T, f *fixture) {
			opts := everything
			list := &example.PodList{}
			require.NoError(t, f.GetList(t.Context(), poddata.Prefix, opts, list))
			f.put("a/one")
			require.Len(t, list.Items, 3)
		}, "list", 1},
		"any version, limited": {func(t *testing.T, f *fixture) {
			_, err := f.listPods(limited, func(o *storage.ListOptions) { o.ResourceVersion = "0" })
			require.NoError(t, err)
		}, "list", 1},
		"pages": {func(t *testing.T, f *fixture) {
			list, err := f.listPods(limited)
			require.NoError(t, err)
			f.put("a/more")
			_, err = f.listPods(limited, func(o *storage.ListOptions) { o.Predicate.Continue = list.Continue })
			require.NoError(t, err)
		}, "list", 2},
		"a token that leads nowhere": {func(t *testing.T, f *fixture) {
			f.shadow.list = func(_ storage.ListOptions, l *example.PodList, err error) error {
				l.Continue, _ = storage.EncodeContinue("/pods/b/three\x00", "/pods/", 4)
				return err
			}
			_, err := f.listPods(func(o *storage.ListOptions) { o.Predicate = poddata.Predicate("app!=none", "") })
			require.NoError(t, err)
		}, "list", 1},
		"another encoding of a token": {func(t *testing.T, f *fixture) {
			f.shadow.list = func(_ storage.ListOptions, l *example.PodList, err error) error {
				l.Continue, _ = storage.EncodeContinue("/pods/a/two\x00", "/pods", 4)
				return err
			}
			_, err := f.listPods(limited)
			require.NoError(t, err)
		}, "list", 1},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, "a/one", "a/two", "b/three")
				test.read(t, f)
				require.Equal(t, result(counts{test.kind: test.n}, nil), f.settle())
			})
		})
	}
}

// between has something happen between the answer to a GET and the comparison.
func (f *fixture) between(happens func()) {
	inner := f.shadow.Store
	f.config.Shadow = before{&tampered{Store: inner}, happens}
}

type before struct {
	*tampered
	happens func()
}

func (b before) Get(ctx context.Context, key string, opts storage.GetOptions, into runtime.Object) error {
	b.happens()
	return b.tampered.Get(ctx, key, opts, into)
}

// A comparison that says nothing about correctness is excused.
func TestExcuses(t *testing.T) {
	gone, busy := apierrors.NewResourceExpired("gone"), apierrors.NewTooManyRequests("busy", 1)
	for what, test := range map[string]func(t *testing.T, f *fixture){
		"get: not cached": func(t *testing.T, f *fixture) {
			f.shadow.get = func(string, *example.Pod, error) error { return errors.New("not cached") }
			require.NoError(t, f.getPod("a/one"))
		},
		"get: refused by the serving storage": func(t *testing.T, f *fixture) {
			f.store.Fail("get", errors.New("away"))
			require.Error(t, f.getPod("a/one"))
		},
		"get: no object, and no error": func(t *testing.T, f *fixture) {
			require.NoError(t, f.Get(t.Context(), poddata.Prefix+"a/none", storage.GetOptions{IgnoreNotFound: true}, poddata.New()))
		},
		"list: gone": func(t *testing.T, f *fixture) {
			f.shadow.list = func(storage.ListOptions, *example.PodList, error) error { return gone }
			_, err := f.listPods()
			require.NoError(t, err)
		},
		"list: a page of no version": func(t *testing.T, f *fixture) {
			token, err := storage.EncodeContinue("/pods/a/one\x00", "/pods/", -1)
			require.NoError(t, err)
			_, err = f.listPods(func(o *storage.ListOptions) { o.Predicate.Continue = token })
			require.NoError(t, err)
		},
		"watch: busy": func(t *testing.T, f *fixture) {
			f.shadow.opened = busy
			w, err := f.Watch(t.Context(), poddata.Prefix, after("2"))
			require.NoError(t, err)
			w.Stop()
		},
		"watch: gone": func(t *testing.T, f *fixture) {
			f.shadow.events = func(_ watch.Event, send func(watch.Event)) {
				send(watch.Event{Type: watch.Error, Object: &metav1.Status{Code: http.StatusGone}})
			}
			w, err := f.Watch(t.Context(), poddata.Prefix, after("2"))
			require.NoError(t, err)
			require.NotEmpty(t, <-w.ResultChan())
			w.Stop()
		},
		"watch: late": func(t *testing.T, f *fixture) {
			f.shadow.events = func(watch.Event, func(watch.Event)) {}
			f.shadow.list = func(storage.ListOptions, *example.PodList, error) error { return errors.New("not cached") }
			w, err := f.Watch(t.Context(), poddata.Prefix, after("2"))
			require.NoError(t, err)
			require.NotEmpty(t, <-w.ResultChan())
			time.Sleep(2 * patience) // of the bubble
			w.Stop()
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, "a/one", "a/two", "b/three")
				test(t, f)
				require.Equal(t, result(nil, counts{"excused": 1}), f.settle())
			})
		})
	}
}

func after(version string) storage.ListOptions {
	opts := everything
	opts.ResourceVersion = version
	return opts
}

func streaming() storage.ListOptions {
	yes := true
	opts := everything
	opts.SendInitialEvents, opts.Predicate.AllowWatchBookmarks = &yes, true
	opts.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	return opts
}

// BenchmarkListedOf measures how long the answer to a LIST is held up.
func BenchmarkListedOf(b *testing.B) {
	list := &example.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	for i := range 5000 {
		pod := poddata.Pod(fmt.Sprintf("namespace/pod-%d", i), "app=a", "spec.nodeName=node")
		pod.ResourceVersion = fmt.Sprint(i + 1)
		list.Items = append(list.Items, *pod)
	}
	b.ReportAllocs()
	for b.Loop() {
		_, err := listedOf(list, len(list.Items)/8)
		require.NoError(b, err)
	}
}
