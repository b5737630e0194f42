// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/server"
)

const (
	// readyPoll is the interval at which the server is asked whether it is ready.
	readyPoll = 20 * time.Millisecond
	// complainAfter is the interval at which the log says what is missing.
	complainAfter = 10 * time.Second
)

// WaitReady returns nil once the /readyz of the server says ok to a client with
// config, or the error of ctx when ctx ends. Every ten seconds until then, it logs
// what is missing: which cache, and why.
func WaitReady(ctx context.Context, generic *genericapiserver.GenericAPIServer, config *rest.Config) error {
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
			if why := server.Readiness(generic); why != nil {
				missing = why // /readyz does not tell reasons
			}
			klog.Warningf("Not ready yet: %v", missing)
		case <-poll.C:
		}
	}
}

// checkReady returns the complaint of /readyz.
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
