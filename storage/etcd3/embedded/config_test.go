// SPDX-License-Identifier: Apache-2.0

package embedded_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

func TestConfigRefusedByFieldAndValue(t *testing.T) {
	notPEM := filepath.Join(t.TempDir(), "not.pem")
	require.NoError(t, os.WriteFile(notPEM, []byte("x"), 0o600))
	for name, tc := range map[string]struct {
		change func(*embedded.Config)
		want   []string
	}{
		"no directory":   {func(c *embedded.Config) { c.Dir = "" }, []string{"Dir", `""`}},
		"quota":          {func(c *embedded.Config) { c.QuotaBytes = -1 }, []string{"QuotaBytes", "-1"}},
		"scheme":         {func(c *embedded.Config) { c.ClientURL = "ftp://127.0.0.1:1" }, []string{"ClientURL", "ftp://127.0.0.1:1"}},
		"not a URL":      {func(c *embedded.Config) { c.ClientURL = "http://%zz:1" }, []string{"ClientURL", "http://%zz:1"}},
		"no port":        {func(c *embedded.Config) { c.ClientURL = "http://127.0.0.1" }, []string{"ClientURL", "http://127.0.0.1", "port"}},
		"port range":     {func(c *embedded.Config) { c.ClientURL = "http://127.0.0.1:70000" }, []string{"ClientURL", "70000"}},
		"path":           {func(c *embedded.Config) { c.ClientURL = "http://127.0.0.1:1/x" }, []string{"ClientURL", "127.0.0.1:1/x"}},
		"any address":    {func(c *embedded.Config) { c.ClientURL = "http://0.0.0.0:2379" }, []string{"ClientURL", "0.0.0.0", "loopback"}},
		"other host":     {func(c *embedded.Config) { c.ClientURL = "http://etcd.example.com:2379" }, []string{"ClientURL", "etcd.example.com", "loopback"}},
		"no socket":      {func(c *embedded.Config) { c.ClientURL = "unix://" }, []string{"ClientURL", "unix://"}},
		"long socket":    {func(c *embedded.Config) { c.ClientURL = "unix:///" + strings.Repeat("x", 110) }, []string{"ClientURL", "xxx", "103"}},
		"https, no cert": {func(c *embedded.Config) { c.ClientURL = "https://127.0.0.1:0" }, []string{"ClientURL", "https://127.0.0.1:0", "CertFile"}},
		"cert, no key":   {func(c *embedded.Config) { c.CertFile = "c.pem" }, []string{"CertFile", "c.pem", "KeyFile", `""`}},
		"no such cert":   {func(c *embedded.Config) { c.CertFile, c.KeyFile = "/no/c.pem", "/no/k.pem" }, []string{"CertFile", "/no/c.pem"}},
		"cert not PEM":   {func(c *embedded.Config) { c.CertFile, c.KeyFile = notPEM, notPEM }, []string{"CertFile", notPEM}},
		"http with cert": {func(c *embedded.Config) {
			c.ClientURL, c.CertFile, c.KeyFile = "http://127.0.0.1:0", notPEM, notPEM
		}, []string{"ClientURL", "http://127.0.0.1:0", "must be https"}},
		"socket with cert": {func(c *embedded.Config) {
			c.ClientURL, c.CertFile, c.KeyFile = "unix:///s", notPEM, notPEM
		}, []string{"ClientURL", "unix:///s", "CertFile"}},
		"CA without cert": {func(c *embedded.Config) { c.TrustedCAFile = notPEM }, []string{"TrustedCAFile", notPEM, "CertFile"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := embedded.Config{Dir: filepath.Join(t.TempDir(), "data")}
			require.NoError(t, cfg.Validate())
			tc.change(&cfg)
			err := cfg.Validate()
			require.Error(t, err)
			for _, want := range tc.want {
				require.Contains(t, err.Error(), want)
			}
			require.Equal(t, err.Error(), startError(t, cfg).Error())
			if cfg.Dir != "" {
				require.NoDirExists(t, cfg.Dir)
			}
		})
	}
}

func TestConfigNamesEveryBadField(t *testing.T) {
	err := embedded.Config{ClientURL: "x", QuotaBytes: -2}.Validate()
	require.Error(t, err)
	for _, want := range []string{"Dir", "ClientURL", "QuotaBytes"} {
		require.Contains(t, err.Error(), want)
	}
	require.NotContains(t, err.Error(), "\n")
}

func TestNoPasswordInErrors(t *testing.T) {
	for _, raw := range []string{"http://root:hunter2@127.0.0.1:0", "root:hunter2@127.0.0.1:0", "http://root:hunter2%zz@127.0.0.1:0", "ftp://root:hunter2@x"} {
		err := startError(t, embedded.Config{Dir: t.TempDir(), ClientURL: raw})
		require.Contains(t, err.Error(), "ClientURL")
		require.NotContains(t, err.Error(), "hunter2")
	}
}
