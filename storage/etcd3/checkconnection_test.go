// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/storage/capability"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// REGRESSIONS 145: a store of an etcd that does not answer any more finds out why.
func TestCheckConnection(t *testing.T) {
	ca, otherCA := newKeyPair(t, "ca", nil), newKeyPair(t, "other-ca", nil)
	server, expired := newKeyPair(t, "server", ca), keyPairUntil(t, "expired", ca, time.Now().Add(-time.Minute))
	impostor := newKeyPair(t, "impostor", otherCA)
	for name, tc := range map[string]struct {
		now  *keyPair // whose server listens afterwards
		want string
	}{
		"nobody listens":           {nil, "connection refused"},
		"an expired certificate":   {expired, "certificate has expired"},
		"one of another authority": {impostor, "unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			srv, err := embedded.Start(testContext(t), embedded.Config{Dir: t.TempDir(), UnsafeNoFsync: true, CertFile: server.certFile, KeyFile: server.keyFile})
			require.NoError(t, err)
			endpoint := srv.Endpoints()[0]
			b := open(t, etcd3.Config{Endpoints: []string{endpoint}, TrustedCAFile: ca.certFile})
			s := newStore(t, b, pods("pods"))
			checker, ok := s.(capability.ConnectionChecker)
			require.True(t, ok)
			require.NoError(t, srv.Close())
			_, address, _ := strings.Cut(endpoint, "://")
			if tc.now != nil {
				certificate, err := tls.LoadX509KeyPair(tc.now.certFile, tc.now.keyFile)
				require.NoError(t, err)
				var listener net.Listener
				require.Eventually(t, func() bool {
					listener, err = tls.Listen("tcp", address, &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}})
					return err == nil
				}, deadline, 10*time.Millisecond)
				defer listener.Close()
				go func() {
					for {
						conn, err := listener.Accept()
						if err != nil {
							return
						}
						_ = conn.(*tls.Conn).Handshake() // which the client ends
						_ = conn.Close()
					}
				}()
			}
			err = checker.CheckConnection(testContext(t))
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, err, address)
			require.NotContains(t, err.Error(), "\n")
			require.True(t, strings.HasPrefix(err.Error(), "rpc error: code = Unavailable desc = "), err)
		})
	}

	srv := startEtcd(t, embedded.Config{})
	s := newStore(t, open(t, etcd3.Config{Endpoints: srv.Endpoints()}), pods("pods"))
	require.NoError(t, s.(capability.ConnectionChecker).CheckConnection(testContext(t)))
}
