// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

func TestConfigRefusedByFieldAndValue(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*etcd3.Config)
		want   []string
	}{
		"no endpoints":       {func(c *etcd3.Config) { c.Endpoints = nil }, []string{"Endpoints", "[]"}},
		"empty endpoint":     {func(c *etcd3.Config) { c.Endpoints = []string{"http://a:1", ""} }, []string{"Endpoints[1]", `""`}},
		"list in an element": {func(c *etcd3.Config) { c.Endpoints = []string{"http://a:1,http://b:1"} }, []string{"Endpoints[0]", "http://a:1,http://b:1", "comma"}},
		"scheme":             {func(c *etcd3.Config) { c.Endpoints = []string{"ftp://a:1"} }, []string{"Endpoints[0]", "ftp://a:1", "scheme"}},
		"no port":            {func(c *etcd3.Config) { c.Endpoints = []string{"http://a"} }, []string{"Endpoints[0]", `"http://a"`, "host:port"}},
		"no port, bare":      {func(c *etcd3.Config) { c.Endpoints = []string{"a"} }, []string{"Endpoints[0]", `"a"`, "host:port"}},
		"no socket":          {func(c *etcd3.Config) { c.Endpoints = []string{"unix:///"} }, []string{"Endpoints[0]", "unix:///", "socket"}},
		"some with TLS":      {func(c *etcd3.Config) { c.Endpoints = []string{"http://a:1", "https://b:1"} }, []string{"http://a:1", "https://b:1", "TLS"}},
		"files without TLS":  {func(c *etcd3.Config) { c.TrustedCAFile = "ca.crt" }, []string{"Endpoints[0]", "http://127.0.0.1:2379", "TrustedCAFile", "ca.crt"}},
		"cert without key":   {func(c *etcd3.Config) { c.CertFile = "c.crt" }, []string{"CertFile", "c.crt", "KeyFile", `""`}},
		"key without cert":   {func(c *etcd3.Config) { c.KeyFile = "c.key" }, []string{"KeyFile", "c.key", "CertFile", `""`}},
		"dial timeout":       {func(c *etcd3.Config) { c.DialTimeout = -time.Second }, []string{"DialTimeout", "-1s"}},
		"keepalive":          {func(c *etcd3.Config) { c.KeepAliveTime = -time.Second }, []string{"KeepAliveTime", "-1s"}},
		"keepalive, short":   {func(c *etcd3.Config) { c.KeepAliveTime = time.Second }, []string{"KeepAliveTime", "1s", "10s"}},
		"keepalive timeout":  {func(c *etcd3.Config) { c.KeepAliveTimeout = -time.Second }, []string{"KeepAliveTimeout", "-1s"}},
		"compaction":         {func(c *etcd3.Config) { c.CompactionInterval = -time.Second }, []string{"CompactionInterval", "-1s"}},
		"prefix":             {func(c *etcd3.Config) { c.Prefix = "/a/../b" }, []string{"Prefix", "/a/../b"}},
		"prefix with a gap":  {func(c *etcd3.Config) { c.Prefix = "a//b" }, []string{"Prefix", "a//b"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := etcd3.Config{Endpoints: []string{"http://127.0.0.1:2379"}}
			require.NoError(t, cfg.Validate())
			tc.change(&cfg)
			err := cfg.Validate()
			require.Error(t, err)
			for _, want := range tc.want {
				require.Contains(t, err.Error(), want)
			}
			require.Equal(t, err.Error(), openError(t, cfg).Error())
		})
	}
}

func TestConfigAccepts(t *testing.T) {
	for _, endpoints := range [][]string{
		{"http://a:1", "http://b:1/"}, {"https://a:1", "unixs:///s"}, {"a:1", "unix:///s", "unix://s", "http://[::1]:1"},
	} {
		require.NoError(t, etcd3.Config{Endpoints: endpoints}.Validate(), endpoints)
	}
	require.NoError(t, etcd3.Config{CertFile: "c", KeyFile: "k", Endpoints: []string{"https://a:1", "b:1"}, Prefix: "/registry/"}.Validate())
}

func TestConfigNamesEveryBadField(t *testing.T) {
	err := etcd3.Config{DialTimeout: -1, Prefix: "..", KeyFile: "k"}.Validate()
	require.Error(t, err)
	for _, want := range []string{"Endpoints", "DialTimeout", "Prefix", "KeyFile"} {
		require.Contains(t, err.Error(), want)
	}
	require.NotContains(t, err.Error(), "\n")
}

func TestConfigFrom(t *testing.T) {
	from := storagebackend.NewDefaultConfig("/fleet", codec)
	from.Transport.ServerList = []string{"https://a:1"}
	from.Transport.CertFile, from.Transport.KeyFile, from.Transport.TrustedCAFile = "c", "k", "ca"
	from.Transport.TracerProvider = noop.NewTracerProvider()
	cfg, err := etcd3.ConfigFrom(*from)
	require.NoError(t, err)
	require.Equal(t, etcd3.Config{
		Endpoints: []string{"https://a:1"}, CertFile: "c", KeyFile: "k", TrustedCAFile: "ca",
		Prefix: "/fleet", CompactionInterval: storagebackend.DefaultCompactInterval, TracerProvider: noop.NewTracerProvider(),
	}, cfg)

	from.Type = "consul"
	_, err = etcd3.ConfigFrom(*from)
	require.Error(t, err)
	require.Contains(t, err.Error(), "consul")
}

func TestConfigFromUsesTheEgressSelector(t *testing.T) {
	srv := startEtcd(t, embedded.Config{})
	dialed := make(chan string, 100)
	var from storagebackend.Config
	from.Transport.ServerList = srv.Endpoints()
	from.Transport.EgressLookup = func(n egressselector.NetworkContext) (utilnet.DialFunc, error) {
		require.Equal(t, egressselector.Etcd.AsNetworkContext(), n)
		return func(ctx context.Context, network, addr string) (net.Conn, error) {
			dialed <- addr
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}, nil
	}
	cfg, err := etcd3.ConfigFrom(from)
	require.NoError(t, err)
	open(t, cfg)
	require.Equal(t, srv.Endpoints()[0], "http://"+<-dialed)

	from.Transport.EgressLookup = func(egressselector.NetworkContext) (utilnet.DialFunc, error) { return nil, nil }
	cfg, err = etcd3.ConfigFrom(from)
	require.NoError(t, err)
	require.Empty(t, cfg.DialOptions)

	broken := errors.New("no tunnel")
	from.Transport.EgressLookup = func(egressselector.NetworkContext) (utilnet.DialFunc, error) { return nil, broken }
	_, err = etcd3.ConfigFrom(from)
	require.ErrorIs(t, err, broken)
}
