// SPDX-License-Identifier: Apache-2.0

package server

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// parse returns completed options, or the first error.
func parse(t *testing.T, args ...string) (*Options, error) {
	t.Helper()
	options := NewOptions()
	all := pflag.NewFlagSet("test", pflag.ContinueOnError)
	for _, set := range options.Flags().FlagSets {
		all.AddFlagSet(set)
	}
	if err := all.Parse(args); err != nil {
		return nil, err
	}
	options.Complete()
	return options, options.Validate()
}

func TestDefaults(t *testing.T) {
	options, err := parse(t)
	require.NoError(t, err)
	require.True(t, options.Standalone)
	require.Equal(t, ".run", options.RunDir)
	require.Equal(t, "127.0.0.1", options.Recommended.SecureServing.BindAddress.String())
	require.Equal(t, 8443, options.Recommended.SecureServing.BindPort)

	options, err = parse(t, "--etcd-servers=http://127.0.0.1:2379")
	require.NoError(t, err)
	require.False(t, options.Standalone)
	options, err = parse(t, "--etcd-servers=http://127.0.0.1:2379", "--standalone")
	require.NoError(t, err)
	require.True(t, options.Standalone)
}

func TestValidateStandalone(t *testing.T) {
	for _, args := range [][]string{
		{"--secure-port=0"},
		{"--bind-address=::1"},
		{"--watch-cache=false"},
		{"--watch-cache-sizes=devices.fleet.example.com#0"},
		{"--etcd-servers=http://127.0.0.1:2379", "--standalone", "--etcd-prefix=/other"},
	} {
		_, err := parse(t, args...)
		require.NoError(t, err, args)
	}
}

// TestValidateNamesTheFlag: one line, which names every flag at fault and its value.
func TestValidateNamesTheFlag(t *testing.T) {
	const etcd = "--etcd-servers=http://127.0.0.1:2379"
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"--bind-address=0.0.0.0"}, []string{"--bind-address: 0.0.0.0"}},
		{[]string{"--run-dir="}, []string{"--run-dir"}},
		{[]string{"--secure-port=0", etcd}, []string{"--secure-port 0"}},
		{[]string{"--run-dir=x", etcd}, []string{"--run-dir x"}},
		{[]string{"--tls-cert-file=a", "--kubeconfig=b"}, []string{"--tls-cert-file a", "--kubeconfig b"}},
		{[]string{"--watch-cache-max-fallback-lists=-1"}, []string{"--watch-cache-max-fallback-lists", "-1", "negative"}},
		{[]string{"--watch-cache-idle-timeout=1ms"}, []string{"--watch-cache-idle-timeout", "1ms"}},
	} {
		_, err := parse(t, test.args...)
		require.Error(t, err, test.args)
		for _, want := range test.want {
			require.ErrorContains(t, err, want)
		}
		require.False(t, strings.Contains(err.Error(), "\n"), err)
	}
}

func TestStandaloneFlagAllowsNoDelegation(t *testing.T) {
	_, err := parse(t, "--etcd-servers=http://127.0.0.1:2379", "--standalone", "--authorization-kubeconfig=a")
	require.ErrorContains(t, err, "--authorization-kubeconfig a")
}
