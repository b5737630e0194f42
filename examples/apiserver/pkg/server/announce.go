// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kube-watchcache/watchcache/devserver"
)

func (o *Options) announceStandalone(env *devserver.Environment, out io.Writer) func(kubeconfig string) error {
	return func(kubeconfig string) error {
		data := strings.Join(o.etcdServers(), ",")
		if env.Endpoints() != nil {
			data = filepath.Join(o.RunDir, "etcd")
		}
		pki := filepath.Join(o.RunDir, "pki")
		_, err := fmt.Fprintf(out, `Serving fleet.example.com on %[1]s, data in %[2]s, kubeconfig %[3]s

  kubectl --kubeconfig %[3]s apply -f examples/apiserver/devices.yaml
  kubectl --kubeconfig %[3]s get devices -A
  kubectl --kubeconfig %[3]s get devices -A -w

Without kubectl:
  curl --cacert %[4]s/ca.crt --cert %[4]s/client.crt --key %[4]s/client.key '%[1]s/apis/fleet.example.com/v1/devices?limit=5'

Ctrl-C stops it.
`, env.URL(), data, kubeconfig, pki)
		return err
	}
}

func announceDelegated(ctx context.Context, generic *genericapiserver.GenericAPIServer, out io.Writer) error {
	client := generic.LoopbackClientConfig
	if err := devserver.WaitReady(ctx, generic, client); err != nil {
		if ctx.Err() != nil {
			return nil // stopped before it was ready
		}
		return err
	}
	_, err := fmt.Fprintf(out, "Serving fleet.example.com on %s\n", client.Host)
	return err
}
