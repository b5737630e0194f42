// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"errors"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// store is the storage in memory. The store counts the fills of the cache: how often
// the cache has begun to read the whole state.
type store struct {
	*memstore.Store
	noProgress atomic.Bool
	history    atomic.Bool
	poisoned   atomic.Bool
	fills      atomic.Int64
}

// clientMark is in the context of what a client asks for.
type clientMark struct{}

func newStore() *store {
	s := &store{Store: memstore.New(poddata.Prefix, poddata.New)}
	s.Decodes = true
	return s
}

// WatchProgress reports whether the storage answers progress requests.
func (s *store) WatchProgress() bool { return !s.noProgress.Load() }

// KeepsHistory reports whether a cache that starts goes back to what was written
// before.
func (s *store) KeepsHistory() bool { return s.history.Load() }

// GetList implements storage.Interface. The lists of consistency checks name a
// version.
func (s *store) GetList(ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error {
	if ctx.Value(clientMark{}) == nil && opts.ResourceVersionMatch != metav1.ResourceVersionMatchExact && opts.Predicate.Continue == "" {
		s.fills.Add(1)
	}
	return s.Store.GetList(ctx, key, opts, out)
}

// attrs are the attributes of a pod, which can't be had of some while the storage
// is poisoned.
func (s *store) attrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	if pod, ok := obj.(*example.Pod); ok && s.poisoned.Load() && pod.Labels["poison"] != "" {
		return nil, nil, errors.New("the object is poisoned")
	}
	return poddata.Attrs(obj)
}

// undecodable is what changes fail with that can't be decoded.
var undecodable = apierrors.NewInternalError(errors.New("unable to decode an object"))

// failures are the errors that watches of the storage end with.
var failures = map[string]*apierrors.StatusError{
	"expired":     apierrors.NewResourceExpired("compacted"),
	"unavailable": apierrors.NewServiceUnavailable("gone for a moment"),
	"no-leader":   apierrors.NewInternalError(errors.New("etcdserver: no leader")),
	"unknown":     apierrors.NewInternalError(errors.New("the quorum is out for lunch")),
}
