// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"fmt"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// TestValidateWithoutEtcd: a server without etcd options has no etcd, and its other flags
// are looked at as before.
func TestValidateWithoutEtcd(t *testing.T) {
	options := genericoptions.NewRecommendedOptions("", nil)
	options.Etcd, options.SecureServing.BindAddress = nil, loopback
	flags := pflag.NewFlagSet("parsed", pflag.ContinueOnError)
	options.AddFlags(flags)
	require.Nil(t, flags.Lookup("etcd-servers"))
	require.Empty(t, Validate(options, flags))
	require.NoError(t, flags.Parse([]string{"--secure-port=-1"}))
	require.Len(t, Validate(options, flags), 1)
}

// TestValidate: each flag that does not fit, or that would have no effect, is named
// with its value, and no other flag is.
func TestValidate(t *testing.T) {
	for _, test := range []struct {
		args []string
		want []string
	}{
		{},
		{[]string{"--secure-port=0", "--bind-address=::1"}, nil},
		{[]string{"--etcd-servers=http://127.0.0.1:2379", "--etcd-prefix=/other", "--watch-cache=false"}, nil},
		{[]string{"--bind-address=0.0.0.0"}, []string{"--bind-address: 0.0.0.0"}},
		{[]string{"--secure-port=-1"}, []string{"--secure-port -1"}},
		{[]string{"--secure-port=65536"}, []string{"--secure-port 65536"}},
		{[]string{"--storage-media-type=text/plain"}, []string{`--storage-media-type "text/plain"`}},
		{[]string{"--watch-cache-sizes=widgets"}, []string{"--watch-cache-sizes: "}},
		{[]string{"--audit-log-path=-", "--audit-log-maxage=-1"}, []string{"--audit-log-maxage"}},
		{
			[]string{"--authentication-kubeconfig=a", "--authorization-kubeconfig=b", "--kubeconfig=c", "--client-ca-file=d"},
			[]string{"--authentication-kubeconfig a: ", "--authorization-kubeconfig b: ", "--kubeconfig c: ", "--client-ca-file d: "},
		},
		{[]string{"--authorization-always-allow-paths=/a"}, []string{"--authorization-always-allow-paths"}},
		{[]string{"--enable-admission-plugins=NamespaceLifecycle"}, []string{"--enable-admission-plugins [NamespaceLifecycle]: "}},
		{[]string{"--tls-cert-file=a", "--cert-dir=b"}, []string{"--cert-dir b: ", "--tls-cert-file a: "}},
		{[]string{"--enable-priority-and-fairness=true"}, []string{"--enable-priority-and-fairness true: "}},
	} {
		t.Run(fmt.Sprint(test.args), func(t *testing.T) {
			options := genericoptions.NewRecommendedOptions("/registry", nil)
			options.SecureServing.BindAddress = loopback
			parsed := pflag.NewFlagSet("parsed", pflag.ContinueOnError)
			options.AddFlags(parsed)
			require.NoError(t, parsed.Parse(test.args))
			// Flags by topic, in sets of their own, are known in the same way.
			joined := pflag.NewFlagSet("joined", pflag.ContinueOnError)
			joined.AddFlagSet(parsed)
			for _, flags := range []*pflag.FlagSet{parsed, joined} {
				wrong := Validate(options, flags)
				require.Len(t, wrong, len(test.want), "%v", wrong)
				for _, want := range test.want {
					require.ErrorContains(t, fmt.Errorf("%v", wrong), want)
				}
			}
			if len(test.args) == 0 {
				require.Empty(t, options.Etcd.StorageConfig.Transport.ServerList, "options are changed")
			}
		})
	}
}
