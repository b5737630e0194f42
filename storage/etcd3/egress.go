// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"net"
	"net/url"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// tcpDialer turns the dialer of an egress selector into one for gRPC, which
// passes host:port or, depending on the resolver, a URL.
func tcpDialer(dial utilnet.DialFunc) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		if strings.Contains(address, "//") {
			parsed, err := url.Parse(address)
			if err != nil {
				return nil, err
			}
			address = parsed.Host
		}
		return dial(ctx, "tcp", address)
	}
}
