// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"context"
	"log"

	"k8s.io/apiserver/pkg/registry/generic"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// All caches of a decorator on one etcd client, where server.Install is not used.
func ExampleBackend_RawStorage() {
	backend, err := etcd3.Open(context.Background(), etcd3.Config{
		Endpoints:     []string{"https://etcd-0.etcd:2379", "https://etcd-1.etcd:2379", "https://etcd-2.etcd:2379"},
		TrustedCAFile: "/etc/etcd/ca.crt",
		CertFile:      "/etc/etcd/tls.crt",
		KeyFile:       "/etc/etcd/tls.key",
	})
	if err != nil {
		log.Fatal(err) // names the endpoint, the file or the field
	}
	defer backend.Close() // after the server has stopped its caches

	var options generic.RESTOptions // of each resource
	options.Decorator = cacher.Decorator(cacher.WithRawStorage(backend.RawStorage))
}
