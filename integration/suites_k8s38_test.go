// SPDX-License-Identifier: Apache-2.0

//go:build k8s38

package integration

import (
	"testing"

	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

func runTestGet(t *testing.T, f *fixture) {
	storagetesting.RunTestGet(f.ctx, t, f.cacher, f.increase)
}

func runTestWatchDeleteEventObjectHaveLatestRV(t *testing.T, f *fixture) {
	storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV(f.ctx, t, f.cacher, true, false, nil)
}

// closedStorage is the storage for etcd with its Close, whose type is not exported.
type closedStorage interface {
	storage.Interface
	Close()
}

func (f *fixture) openStorage(transformer value.Transformer, decoder etcd3.Decoder, versioner storage.Versioner) (closedStorage, error) {
	return etcd3.New(f.client, f.compactor, f.codec, poddata.New, poddata.NewList, nil, f.keys, podPrefix, pods,
		transformer, etcd3.NewDefaultLeaseManagerConfig(), decoder, versioner)
}
