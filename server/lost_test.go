// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// logBuffer takes klog's output.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// lines returns the different lines with the text.
func (b *logBuffer) lines(text string) []string {
	klog.Flush()
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := map[string]bool{}
	var lines []string
	for line := range strings.Lines(b.text.String()) {
		if strings.Contains(line, text) && !seen[line] {
			seen[line] = true
			lines = append(lines, line)
		}
	}
	return lines
}

// logged returns what klog writes from now on.
func logged(t *testing.T) *logBuffer {
	log := &logBuffer{}
	t.Cleanup(func() { klog.LogToStderr(true) }) // Restore takes no lock: connections of other tests log
	klog.LogToStderr(false)
	klog.SetOutput(log)
	return log
}

// An etcd that is stopped and started is one line in the log when it is lost and
// one when it is back; the resources on the cache are one line at the start.
func TestLostEtcdIsTold(t *testing.T) {
	config, stop, start := restartable(t)
	log := logged(t)

	var cached *cacher.Cacher
	server := newServer(t, func(c *genericapiserver.Config) {
		c.RESTOptionsGetter = getterFor(config)
		require.NoError(t, Install(c, cacher.Configure(func(c *cacher.Config) { c.StorageTimeout = time.Second })))
		opened, destroy := open(t, c.RESTOptionsGetter, "pods")
		t.Cleanup(destroy)
		cached = opened.(*cacher.Cacher)
	})
	require.NoError(t, cached.Wait(context.Background()))
	for range 3 { // and it is told once
		require.NoError(t, Readiness(server))
	}
	ready := log.lines("All watch caches of the server have their state")
	require.Len(t, ready, 1)
	require.Contains(t, ready[0], `resources=["pods.`+example.GroupName+`"]`)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log.lines(""))
		}
	})
	require.Empty(t, log.lines("The storage"))
	before := len(log.lines(""))

	stop()
	require.Eventually(t, func() bool { return len(log.lines("Storage does not answer")) > 0 }, time.Minute, 10*time.Millisecond)
	require.NotNil(t, cached.Status().Lost)
	start()
	require.Eventually(t, func() bool { return len(log.lines("Storage answers again")) > 0 }, time.Minute, 10*time.Millisecond)
	require.Nil(t, cached.Status().Lost)
	lost := log.lines("Storage does not answer")
	require.Len(t, lost, 1)
	require.Contains(t, lost[0], `resource="pods.`+example.GroupName+`"`)
	require.Len(t, log.lines("")[before:], 2, "nothing buries the two lines")
}

// TestMain has gRPC quiet, as it must be before anything connects.
func TestMain(m *testing.M) {
	QuietGRPC()
	os.Exit(m.Run())
}

// Warnings of package etcd3 reach klog, those of its client about each attempt do not.
func TestEtcdClientsLog(t *testing.T) {
	log := logged(t)
	p := newPool()
	p.open = func(_ context.Context, config etcd3.Config) (backend, error) {
		config.Logger.Warn("progress is not reliable", zap.String("endpoint", "http://127.0.0.1:1"))
		config.Logger.Named("etcd-client").Warn("retrying of unary invoker failed")
		return nil, errors.New("that is all")
	}
	resource := storagebackend.NewDefaultConfig("/registry", nil).ForResource(schema.GroupResource{Resource: "pods"})
	resource.Transport.ServerList = []string{"http://127.0.0.1:1"}
	_, _, err := p.rawStorage(decoration.Request{Config: resource, ResourcePrefix: "/pods"})
	require.ErrorContains(t, err, "that is all")
	lines := log.lines("")
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], `"progress is not reliable" endpoint="http://127.0.0.1:1"`)
}
