// SPDX-License-Identifier: Apache-2.0

package shadow

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// follow opens a watch, writes, reads so many events, and stops.
func (f *fixture) followed(t *testing.T, opts storage.ListOptions, read int, write func()) (events []watch.Event) {
	w, err := f.Watch(t.Context(), poddata.Prefix, opts)
	require.NoError(t, err)
	synctest.Wait()
	write()
	for range read {
		event, ok := <-w.ResultChan()
		require.True(t, ok)
		events = append(events, event)
	}
	time.Sleep(3 * patience) // of the bubble
	synctest.Wait()
	w.Stop()
	return events
}

// Each difference in events is found, wherever the watch begins.
func TestWatchesThatDiffer(t *testing.T) {
	changed := func(event watch.Event, change func(pod *example.Pod)) watch.Event {
		event.Object = event.Object.DeepCopyObject()
		change(event.Object.(*example.Pod))
		return event
	}
	version := func(event watch.Event) string { return event.Object.(*example.Pod).ResourceVersion }
	for what, test := range map[string]struct {
		events func(event watch.Event, send func(watch.Event))
		equal  uint64 // events before the difference
	}{
		"missing event": {func(e watch.Event, send func(watch.Event)) {
			if version(e) != "17" {
				send(e)
			}
		}, 12},
		"which object": {func(e watch.Event, send func(watch.Event)) {
			if version(e) != "6" {
				send(e)
			}
		}, 1},
		"event too many": {func(e watch.Event, send func(watch.Event)) {
			send(e)
			if version(e) == "17" {
				send(e)
			}
		}, 13},
		"which object, twice": {func(e watch.Event, send func(watch.Event)) {
			send(e)
			if version(e) == "6" {
				send(e)
			}
		}, 2},
		"type of an event": {func(e watch.Event, send func(watch.Event)) {
			if version(e) == "7" {
				e.Type = watch.Modified
			}
			send(e)
		}, 2},
		"version of an object": {func(e watch.Event, send func(watch.Event)) {
			send(changed(e, func(p *example.Pod) {
				if p.ResourceVersion == "8" {
					p.ResourceVersion = "9"
				}
			}))
		}, 3},
		"content of an object": {func(e watch.Event, send func(watch.Event)) {
			send(changed(e, func(p *example.Pod) { p.Spec.NodeName = "other" }))
		}, 11}, // at version 16
	} {
		for from, opts := range map[string]storage.ListOptions{"version": after("4"), "any": after("0"), "latest": everything, "state": streaming()} {
			t.Run(what+" from "+from, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFixture(t, "a/one", "a/two", "b/three") // 2, 3, 4
					f.shadow.events = test.events
					read := map[string]int{"version": 13, "any": 16, "latest": 16, "state": 17}[from]
					f.followed(t, opts, read, func() {
						for name := 'c'; name < 'c'+13; name++ { // 5 to 17
							f.put("c/" + string(name))
						}
					})
					compared := test.equal + 1
					if from == "state" {
						compared++
					}
					want := what
					if want == "which object, twice" {
						want = "which object"
					}
					require.Equal(t, result(counts{"watch": compared}, nil, "watch: "+want), f.settle())
				})
			})
		}
	}
}

// A shadow that falls behind, with its lists and its events, and catches up has missed none.
func TestShadowThatCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "a/one")
		behind := time.Now().Add(patience * 3 / 2)
		catchUp := func() { time.Sleep(time.Until(behind)) } // of the bubble
		f.shadow.events = func(e watch.Event, send func(watch.Event)) { catchUp(); send(e) }
		f.shadow.list = func(_ storage.ListOptions, _ *example.PodList, err error) error { catchUp(); return err }
		f.followed(t, after("2"), 2, func() { f.put("a/two"); f.put("a/three") })
		require.Equal(t, result(counts{"watch": 2}, nil), f.settle())
	})
}

// The initial state that a bookmark ends is compared as a whole.
func TestInitialStateThatDiffers(t *testing.T) {
	for want, change := range map[string]func(list *example.PodList){
		"number of items":      func(l *example.PodList) { l.Items = l.Items[1:] },
		"which object":         func(l *example.PodList) { l.Items[0].Name = "other" },
		"version of an object": func(l *example.PodList) { l.Items[2].ResourceVersion = "1" },
	} {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, "a/one", "a/two", "b/three")
				f.shadow.list = func(_ storage.ListOptions, l *example.PodList, err error) error { change(l); return err }
				f.followed(t, streaming(), 4, func() {})
				require.Equal(t, result(counts{"watch": 1}, nil, "watch: "+want), f.settle())
			})
		})
	}
}

// Watches of all beginnings and selections agree, under writes, and the client may do what
// it likes to the objects that it has got.
func TestWatchesThatAgree(t *testing.T) {
	selecting := after("4")
	selecting.Predicate = poddata.Predicate("app=a", "")
	for name, test := range map[string]struct {
		opts           storage.ListOptions
		read, compared int
	}{
		"version": {after("4"), 4, 4}, "any": {after("0"), 7, 4}, "latest": {everything, 7, 4},
		"state": {streaming(), 8, 5}, "selection": {selecting, 3, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, "a/one", "a/two", "b/three")
				events := f.followed(t, test.opts, test.read, func() {
					f.put("a/four", "app=a")
					f.put("a/five", "app=a")
					f.put("a/one", "app=b")
					f.store.Remove("/pods/a/four")
				})
				for _, event := range events {
					event.Object.(*example.Pod).Labels = map[string]string{"changed": "by the client"}
				}
				require.Equal(t, result(counts{"watch": uint64(test.compared)}, nil), f.settle())
			})
		})
	}
}

// A client that does not read is not waited for, and one that goes away without Stop ends
// the watch.
func TestAbandonedWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "a/one")
		ctx, abandon := context.WithCancel(t.Context())
		w, err := f.Watch(ctx, poddata.Prefix, after("0"))
		require.NoError(t, err)
		f.put("a/two")
		synctest.Wait()
		require.Equal(t, [3]int64{0, 1, 0}, f.room())
		abandon()
		synctest.Wait()
		for range w.ResultChan() { // what was on its way, then the end
		}
		f.settle()
		w.Stop()
	})
}

// Stop ends watches whose clients neither read nor stop, and comparisons whose shadow does
// not answer.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "a/one", "a/two")
		f.config.Shadow = silent{f.shadow}
		for _, opts := range []storage.ListOptions{after("0"), after("2"), everything, streaming()} {
			w, err := f.Watch(t.Context(), poddata.Prefix, opts)
			require.NoError(t, err)
			defer w.Stop()
		}
		require.NoError(t, f.getPod("a/one"))
		_, err := f.listPods()
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, [3]int64{2, 4, 4}, f.room())
		f.Stop()
		require.Equal(t, [3]int64{}, f.room())

		// From now on it passes requests on.
		require.NoError(t, f.getPod("a/one"))
		w, err := f.Watch(t.Context(), poddata.Prefix, after("2"))
		require.NoError(t, err)
		require.NotEmpty(t, <-w.ResultChan())
		w.Stop()
	})
}

// silent answers when the context ends.
type silent struct{ *tampered }

func (silent) Get(ctx context.Context, _ string, _ storage.GetOptions, _ runtime.Object) error {
	<-ctx.Done()
	return ctx.Err()
}

func (silent) GetList(ctx context.Context, _ string, _ storage.ListOptions, _ runtime.Object) error {
	<-ctx.Done()
	return ctx.Err()
}

// Requests beyond the bounds are answered, not compared, and counted.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "a/one", "a/two")
		f.config.Shadow = silent{f.shadow}
		for range mostReads + 3 {
			require.NoError(t, f.getPod("a/one"))
		}
		for range mostWatches + 2 {
			w, err := f.Watch(t.Context(), poddata.Prefix, after("3"))
			require.NoError(t, err)
			defer w.Stop()
		}
		f.config.Room.objects.Add(mostObjects)
		_, err := f.listPods()
		require.NoError(t, err)
		f.config.Room.objects.Add(-mostObjects)
		require.Equal(t, [3]int64{mostReads, mostWatches, mostReads}, f.room())
		require.Equal(t, counts{"room": 6}, f.counts.Totals().ShadowSkipped)
		time.Sleep(patience) // of the bubble
		synctest.Wait()
		require.Zero(t, f.room()[0], "a shadow that does not answer keeps no room")
		require.NoError(t, f.getPod("a/one"))
		f.Stop()
		require.Equal(t, counts{"room": 6, "excused": mostReads + 1}, f.counts.Totals().ShadowSkipped)
	})
}

// A shadow that is late for its watch keeps a bounded number of events, and the client
// gets all.
func TestLateShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "a/one")
		open := make(chan struct{})
		f.config.Shadow = lateWatch{f.shadow, open}
		const written = mostNotes + 100
		w, err := f.Watch(t.Context(), poddata.Prefix, after("2"))
		require.NoError(t, err)
		for range written {
			f.put("a/one")
			require.NotEmpty(t, <-w.ResultChan())
		}
		close(open)
		synctest.Wait()
		w.Stop()
		require.Equal(t, result(counts{"watch": mostNotes}, counts{"room": 1}), f.settle())
	})
}

type lateWatch struct {
	*tampered
	open chan struct{}
}

func (l lateWatch) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	<-l.open
	return l.tampered.Watch(ctx, key, opts)
}

// A state that finds no room is passed on, and not compared.
func TestStateWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "a/one", "a/two", "b/three")
		f.config.Room.objects.Add(mostObjects - 2)
		f.followed(t, streaming(), 5, func() { f.put("a/four") })
		f.config.Room.objects.Add(2 - mostObjects)
		require.Equal(t, result(nil, counts{"room": 1}), f.settle())
	})
}

// Writes go to the serving storage, once.
func TestWrites(t *testing.T) {
	f := newFixture(t)
	f.config.Shadow = nil // would panic
	pod := poddata.Pod("a/one")
	require.NoError(t, f.Create(t.Context(), poddata.Prefix+"a/one", pod, &example.Pod{}, 0))
	require.NoError(t, f.GuaranteedUpdate(t.Context(), poddata.Prefix+"a/one", &example.Pod{}, false, nil,
		storage.SimpleUpdate(func(o runtime.Object) (runtime.Object, error) { o.(*example.Pod).Spec.NodeName = "n"; return o, nil }), nil))
	require.NoError(t, f.Delete(t.Context(), poddata.Prefix+"a/one", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))
	version, err := f.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 4, version)
}

// A serving storage's own refusals reach the client as they are.
func TestRefusals(t *testing.T) {
	f := newFixture(t)
	away := errors.New("away")
	f.store.Fail("watch", away)
	_, err := f.Watch(t.Context(), poddata.Prefix, after("0"))
	require.ErrorIs(t, err, away)
}

// A watch whose comparison is over leaves its place to others, however long its client stays
// (regression 174).
func TestComparisonThatIsOverKeepsNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "a/one")
		f.config.Shadow = refused{f.shadow}
		w, err := f.Watch(t.Context(), poddata.Prefix, after("2"))
		require.NoError(t, err)
		defer w.Stop()
		synctest.Wait()
		require.Zero(t, f.room()[1], "the comparison is over")
		f.put("a/two")
		require.NotEmpty(t, <-w.ResultChan())
	})
}

// refused is not ready.
type refused struct{ *tampered }

func (refused) Watch(context.Context, string, storage.ListOptions) (watch.Interface, error) {
	return nil, apierrors.NewTooManyRequests("not ready", 1)
}
