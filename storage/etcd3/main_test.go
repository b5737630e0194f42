// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// deadline bounds what a test waits for; it is reached only when a test fails.
const deadline = 3 * time.Minute

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	return ctx
}

// startEtcd runs an etcd that is closed with the test, on a unix socket unless
// cfg says otherwise.
func startEtcd(t *testing.T, cfg embedded.Config) *embedded.Server {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	cfg.UnsafeNoFsync = true
	srv, err := embedded.Start(testContext(t), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Close()) })
	return srv
}

func socketURL(t *testing.T) string {
	return "unix://" + filepath.Join(t.TempDir(), "etcd.sock")
}

// open opens a backend that is closed with the test.
func open(t *testing.T, cfg etcd3.Config) *etcd3.Backend {
	t.Helper()
	b, err := etcd3.Open(testContext(t), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// openError opens a backend that must not open, and returns why.
func openError(t *testing.T, cfg etcd3.Config) error {
	t.Helper()
	b, err := etcd3.Open(testContext(t), cfg)
	if err == nil {
		_ = b.Close()
	}
	require.Error(t, err)
	require.NotContains(t, err.Error(), "\n")
	t.Log(err)
	return err
}

// newBackend is an etcd and a backend for it.
func newBackend(t *testing.T) *etcd3.Backend {
	return open(t, etcd3.Config{Endpoints: startEtcd(t, embedded.Config{}).Endpoints()})
}

var codec = poddata.JSONCodec()

// pods describes a resource of pods whose keys begin with "/" and its name.
func pods(name string) etcd3.ResourceConfig {
	return etcd3.ResourceConfig{
		GroupResource:  schema.GroupResource{Group: "example.test", Resource: name},
		ResourcePrefix: "/" + name,
		Codec:          codec,
		NewFunc:        poddata.New,
		NewListFunc:    poddata.NewList,
	}
}

func newStore(t *testing.T, b *etcd3.Backend, c etcd3.ResourceConfig) storage.Interface {
	t.Helper()
	s, err := b.Storage(c)
	require.NoError(t, err)
	return s
}

func create(t *testing.T, s storage.Interface, key string) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: filepath.Base(key)}}
	require.NoError(t, s.Create(testContext(t), key, pod, out, 0))
	return out
}

func watchAll(t *testing.T, s storage.Interface, prefix, rv string) watch.Interface {
	t.Helper()
	w, err := s.Watch(testContext(t), prefix, storage.ListOptions{
		ResourceVersion: rv, Predicate: storage.Everything, Recursive: true, ProgressNotify: true,
	})
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	return w
}

// next returns the next event, and fails if the watch ends or nothing comes.
func next(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		require.True(t, ok, "the watch ended")
		return e
	case <-time.After(deadline):
		require.FailNow(t, "no event")
		return watch.Event{}
	}
}

// change returns the next event, which must be the only one of its revision: a
// bookmark at that revision follows.
func change(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	event := next(t, w)
	require.NotEqual(t, watch.Bookmark, event.Type)
	end := next(t, w)
	require.Equal(t, watch.Bookmark, end.Type)
	require.Equal(t, rvOf(t, event.Object), rvOf(t, end.Object))
	return event
}

func rvOf(t *testing.T, obj runtime.Object) uint64 {
	t.Helper()
	rv, err := storage.APIObjectVersioner{}.ObjectResourceVersion(obj)
	require.NoError(t, err)
	return rv
}
