// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/kube-watchcache/watchcache/integration/kubernetes/local"
	watchcache "github.com/kube-watchcache/watchcache/server"
)

// try is what there is to try with a relay, whose cluster it names by $WORD.
const try = `
  export KUBECONFIG=$KUBECONFIG
  alias direct='kubectl --server=$UPSTREAM' relay='kubectl --server=$RELAY'

  direct create deployment web --image=web --replicas=50   # writes are the kube-apiserver's
  relay get pods -w                                        # reads are the relay's, at the same versions
  relay get pods -l app=web -o wide
  relay wait --for=condition=Ready pods -l app=web
  relay api-resources
  relay logs -l app=web                                    # refused, by a line that names the kube-apiserver
  relay get pods --as=jane                                 # refused: the rights are the cluster's
  direct create clusterrolebinding jane --clusterrole=view --user=jane
  relay get pods --as=jane                                 # ten seconds later: that is how long a decision is kept

The relay's metrics, and which of its clients are slow:

  relay get --raw /metrics | grep ^watchcache_
  relay get --raw '/debug/watchcache?format=json'
  curl --cacert $DIR/ca.crt --cert $DIR/admin.crt --key $DIR/admin.key $RELAY/debug/watchcache

Logs are in $DIR. The relay has its own:

  tail -f $DIR/relay.log

`

func relayCommand() *cobra.Command {
	var binary, resources string
	var flags []string
	u := up{greet: func(ctx context.Context, c *local.Cluster, out io.Writer) error {
		address, err := c.StartRelay(ctx, binary, resources, flags...)
		if err != nil {
			return err
		}
		client, err := c.Client("admin")
		if err != nil {
			return err
		}
		words := map[string]string{"KUBECONFIG": c.Kubeconfig(), "UPSTREAM": client.Host, "RELAY": address, "DIR": filepath.Dir(c.Kubeconfig())}
		_, err = io.WriteString(out, os.Expand(try, func(word string) string { return words[word] }))
		return err
	}}
	c := u.command("relay", "Run a cluster and a relay before it until Ctrl-C", watchcache.ImplementationShipped, 10)
	c.Flags().StringVar(&binary, "relay", "bin/relay", "the relay, as go build -o bin/relay ./cmd/relay makes it")
	c.Flags().StringVar(&resources, "resources", "pods,nodes,services,endpointslices.discovery.k8s.io", "what the relay serves")
	c.Flags().StringArrayVar(&flags, "relay-flag", nil, "one more flag of the relay; may be repeated")
	return c
}
