// SPDX-License-Identifier: Apache-2.0

//go:build k8s38

package conformance

import (
	"context"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// onceClauses are about single attempts to write. They ignore the states that storage
// returns: only a storage that encodes objects can fill all their fields.
var onceClauses = []storeClause{
	{
		name: "DeleteOnce", needs: writes,
		rule: "DeleteOnce deletes an object at the revision of its original state only; otherwise the error is a conflict, and the object stays as it is",
		run:  deleteOnce,
	},
	{
		name: "UpdateOnce", needs: writes,
		rule: "UpdateOnce writes an object at the revision of its original state only, 0 for an object that does not exist; otherwise the error is a conflict, " +
			"and the object stays as it is. An update without a difference writes nothing",
		run: updateOnce,
	},
}

// stateOf returns the state of an object that was read.
func stateOf(t *testing.T, pod *example.Pod) *storage.ObjState {
	t.Helper()
	rv := rvOf(t, pod)
	return &storage.ObjState{Obj: pod.DeepCopy(), Meta: &storage.ResponseMeta{ResourceVersion: rv}, Rev: int64(rv), Current: true}
}

// wantConflict fails unless an attempt has ended with a conflict. If the error has a
// revision, it is one that the storage has reached, and not the original's.
func wantConflict(t *testing.T, what string, err error, original *storage.ObjState) {
	t.Helper()
	if !storage.IsConflict(err) {
		t.Fatalf("%s: want a conflict, got %v", what, err)
	}
	if rv, ok := storage.ResourceVersion(err); ok && rv == strconv.FormatInt(original.Rev, 10) {
		t.Fatalf("%s: the conflict is with the original's own revision %s", what, rv)
	}
}

func deleteOnce(t *testing.T, f *fixture, s storage.Interface) {
	first := f.create(t, s, poddata.Pod("a/one"))
	key := keyOf(t, first)
	second := f.update(t, s, key, func(pod *example.Pod) { pod.Labels = map[string]string{"n": "2"} })

	stale := stateOf(t, first)
	wantConflict(t, "DeleteOnce at an earlier revision", s.DeleteOnce(f.ctx, key, stale, &example.Pod{}), stale)
	if got := f.get(t, s, key, ""); got.ResourceVersion != second.ResourceVersion {
		t.Fatalf("after a conflict the object is at %s, not at %s", got.ResourceVersion, second.ResourceVersion)
	}
	missing := stateOf(t, first)
	if err := s.DeleteOnce(f.ctx, Prefix+"a/none", missing, &example.Pod{}); !storage.IsConflict(err) {
		t.Fatalf("DeleteOnce of an object that does not exist: want a conflict, got %v", err)
	}
	current := f.get(t, s, key, "")
	out := &example.Pod{}
	if err := s.DeleteOnce(f.ctx, key, f.encoded(t, current), out); err != nil {
		t.Fatalf("DeleteOnce at the current revision: %v", err)
	}
	if out.Name != "one" || rvOf(t, out) <= rvOf(t, second) {
		t.Fatalf("DeleteOnce returns %q at %s", out.Name, out.ResourceVersion)
	}
	if err := s.Get(f.ctx, key, storage.GetOptions{}, &example.Pod{}); !storage.IsNotFound(err) {
		t.Fatalf("after DeleteOnce, Get returns %v", err)
	}
}

func updateOnce(t *testing.T, f *fixture, s storage.Interface) {
	first := f.create(t, s, poddata.Pod("a/one"))
	key := keyOf(t, first)
	second := f.update(t, s, key, func(pod *example.Pod) { pod.Labels = map[string]string{"n": "2"} })
	wanted := first.DeepCopy()
	wanted.Labels = map[string]string{"n": "3"}

	stale := stateOf(t, first)
	_, err := s.UpdateOnce(f.ctx, key, stale, wanted.DeepCopy(), 0, &example.Pod{}, false)
	wantConflict(t, "UpdateOnce at an earlier revision", err, stale)
	none := &storage.ObjState{Obj: &example.Pod{}, Meta: &storage.ResponseMeta{}}
	_, err = s.UpdateOnce(f.ctx, key, none, wanted.DeepCopy(), 0, &example.Pod{}, true)
	wantConflict(t, "UpdateOnce without an original of an object that exists", err, none)
	if got := f.get(t, s, key, ""); got.ResourceVersion != second.ResourceVersion {
		t.Fatalf("after conflicts the object is at %s, not at %s", got.ResourceVersion, second.ResourceVersion)
	}

	out := &example.Pod{}
	same := f.get(t, s, key, "")
	if _, err := s.UpdateOnce(f.ctx, key, f.encoded(t, same), same.DeepCopy(), 0, out, false); err != nil || out.ResourceVersion != second.ResourceVersion {
		t.Fatalf("UpdateOnce without a difference: %v, at %s", err, out.ResourceVersion)
	}
	if _, err := s.UpdateOnce(f.ctx, key, stateOf(t, second), wanted.DeepCopy(), 0, out, false); err != nil {
		t.Fatalf("UpdateOnce at the current revision: %v", err)
	}
	if rvOf(t, out) <= rvOf(t, second) || out.Labels["n"] != "3" {
		t.Fatalf("UpdateOnce returns %v at %s", out.Labels, out.ResourceVersion)
	}
	created := poddata.Pod("a/two")
	if _, err := s.UpdateOnce(f.ctx, Prefix+"a/two", none, created, 0, out, true); err != nil || out.Name != "two" {
		t.Fatalf("UpdateOnce that creates: %v, %q", err, out.Name)
	}
}

// encoded returns the state of an object with the bytes that are compared with storage's.
func (f *fixture) encoded(t *testing.T, pod *example.Pod) *storage.ObjState {
	t.Helper()
	state, err := storage.GetStateFromObject(f.raw.Versioner(), poddata.Codec(), pod.DeepCopy(), true)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// DeleteOnce implements storage.Interface.
func (s keyed) DeleteOnce(ctx context.Context, key string, original *storage.ObjState, out runtime.Object) error {
	return s.Interface.DeleteOnce(ctx, s.key(key), original, out)
}

// UpdateOnce implements storage.Interface.
func (s keyed) UpdateOnce(ctx context.Context, key string, original *storage.ObjState, obj runtime.Object, ttl uint64,
	out runtime.Object, ignoreNotFound bool) (*storage.ObjState, error) {
	return s.Interface.UpdateOnce(ctx, s.key(key), original, obj, ttl, out, ignoreNotFound)
}
