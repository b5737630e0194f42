// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// Validate takes the place of options.Validate() for a server in an Environment,
// whose flags are parsed. Validate returns an error, with the flag and its value,
// for each value of options that does not fit, and for each of flags that was given
// although Apply switches off what the flag is for; nil if there is none. Without
// --etcd-servers, the server is taken to have an etcd inside the process, or none if
// options.Etcd is nil.
func Validate(options *genericoptions.RecommendedOptions, flags *pflag.FlagSet) (wrong []error) {
	if err := CheckLoopback(options.SecureServing.BindAddress); err != nil {
		wrong = append(wrong, fmt.Errorf("--bind-address: %w", err))
	}
	if port := options.SecureServing.BindPort; port < 0 || port > 65535 {
		wrong = append(wrong, fmt.Errorf("--secure-port %d: must be between 0 and 65535; 0 picks a free one", port))
	}
	if options.Etcd != nil {
		etcd := *options.Etcd
		if len(etcd.StorageConfig.Transport.ServerList) == 0 {
			etcd.StorageConfig.Transport.ServerList = []string{"inside the process"}
		}
		wrong = append(wrong, etcd.Validate()...)
		if _, err := genericoptions.ParseWatchCacheSizes(etcd.WatchCacheSizes); err != nil {
			wrong = append(wrong, fmt.Errorf("--watch-cache-sizes: %w", err))
		}
	}
	wrong = append(wrong, options.Audit.Validate()...)
	wrong = append(wrong, options.EgressSelector.Validate()...)
	wrong = append(wrong, options.Traces.Validate()...)
	unused := unusedFlags()
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && slices.Contains(unused, flag.Name) {
			wrong = append(wrong, fmt.Errorf("--%s %s: a server without a cluster has no use for it: "+
				"it makes its own credentials and asks no kube-apiserver", flag.Name, flag.Value))
		}
	})
	return wrong
}

// unusedFlags returns the names of the flags that Apply leaves without an effect.
func unusedFlags() []string {
	names := []string{"cert-dir", "tls-cert-file", "tls-private-key-file", "tls-sni-cert-key",
		"permit-port-sharing", "permit-address-sharing", "enable-priority-and-fairness"}
	off := pflag.NewFlagSet("off", pflag.ContinueOnError)
	genericoptions.NewDelegatingAuthenticationOptions().AddFlags(off)
	genericoptions.NewDelegatingAuthorizationOptions().AddFlags(off)
	genericoptions.NewCoreAPIOptions().AddFlags(off)
	genericoptions.NewAdmissionOptions().AddFlags(off)
	off.VisitAll(func(flag *pflag.Flag) { names = append(names, flag.Name) })
	return names
}
