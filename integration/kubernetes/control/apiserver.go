// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/flagz"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/term"
	"k8s.io/component-base/version/verflag"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/kube-watchcache/watchcache/integration/kubernetes/install"
	watchcache "github.com/kube-watchcache/watchcache/server"
)

// APIServer returns kube-apiserver with the flags of watchcache.Options, as
// --watch-cache-implementation, which chooses its watch cache. All else is Kubernetes'. Its context ends with SIGTERM
// or SIGINT, which a process can ask for once only.
func APIServer() *cobra.Command {
	watchcache.QuietGRPC()
	// The gates of logging are there already: package app adds them.
	s := options.NewServerRunOptions()
	caches := watchcache.NewOptions()
	sets := s.Flags()
	caches.AddFlags(sets.FlagSet("watch cache"))
	keptLists := sets.FlagSet("watch cache").Bool("kept-lists", false, "Answer lists of the built-in APIs from kept bytes, where the watch cache is --watch-cache-implementation=watchcache.")
	s.Flagz = flagz.NamedFlagSetsReader{FlagSets: sets}
	verflag.AddFlags(sets.FlagSet("global"))
	globalflag.AddGlobalFlags(sets.FlagSet("global"), "kube-apiserver", logs.SkipLoggingConfigurationFlags())
	c := &cobra.Command{
		Use:          "kube-apiserver",
		Short:        "kube-apiserver on a watch cache of choice",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(c *cobra.Command, _ []string) error {
			verflag.PrintAndExitIfRequested()
			if err := utilerrors.NewAggregate(caches.Validate()); err != nil {
				return err
			}
			completed, err := complete(c.Context(), s)
			if err != nil {
				return err
			}
			if *keptLists {
				if err := install.KeepLists(); err != nil {
					return err
				}
			}
			return run(c.Context(), completed, caches)
		},
	}
	c.SetContext(genericapiserver.SetupSignalContext())
	for _, set := range sets.FlagSets {
		c.Flags().AddFlagSet(set)
	}
	columns, _, _ := term.TerminalSize(c.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(c, sets, columns)
	return c
}

// complete sets the gates and logging as the flags say, and checks the flags.
func complete(ctx context.Context, s *options.ServerRunOptions) (options.CompletedOptions, error) {
	registry := s.GenericServerRunOptions.ComponentGlobalsRegistry
	if err := registry.Set(); err != nil {
		return options.CompletedOptions{}, err
	}
	gates := registry.FeatureGateFor(basecompatibility.DefaultKubeComponent)
	if err := logsapi.ValidateAndApply(s.Logs, gates); err != nil {
		return options.CompletedOptions{}, err
	}
	rest.SetDefaultWarningHandler(rest.NoWarnings{}) // the server's requests to itself
	completed, err := s.Complete(ctx)
	if err != nil {
		return completed, err
	}
	if mutable, ok := gates.(featuregate.MutableFeatureGate); ok {
		mutable.AddMetrics()
	} else {
		utilfeature.DefaultMutableFeatureGate.AddMetrics()
	}
	registry.AddMetrics()
	return completed, utilerrors.NewAggregate(completed.Validate())
}

// run makes the servers and serves until ctx ends.
func run(ctx context.Context, completed options.CompletedOptions, caches *watchcache.Options) (err error) {
	if completed.InformerName, err = cache.NewInformerName("kube-apiserver"); err != nil {
		return err
	}
	config, err := app.NewConfig(completed)
	if err != nil {
		return err
	}
	if err := install.Chain(caches, config.Aggregator, config.KubeAPIs.ControlPlane.Generic, config.ApiExtensions); err != nil {
		return err
	}
	klog.InfoS("The watch cache is chosen", "implementation", caches.Implementation.String())
	ready, err := config.Complete()
	if err != nil {
		return err
	}
	servers, err := app.CreateServerChain(ready)
	if err != nil {
		return err
	}
	if err := watchcache.AddReadinessHook(servers.GenericAPIServer); err != nil {
		return err
	}
	prepared, err := servers.PrepareRun()
	if err != nil {
		return err
	}
	return prepared.Run(ctx)
}
