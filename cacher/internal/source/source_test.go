// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/metrics"
)

// keys is an InitialState that records the names of its objects.
type keys struct{ names []string }

func (k *keys) Add(object runtime.Object) { k.names = append(k.names, nameOf(object)) }

func nameOf(object runtime.Object) string {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return fmt.Sprint(err)
	}
	return accessor.GetName() + "@" + accessor.GetResourceVersion()
}

// fixture is a Source over a store, and what it has reported.
type fixture struct {
	*Source
	store         *memstore.Store
	broke         []error
	undeliverable []error
	relists       []metrics.RelistCause
	listStarts    func()
}

func (s *fixture) ListStarts() InitialState {
	if s.listStarts != nil {
		s.listStarts()
	}
	return &keys{}
}
func (s *fixture) WatchLost(cause metrics.RelistCause) { s.relists = append(s.relists, cause) }
func (s *fixture) WatchFailed(err error, _ bool)       { s.broke = append(s.broke, err) }
func (s *fixture) Undeliverable(err error)             { s.undeliverable = append(s.undeliverable, err) }

// inBubble runs f with a Source over a store with one object, in virtual time.
func inBubble(t *testing.T, f func(t *testing.T, s *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		s := &fixture{store: memstore.New(poddata.Prefix, func() runtime.Object { return &example.Pod{} })}
		s.store.Put("/pods/a/one", poddata.Pod("a/one"))
		group := &tasks.Group{}
		s.Source = New(Config{
			Storage: s.store, Prefix: poddata.Prefix, Resource: "pods", Clock: clock.RealClock{}, Tasks: group,
			NewList: func() runtime.Object { return &example.PodList{} }, Owner: s,
		})
		f(t, s)
		group.Close()
		s.Close()
	})
}

// watchFrom opens the Reflector's watch.
func (s *fixture) watchFrom(t *testing.T, rv string) watch.Interface {
	w, err := s.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: rv})
	require.NoError(t, err)
	return w
}

// sent returns what the Reflector gets within a time.
func sent(w watch.Interface, within time.Duration) (lines []string) {
	late := time.After(within)
	for {
		select {
		case event, open := <-w.ResultChan():
			switch {
			case !open:
				return append(lines, "closed")
			case event.Type == watch.Error:
				lines = append(lines, "ERROR "+apierrors.FromObject(event.Object).Error())
			case event.Type != watch.Bookmark:
				lines = append(lines, string(event.Type)+" "+nameOf(event.Object))
			}
		case <-late:
			return lines
		}
	}
}

// A watch of the storage that breaks is resumed where it broke: the Reflector gets
// each event once, and nothing of the break.
func TestBrokenWatchIsResumed(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fixture) {
		w := s.watchFrom(t, "2")
		defer w.Stop()
		for _, failure := range []*apierrors.StatusError{nil, apierrors.NewInternalError(errors.New("no leader"))} {
			s.store.Put("/pods/a/one", poddata.Pod("a/one"))
			assert.Len(t, sent(w, time.Second), 1)
			s.store.BreakWatches(failure)
			s.store.Put("/pods/a/two", poddata.Pod("a/two"))
			assert.Len(t, sent(w, 10*time.Second), 1)
		}
		assert.Len(t, s.broke, 2)
		assert.Empty(t, s.relists)
	})
}

// A watch that has expired, and an order to list again, end the Reflector's watch with
// fixed words: the Reflector logs them.
func TestReflectorListsAgain(t *testing.T) {
	const want = "ERROR the watch cache lists again"
	for name, ends := range map[string]func(*fixture){
		"expired":  func(s *fixture) { s.store.BreakWatches(apierrors.NewResourceExpired("hunter2")) },
		"an order": func(s *fixture) { s.Relist() },
		"far behind": func(s *fixture) {
			release := s.store.EndWatches(apierrors.NewServiceUnavailable("hunter2"))
			time.AfterFunc(time.Minute, func() { release() })
			for range maxResumeLag + 1 {
				s.store.Touch()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *fixture) {
				w := s.watchFrom(t, "2")
				defer w.Stop()
				synctest.Wait()
				ends(s)
				assert.Equal(t, []string{want, "closed"}, sent(w, 2*time.Minute))
			})
		})
	}
}

// An order that a watch takes when it ends is meant for the next one.
func TestOrderIsGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fixture) {
		ended, end := context.WithCancel(t.Context())
		end()
		stream := newStream(ended, s.Source, "2")
		require.ErrorIs(t, stream.relistOrdered(), context.Canceled)
		w := s.watchFrom(t, "2")
		assert.Equal(t, []string{"ERROR the watch cache lists again", "closed"}, sent(w, time.Second))
	})
}

// A list meets the orders from before it. One that comes while it runs is for another list:
// what the list has read may be older than the reason for the order.
func TestOrderDuringAList(t *testing.T) {
	for _, c := range []struct {
		name   string
		during bool
		want   []string
	}{
		{"before", false, nil},
		{"during", true, []string{"ERROR the watch cache lists again", "closed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *fixture) {
				s.listStarts = func() {
					if c.during {
						s.Relist()
					}
				}
				s.Relist()
				_, err := s.ListWithContext(t.Context(), metav1.ListOptions{})
				require.NoError(t, err)
				w := s.watchFrom(t, "2")
				defer w.Stop()
				assert.Equal(t, c.want, sent(w, time.Second))
			})
		})
	}
}

// malformedStore is a store whose watches bring one event.
type malformedStore struct {
	storage.Interface
	event watch.Event
}

func (s malformedStore) Watch(context.Context, string, storage.ListOptions) (watch.Interface, error) {
	w := watch.NewFakeWithChanSize(1, false)
	w.Action(s.event.Type, s.event.Object)
	return w, nil
}

// The Reflector leaves out an event without metadata or of an unknown type, logs it with its
// object, and goes on after it. Storage that brings one counts as storage that can't deliver.
func TestMalformedEvents(t *testing.T) {
	for name, event := range map[string]watch.Event{
		"no metadata":  {Type: watch.Added, Object: &metav1.Status{Message: "hunter2"}},
		"unknown type": {Type: "RENAMED", Object: poddata.Pod("a/two")},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *fixture) {
				s.config.Storage = malformedStore{s.store, event}
				w := s.watchFrom(t, "2")
				defer w.Stop()
				assert.Equal(t, []string{"ERROR the watch cache lists again", "closed"}, sent(w, time.Minute))
				require.Len(t, s.undeliverable, 1)
				assert.ErrorContains(t, s.undeliverable[0], "unknown type, or without metadata")
			})
		})
	}
}

// A storage that can't deliver an event is recognized by the answers that it gives
// meanwhile, and not by the text of its error.
func TestJudge(t *testing.T) {
	texts := []string{"etcdserver: no leader", "rpc error: code = Unavailable desc = the plugin is away", "hunter2"}
	for _, text := range texts {
		failure := apierrors.NewInternalError(errors.New(text))
		t.Run("one event/"+text, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *fixture) {
				w := s.watchFrom(t, "2")
				defer w.Stop()
				synctest.Wait()
				s.store.Corrupt(failure)
				s.store.Put("/pods/a/two", poddata.Pod("a/two"))
				assert.Equal(t, []string{"ERROR the watch cache lists again", "closed"}, sent(w, 30*time.Second))
				require.Len(t, s.undeliverable, 1)
				assert.ErrorContains(t, s.undeliverable[0], text)
			})
		})
		t.Run("every watch/"+text, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *fixture) {
				w := s.watchFrom(t, "2")
				defer w.Stop()
				synctest.Wait()
				release := s.store.EndWatches(failure)
				s.store.Put("/pods/a/two", poddata.Pod("a/two"))
				assert.Empty(t, sent(w, 10*time.Minute))
				release()
				assert.Equal(t, []string{"ADDED two@3"}, sent(w, 10*time.Second))
				assert.Empty(t, s.undeliverable)
			})
		})
		t.Run("no version/"+text, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *fixture) {
				w := s.watchFrom(t, "2")
				defer w.Stop()
				synctest.Wait()
				s.store.Fail("version", errors.New(text))
				s.store.Corrupt(failure)
				s.store.Put("/pods/a/two", poddata.Pod("a/two"))
				assert.Empty(t, sent(w, 10*time.Minute), "a storage that is away")
			})
		})
	}
}

// The Reflector gets no text of the storage, and whoever asks for it does.
func TestErrorsAreRedacted(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fixture) {
		failure := apierrors.NewResourceExpired("hunter2")
		s.store.Fail("list", failure)
		s.store.Fail("watch", failure)
		_, listing := s.ListWithContext(t.Context(), metav1.ListOptions{})
		_, watching := s.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "2"})
		for _, err := range []error{listing, watching, fmt.Errorf("failed to list: %w", listing)} {
			assert.NotContains(t, err.Error(), "hunter2")
			assert.True(t, apierrors.IsResourceExpired(err), "the reason is lost")
			assert.Equal(t, failure, Unredact(err))
		}
	})
}

// The objects of a list go into the InitialState page by page, and not to the Reflector.
func TestListLoads(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fixture) {
		for i := range 5 {
			s.store.Put(fmt.Sprintf("/pods/b/%d", i), poddata.Pod(fmt.Sprintf("b/%d", i)))
		}
		list, err := s.ListWithContext(t.Context(), metav1.ListOptions{Limit: 2})
		require.NoError(t, err)
		assert.Zero(t, meta.LenList(list))
		loaded, ok := s.TakeInitialState().(*keys)
		require.True(t, ok, "there is no state")
		assert.Equal(t, []string{"one@2", "0@3", "1@4", "2@5", "3@6", "4@7"}, loaded.names)
		assert.Nil(t, s.TakeInitialState(), "the state is kept")
	})
}
