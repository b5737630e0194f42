// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/standalone"
)

const (
	// readyPoll is how often the server is asked whether it is ready.
	readyPoll = 20 * time.Millisecond
	// complainAfter is how long it may take before the log says what is missing,
	// and then again and again.
	complainAfter = 10 * time.Second
)

// announceStandalone says how to use a standalone server once it can be used. The
// kubeconfig is written then, not before: who sees it can connect.
func (o *Options) announceStandalone(ctx context.Context, env *standalone.Environment, out io.Writer) error {
	client := env.ClientConfig()
	if err := waitReady(ctx, client); err != nil {
		return ignoreEnd(ctx, err)
	}
	kubeconfig, err := env.WriteKubeconfig()
	if err != nil {
		return err
	}
	data := strings.Join(o.etcdServers(), ",")
	if env.Endpoints() != nil {
		data = filepath.Join(o.RunDir, "etcd")
	}
	pki := filepath.Join(o.RunDir, "pki")
	_, err = fmt.Fprintf(out, `Serving fleet.example.com on %[1]s, data in %[2]s, kubeconfig %[3]s

  kubectl --kubeconfig %[3]s apply -f examples/apiserver/devices.yaml
  kubectl --kubeconfig %[3]s get devices -A
  kubectl --kubeconfig %[3]s get devices -A -w

Without kubectl:
  curl --cacert %[4]s/ca.crt --cert %[4]s/client.crt --key %[4]s/client.key '%[1]s/apis/fleet.example.com/v1/devices?limit=5'

Ctrl-C stops it.
`, env.URL(), data, kubeconfig, pki)
	return err
}

// announceDelegated says where an aggregated server listens once it is ready.
func announceDelegated(ctx context.Context, client *rest.Config, out io.Writer) error {
	if err := waitReady(ctx, client); err != nil {
		return ignoreEnd(ctx, err)
	}
	_, err := fmt.Fprintf(out, "Serving fleet.example.com on %s\n", client.Host)
	return err
}

// waitReady returns when /readyz says so, or ctx ends.
func waitReady(ctx context.Context, config *rest.Config) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer utilnet.CloseIdleConnectionsFor(client.Transport)
	poll := time.NewTicker(readyPoll)
	defer poll.Stop()
	complain := time.NewTicker(complainAfter)
	defer complain.Stop()
	for {
		missing := checkReady(ctx, client, config.Host)
		if missing == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-complain.C:
			klog.Warningf("not ready yet: %v", missing)
		case <-poll.C:
		}
	}
}

// checkReady returns what /readyz has to complain about.
func checkReady(ctx context.Context, client *http.Client, host string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, host+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, strings.Join(strings.Fields(string(body)), " "))
	}
	return err
}

// ignoreEnd returns nil for an error that only says that ctx has ended.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
