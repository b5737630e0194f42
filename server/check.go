// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// etcdPatience is how long CheckEtcd waits for an answer.
const etcdPatience = 5 * time.Second

// CheckEtcd returns nil if the etcd that a server's --etcd-* flags describe
// answers, and otherwise an error of one line with the reason: no server
// answers ([etcd3.ErrUnreachable]), or a certificate does not fit, or only one
// side uses TLS ([etcd3.ErrTLS]). Call CheckEtcd before building the server,
// which would otherwise wait for its storage. CheckEtcd takes five seconds at
// most.
func CheckEtcd(ctx context.Context, config storagebackend.Config) error {
	settings, err := etcd3.ConfigFrom(config)
	if err != nil {
		return err
	}
	settings.Prefix = ""
	settings.CompactionInterval = 0
	settings.DialTimeout = etcdPatience
	if err := settings.Validate(); err != nil {
		return err // names the endpoint, without its password
	}
	backend, err := etcd3.Open(ctx, settings)
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(settings.Endpoints, ","), err)
	}
	return backend.Close()
}
