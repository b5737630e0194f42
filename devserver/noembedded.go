// SPDX-License-Identifier: Apache-2.0

//go:build noembeddedetcd

package devserver

import (
	"context"
	"errors"

	"go.uber.org/zap"
)

// startEtcd fails: the build tag left etcd's server out of this binary.
func startEtcd(context.Context, string, *zap.Logger) (etcdServer, error) {
	return nil, errors.New("this binary was built with the tag noembeddedetcd, without an etcd inside: give --etcd-servers")
}
