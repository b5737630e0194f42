// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-watchcache/watchcache/cacher/status"
)

type clientKey struct{}

// WithClient returns a context whose watches Status shows as those of the
// client, in full. Without it, Status shows the user that the context has for an
// API server's registry, and no more. server.Install gives each watch of a server
// its client.
func WithClient(ctx context.Context, client status.Client) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

// clientOf returns whose request a context is.
func clientOf(ctx context.Context) status.Client {
	if client, ok := ctx.Value(clientKey{}).(status.Client); ok {
		return client
	}
	if user, ok := apirequest.UserFrom(ctx); ok && user != nil {
		return status.Client{User: user.GetName()}
	}
	return status.Client{}
}
