// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// pollInterval is how often a server that is starting is asked for its health.
const pollInterval = 50 * time.Millisecond

// waitReady returns when the server at endpoint says that it is healthy, or
// with an error when it has exited or ctx has ended.
func waitReady(ctx context.Context, endpoint string, exited <-chan struct{}) error {
	// A client of its own leaves no idle connection behind.
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	var last error
	for {
		if last = healthy(ctx, client, endpoint); last == nil {
			return nil
		}
		select {
		case <-exited:
			return errors.New("the server ended before it was ready")
		case <-ctx.Done():
			return fmt.Errorf("the server at %s is not ready: %w: %w", endpoint, ctx.Err(), last)
		case <-tick.C:
		}
	}
}

func healthy(ctx context.Context, client *http.Client, endpoint string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint+"/health", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"health":"true"`) {
		return fmt.Errorf("health is %s: %s", resp.Status, body)
	}
	return nil
}

// freePort gives a port of 127.0.0.1 that nobody listened on a moment ago.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// portTaken reports whether err, from whichever way of running, says that a
// port is in use.
func portTaken(err error) bool {
	return strings.Contains(err.Error(), "address already in use") || strings.Contains(err.Error(), "port is already allocated")
}
