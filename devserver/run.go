// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"errors"

	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// Run serves from the run directory dir until ctx ends, the server can't go on, or
// the etcd inside the process ends by itself; an etcd that has ended is an error.
// Run is Open, Apply, Serve and Close for a server with nothing of its own between
// them. The address and the port are those of options, and so is the etcd, if
// options name one; otherwise an etcd runs inside the process, unless options.Etcd is nil.
//
// Run calls build with config when the options are applied; build switches the
// watch cache on and makes the server. If build fails, the process should end: the
// health checks of its config go on. Run calls ready with the server's URL and the
// name of the kubeconfig once /readyz says ok. Run changes options and config, and
// returns after all that it started has ended.
func Run(
	ctx context.Context, dir string, options *genericoptions.RecommendedOptions, config *genericapiserver.RecommendedConfig,
	build func(*genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer, error), ready func(url, kubeconfig string),
) (err error) {
	env, err := Open(ctx, Config{
		Dir:         dir,
		BindAddress: options.SecureServing.BindAddress,
		Port:        options.SecureServing.BindPort,
		Etcd:        options.Etcd != nil && len(options.Etcd.StorageConfig.Transport.ServerList) == 0,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	if err := env.Apply(options, config); err != nil {
		return err
	}
	generic, err := build(config)
	if err != nil {
		return err
	}
	return env.Serve(ctx, generic, func(kubeconfig string) error {
		ready(env.URL(), kubeconfig)
		return nil
	})
}
