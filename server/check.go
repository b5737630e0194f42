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

// CheckEtcd tells whether the etcd that a server's --etcd-* flags describe is
// there, and if not, why: nobody answers, a certificate does not fit, one side
// speaks TLS and the other does not. A server that asks before it builds its
// config says so in one line instead of waiting for its storage. It takes five
// seconds at most.
func CheckEtcd(ctx context.Context, config storagebackend.Config) error {
	settings, err := etcd3.ConfigFrom(config)
	if err != nil {
		return err
	}
	settings.Prefix = ""
	settings.CompactionInterval = 0
	settings.DialTimeout = etcdPatience
	backend, err := etcd3.Open(ctx, settings)
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(settings.Endpoints, ","), err)
	}
	return backend.Close()
}
