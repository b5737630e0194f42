// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	genericoptions "k8s.io/apiserver/pkg/server/options"

	watchcache "github.com/kube-watchcache/watchcache/server"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// checkEtcd ends the process with one line if the etcd of the server's flags
// can't be used.
func checkEtcd(ctx context.Context, options *genericoptions.EtcdOptions) {
	err := watchcache.CheckEtcd(ctx, options.StorageConfig)
	switch {
	case errors.Is(err, etcd3.ErrUnreachable):
		fmt.Fprintln(os.Stderr, "is etcd running?", err)
		os.Exit(1)
	case err != nil: // etcd3.ErrTLS, or a setting that can't be used
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A server says in one line why it can't use its etcd, instead of waiting for it.
func ExampleCheckEtcd() {
	var options genericoptions.RecommendedOptions // after its flags were parsed, before ApplyTo
	checkEtcd(context.Background(), options.Etcd)
}
