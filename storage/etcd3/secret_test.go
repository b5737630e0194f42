// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// secretEndpoints are endpoints into which somebody wrote a name and a
// password. None of them can be used: etcd's client would not use those.
var secretEndpoints = []string{
	"http://root:hunter2@127.0.0.1:2379",
	"https://root:hunter2@127.0.0.1:2379",
	"http://hunter2@127.0.0.1:2379",
	"http://:hunter2@127.0.0.1:2379",
	"http://root:hunter2/x@127.0.0.1:2379", // a slash that is not escaped
	"http://root:hunter2?x@127.0.0.1:2379",
	"http://root:hunter2%zz@127.0.0.1:2379",
	"http://root:hunter2@example.com@127.0.0.1:2379",
	"root:hunter2@127.0.0.1:2379",
	"root:hunter2@127.0.0.1",
	"ftp://root:hunter2@127.0.0.1:2379",
	"root:hunter2@host://127.0.0.1:2379",
	"unix://root:hunter2@socket",
	"http://root:hunter2@a:1,http://root:hunter2@b:1",
	"http://root:hunter2 x@127.0.0.1:2379",
}

func TestNoPasswordInErrorsOrLogs(t *testing.T) {
	srv := startEtcd(t, embedded.Config{})
	b := open(t, etcd3.Config{Endpoints: srv.Endpoints()})
	for _, endpoint := range secretEndpoints {
		t.Run(endpoint, func(t *testing.T) {
			core, logs := observer.New(zap.DebugLevel)
			for name, cfg := range map[string]etcd3.Config{
				"alone":      {Endpoints: []string{endpoint}},
				"with files": {Endpoints: []string{endpoint}, CertFile: "c.crt", KeyFile: "c.key"},
				"mixed":      {Endpoints: []string{"https://a:1", endpoint, "http://b:1"}},
			} {
				cfg.DialTimeout, cfg.Logger = time.Second, zap.New(core)
				for _, err := range []error{cfg.Validate(), openError(t, cfg)} {
					require.Error(t, err, name)
					require.NotContains(t, err.Error(), "hunter2", name)
					require.Contains(t, err.Error(), "Endpoints[", name)
				}
				require.NotContains(t, fmt.Sprint(logs.All()), "hunter2", name)
			}
			_, _, err := rawStorage(b, func(c *storagebackend.ConfigForResource) { c.Transport.ServerList = []string{endpoint} })
			require.ErrorContains(t, err, "ServerList")
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
}

// An endpoint's name is shown, without the secret in it.
func TestEndpointsAreNamed(t *testing.T) {
	err := etcd3.Config{Endpoints: []string{"http://root:hunter2@etcd.example.com:2379", "ftp://a:1", "unix:///tmp/a@b/"}}.Validate()
	require.ErrorContains(t, err, `Endpoints[0]: "http://xxxxx@etcd.example.com:2379"`)
	require.ErrorContains(t, err, `Endpoints[1]: "ftp://a:1"`)
	require.NoError(t, etcd3.Config{Endpoints: []string{"unix:///tmp/a@b/etcd.sock"}}.Validate())
}
