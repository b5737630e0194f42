// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// Upsert, Remove, Replace and a client's update race, beside ten watches that nobody
// reads: a watch has each change once, in an order that gives the state at its end.
func TestWritersRace(t *testing.T) {
	s := open(t)
	events := follow(t, s, version(t, s))
	for range 10 {
		follow(t, s, "")
	}
	const rounds = 300
	name := func(i int) string { return "a/" + strconv.Itoa(i%7) }
	var writing sync.WaitGroup
	failed := make(chan error, 4*rounds)
	writer := func(write func(i int) error) {
		writing.Go(func() {
			for i := range rounds {
				failed <- write(i)
			}
		})
	}
	writer(func(i int) error { return s.Upsert(t.Context(), pod(name(i), "upsert"+strconv.Itoa(i))) })
	writer(func(i int) error {
		if err := s.Remove(t.Context(), "a", name(3 * i)[2:]); !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	})
	writer(func(i int) error {
		var objs []runtime.Object
		for n := range 7 {
			if (i+n)%3 > 0 {
				objs = append(objs, pod(name(n), "replace"+strconv.Itoa(i)))
			}
		}
		return s.Replace(t.Context(), objs)
	})
	writer(func(i int) error {
		return s.GuaranteedUpdate(t.Context(), "/pods/"+name(i), &example.Pod{}, true, nil, func(runtime.Object, storage.ResponseMeta) (runtime.Object, *uint64, error) {
			return pod(name(i), "update"+strconv.Itoa(i)), nil, nil
		}, nil)
	})
	writing.Wait()
	close(failed)
	for err := range failed {
		require.NoError(t, err)
	}
	want := list(t, s, storage.ListOptions{})
	require.NoError(t, s.Upsert(t.Context(), pod("b/end", "1")))

	state, last := map[string]*example.Pod{}, ""
	for event := range events {
		object := event.Object.(*example.Pod)
		key := object.Namespace + "/" + object.Name
		if key == "b/end" {
			break
		}
		require.Greater(t, object.ResourceVersion, last, "nineteen digits each")
		last = object.ResourceVersion
		require.Equal(t, event.Type == watch.Added, state[key] == nil, "%s %s", event.Type, key)
		state[key] = object
		if event.Type == watch.Deleted {
			delete(state, key)
		}
	}
	require.Equal(t, want, state)
}
