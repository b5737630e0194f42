// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-watchcache/watchcache/cacher/internal/fanout"
)

// Client is who sent a request, as far as it is known. Each field may be empty.
type Client struct {
	// User is the name of the authenticated user, after impersonation.
	User string `json:"user,omitempty"`
	// UserAgent is the header of the request.
	UserAgent string `json:"userAgent,omitempty"`
	// Address is the host and port that the request came from.
	Address string `json:"address,omitempty"`
}

type clientKey struct{}

// WithClient returns a context whose watches Status shows as those of the
// client, in full. Without it, Status shows the user that the context has for an
// API server's registry, and no more. server.Install gives each watch of a server
// its client.
func WithClient(ctx context.Context, client Client) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

// clientOf returns whose request a context is.
func clientOf(ctx context.Context) fanout.Client {
	if client, ok := ctx.Value(clientKey{}).(Client); ok {
		return fanout.Client(client)
	}
	if user, ok := apirequest.UserFrom(ctx); ok && user != nil {
		return fanout.Client{User: user.GetName()}
	}
	return fanout.Client{}
}
