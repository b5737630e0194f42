// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// model is the naive store: the whole state after each change, and each change's event.
type model struct {
	states []map[string]string
	events []string
}

func (m *model) write(name, v string) {
	last := m.states[len(m.states)-1]
	old, exists := last[name]
	if exists && old == v || !exists && v == "" {
		return
	}
	state := map[string]string{}
	for name, v := range last {
		state[name] = v
	}
	state[name] = v
	switch {
	case v == "":
		delete(state, name)
		m.events = append(m.events, "DELETED "+name+" "+old)
	case exists:
		m.events = append(m.events, "MODIFIED "+name+" "+v)
	default:
		m.events = append(m.events, "ADDED "+name+" "+v)
	}
	m.states = append(m.states, state)
}

// FuzzStore: the state at each version of the window, the events since each of them, for
// all and for a selector, and one version for each change are those of the model; versions
// below the window have a 410. The first byte is the window's length; each operation is two
// bytes: what, and on which objects.
func FuzzStore(f *testing.F) {
	f.Add([]byte{255, 0, 1, 0, 2, 1, 1, 2, 7, 0, 9, 3, 3, 2, 0, 2, 255})
	f.Add([]byte{5, 2, 255, 2, 85, 1, 0, 4, 1, 2, 170, 3, 64, 0, 64, 3, 66, 3, 2})
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) == 0 {
			return
		}
		history := 1 + int(ops[0])
		ops = ops[1:min(len(ops), 81)]
		s := open(t, func(c *Config) { c.History = history })
		start, err := s.GetCurrentResourceVersion(t.Context())
		require.NoError(t, err)
		m := &model{states: []map[string]string{{}}}
		for ; len(ops) >= 2; ops = ops[2:] {
			which, v := ops[1]&7, strconv.Itoa(int(ops[1]>>6))
			name := fmt.Sprintf("a/%d", which)
			switch ops[0] % 5 {
			case 0:
				require.NoError(t, s.Upsert(t.Context(), pod(name, v)))
				m.write(name, v)
			case 1:
				_ = s.Remove(t.Context(), "a", name[2:])
				m.write(name, "")
			case 2:
				var objs []runtime.Object
				for i := range 8 {
					if ops[1]>>i&1 == 0 {
						m.write(fmt.Sprintf("a/%d", i), "")
					}
				}
				for i := range 8 {
					if ops[1]>>i&1 == 1 {
						objs = append([]runtime.Object{pod(fmt.Sprintf("a/%d", i), v)}, objs...)
						m.write(fmt.Sprintf("a/%d", i), v)
					}
				}
				require.NoError(t, s.Replace(t.Context(), objs))
			case 3: // a client's
				require.NoError(t, s.GuaranteedUpdate(t.Context(), "/pods/"+name, &example.Pod{}, true, nil,
					func(runtime.Object, storage.ResponseMeta) (runtime.Object, *uint64, error) {
						return pod(name, v), nil, nil
					}, nil))
				m.write(name, v)
			case 4:
				_ = s.Delete(t.Context(), "/pods/"+name, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
				m.write(name, "")
			}
		}
		m.judge(t, s, start, history)
	})
}

func (m *model) judge(t *testing.T, s *Store, start uint64, history int) {
	require.Equal(t, strconv.FormatUint(start+uint64(len(m.events)), 10), version(t, s))
	floor := max(0, len(m.events)-history)
	for i, want := range m.states {
		rv := strconv.FormatUint(start+uint64(i), 10)
		if i < floor {
			err := s.GetList(t.Context(), "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything, ResourceVersion: rv, ResourceVersionMatch: metav1.ResourceVersionMatchExact}, &example.PodList{})
			require.True(t, apierrors.IsResourceExpired(err), err)
			require.Equal(t, "ERROR Expired", line(<-follow(t, s, rv)))
			continue
		}
		state := map[string]string{}
		for name, pod := range list(t, s, storage.ListOptions{ResourceVersion: rv, ResourceVersionMatch: metav1.ResourceVersionMatchExact}) {
			state[name] = pod.Labels["v"]
		}
		require.Equal(t, want, state, "version %d", i)
		events := follow(t, s, rv)
		for j, want := range m.events[i:] {
			event := <-events
			require.Equal(t, want, line(event), "from version %d", i)
			require.Equal(t, strconv.FormatUint(start+uint64(i+j)+1, 10), event.Object.(*example.Pod).ResourceVersion)
			require.NotEqual(t, watch.Error, event.Type)
		}
	}
	rv := strconv.FormatUint(start+uint64(floor), 10)
	w, err := s.Watch(t.Context(), "/pods/", storage.ListOptions{Recursive: true, Predicate: poddata.Predicate("v=1", ""), ResourceVersion: rv})
	require.NoError(t, err)
	for _, want := range m.selected(floor, "1") {
		require.Equal(t, want, line(<-w.ResultChan()), "v=1 from version %d", floor)
	}
	w.Stop()
	for range w.ResultChan() { //nolint:revive // the goroutine ends with the channel
	}
}

// selected returns the events after a version for those who select one value.
func (m *model) selected(after int, v string) (events []string) {
	for i := after; i < len(m.events); i++ {
		name := strings.Fields(m.events[i])[1]
		switch had, has := m.states[i][name] == v, m.states[i+1][name] == v; {
		case had && has:
			events = append(events, "MODIFIED "+name+" "+v)
		case has:
			events = append(events, "ADDED "+name+" "+v)
		case had:
			events = append(events, "DELETED "+name+" "+v)
		}
	}
	return events
}
