// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/informer"
)

// transport is one way from client-go to the cache of a fixture's server.
type transport struct {
	name string
	// inProcess: package informer on the server's own cache, with no connection,
	// where objects are internal ones. Otherwise the generated clients over HTTPS
	// and the proxy, where they are of version v1.
	inProcess bool
}

// bothTransports runs a test as one subtest for each way.
func bothTransports(t *testing.T, fx *fixture, f func(t *testing.T, fx *fixture, via transport)) {
	t.Helper()
	for _, via := range []transport{{name: "in process", inProcess: true}, {name: "over HTTPS"}} {
		t.Run(via.name, func(t *testing.T) { f(t, fx, via) })
	}
}

// example is an empty object of the type that the way's lists and watches carry.
func (v transport) example() runtime.Object {
	if v.inProcess {
		return &fleet.Device{}
	}
	return &fleetv1.Device{}
}

// listerWatcher gives what lists and watches devices, in one namespace or, with "",
// in all. The ListerWatcher goes on with the server's successor when the server
// is restarted.
func (v transport) listerWatcher(t *testing.T, fx *fixture, namespace string) *recorder {
	t.Helper()
	if v.inProcess {
		return newRecorder(func() lister { return informer.ListerWatcher(fx.cacher(), informer.InNamespace(namespace)) })
	}
	of := fx.client(t).FleetV1().Devices(namespace)
	client := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return of.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return of.Watch(ctx, options)
		},
	}
	return newRecorder(func() lister { return client })
}

// cut breaks the connection that the recorder watches by: that of the proxy, or
// what stands for it in process.
func (v transport) cut(t *testing.T, fx *fixture, r *recorder) {
	t.Helper()
	eventually(t, "there is nothing to cut", func(context.Context) error {
		if r.watching() == 0 {
			return errors.New("no watch is open")
		}
		return nil
	})
	if v.inProcess {
		r.drop()
		return
	}
	fx.cut(t)
}

// disconnect cuts the connection, and refuses to open another until the function
// that it returns is called. Nobody else is touched, if the fixture is the test's own.
func (v transport) disconnect(t *testing.T, fx *fixture, r *recorder) (reconnect func()) {
	t.Helper()
	r.refuse(syscall.ECONNREFUSED)
	v.cut(t, fx, r)
	eventually(t, "the watch goes on", func(context.Context) error {
		if n := r.watching(); n > 0 {
			return fmt.Errorf("%d watches are open", n)
		}
		return nil
	})
	return func() { r.refuse(nil) }
}
