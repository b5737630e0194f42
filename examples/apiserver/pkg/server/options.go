// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"net"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/devserver"
	v1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	watchcache "github.com/kube-watchcache/watchcache/server"
)

// etcdPrefix is the prefix of this server's keys, before group, resource, namespace and name.
const etcdPrefix = "/registry"

// Options are the flags of the server.
type Options struct {
	// Recommended are the flags of every aggregated API server.
	Recommended *genericoptions.RecommendedOptions
	// Standalone selects a server on loopback with its own credentials, the default without etcd
	// servers.
	Standalone bool
	// RunDir is the directory of a standalone server's files.
	RunDir string
	// Verbosity is klog's level.
	Verbosity int
	// WatchCache are the flags of the watch cache.
	WatchCache *watchcache.Options
	// Cache are further options for server.Install.
	Cache []cacher.Option

	scheme *runtime.Scheme
	codecs serializer.CodecFactory
	flags  cliflag.NamedFlagSets
}

// NewOptions returns the defaults, and adds flags to the flag sets.
func NewOptions() *Options {
	o := &Options{RunDir: ".run", WatchCache: watchcache.NewOptions()}
	o.scheme, o.codecs = newScheme()
	o.Recommended = genericoptions.NewRecommendedOptions(etcdPrefix, o.codecs.LegacyCodec(v1.SchemeGroupVersion))
	o.Recommended.Etcd.StorageConfig.EncodeVersioner = v1.SchemeGroupVersion
	o.Recommended.SecureServing.BindAddress = net.IPv4(127, 0, 0, 1)
	o.Recommended.SecureServing.BindPort = 8443

	own := o.flags.FlagSet("example")
	own.BoolVar(&o.Standalone, "standalone", o.Standalone, "Serve on a loopback address, to one client, with credentials "+
		"made for it, instead of asking a kube-apiserver who may do what. Implied if there is no --etcd-servers: "+
		"then an etcd runs inside the process.")
	own.StringVar(&o.RunDir, "run-dir", o.RunDir, "The directory for a standalone server's credentials, kubeconfig and etcd data.")
	own.IntVarP(&o.Verbosity, "v", "v", o.Verbosity, "How much to log: 0 what goes wrong, and a few lines at start and end; 2 for operators, 4 and more for debugging.")
	utilfeature.DefaultMutableFeatureGate.AddFlag(own)

	o.WatchCache.AddFlags(o.flags.FlagSet("watch cache"))
	o.Recommended.Etcd.AddFlags(o.flags.FlagSet("etcd"))
	o.Recommended.SecureServing.AddFlags(o.flags.FlagSet("serving"))
	o.Recommended.Authentication.AddFlags(o.flags.FlagSet("authentication"))
	o.Recommended.Authorization.AddFlags(o.flags.FlagSet("authorization"))
	o.Recommended.Audit.AddFlags(o.flags.FlagSet("audit"))
	o.Recommended.Features.AddFlags(o.flags.FlagSet("features"))
	o.Recommended.CoreAPI.AddFlags(o.flags.FlagSet("core API"))
	o.Recommended.Admission.AddFlags(o.flags.FlagSet("admission"))
	o.Recommended.EgressSelector.AddFlags(o.flags.FlagSet("egress"))
	o.Recommended.Traces.AddFlags(o.flags.FlagSet("traces"))
	return o
}

// Flags returns the flags by topic.
func (o *Options) Flags() *cliflag.NamedFlagSets { return &o.flags }

// Complete decides from the flags whether the server is standalone.
func (o *Options) Complete() {
	if len(o.etcdServers()) == 0 {
		o.Standalone = true
	}
}

func (o *Options) etcdServers() []string {
	return o.Recommended.Etcd.StorageConfig.Transport.ServerList
}

// Validate returns a one-line error that names every invalid flag, or nil. Call it after Complete.
func (o *Options) Validate() error {
	errs := o.WatchCache.Validate()
	if o.Standalone {
		errs = append(errs, o.validateStandalone()...)
	} else {
		errs = append(errs, o.validateDelegated()...)
	}
	return oneLine(errs)
}

func (o *Options) validateStandalone() []error {
	errs := devserver.Validate(o.Recommended, o.allFlags())
	if o.RunDir == "" {
		errs = append(errs, errors.New("--run-dir must not be empty"))
	}
	return errs
}

func (o *Options) validateDelegated() []error {
	errs := o.Recommended.Validate()
	if port := o.Recommended.SecureServing.BindPort; port == 0 {
		errs = append(errs, errors.New("--secure-port 0: must be between 1 and 65535; an aggregated server needs one that others know"))
	}
	if _, err := genericoptions.ParseWatchCacheSizes(o.Recommended.Etcd.WatchCacheSizes); err != nil {
		errs = append(errs, fmt.Errorf("--watch-cache-sizes: %w", err))
	}
	if o.allFlags().Changed("run-dir") {
		errs = append(errs, fmt.Errorf("--run-dir %s: only a standalone server has a run directory", o.RunDir))
	}
	return errs
}

func (o *Options) allFlags() *pflag.FlagSet {
	all := pflag.NewFlagSet("all", pflag.ContinueOnError)
	for _, topic := range o.flags.Order {
		all.AddFlagSet(o.flags.FlagSet(topic))
	}
	return all
}

func oneLine(errs []error) error {
	var all error
	for _, err := range errs {
		switch {
		case err == nil:
		case all == nil:
			all = err
		default:
			all = fmt.Errorf("%w; %w", all, err)
		}
	}
	return all
}
