// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kube-watchcache/watchcache/dashboards"
)

// job is the name of the servers for Prometheus.
const job = "apiserver"

// readyPoll is how often a Prometheus that starts is asked whether it is ready.
const readyPoll = 50 * time.Millisecond

// Target is a server that Prometheus scrapes.
type Target struct {
	Instance, Address string
	// CA, Cert and Key are files: the certificate authority of the server, and the
	// credentials of the client. Empty: the server is scraped without TLS.
	CA, Cert, Key string
}

// PrometheusConfig says what a Prometheus server scrapes and evaluates.
type PrometheusConfig struct {
	// Dir is an existing folder for the configuration and the data.
	Dir string
	// Interval is the time between two scrapes of a target.
	Interval time.Duration
	// Scale is that of the rules.
	Scale   dashboards.Scale
	Targets []Target
}

// Prometheus is a Prometheus server as a child, on a free port of 127.0.0.1.
type Prometheus struct {
	// URL is where its page and its API are.
	URL    string
	client *http.Client
	*process
}

// StartPrometheus starts a server and returns when it is ready. The caller stops it.
func StartPrometheus(ctx context.Context, config PrometheusConfig) (*Prometheus, error) {
	path, err := exec.LookPath("prometheus")
	if err != nil {
		return nil, fmt.Errorf("%w: run hack/packages.sh prometheus", err)
	}
	if err := config.write(); err != nil {
		return nil, err
	}
	// Another process may take the port between the look and the use.
	const tries = 5
	for try := 1; ; try++ {
		p, err := startPrometheus(ctx, path, config.Dir)
		if err == nil || try == tries || !strings.Contains(err.Error(), "address already in use") {
			return p, err
		}
	}
}

func startPrometheus(ctx context.Context, path, dir string) (*Prometheus, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	p := &Prometheus{URL: "http://" + address, client: &http.Client{Transport: &http.Transport{}}}
	p.process, err = launch("prometheus", []string{
		path, "--config.file=" + filepath.Join(dir, configFile), "--storage.tsdb.path=" + filepath.Join(dir, "data"),
		"--web.listen-address=" + address, "--log.level=warn",
	}, nil, func(string) {})
	if err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	polling, end := context.WithCancel(ctx)
	defer end()
	go func() { // ends when the server is ready, or with this function
		for polling.Err() == nil {
			if p.get(polling, "/-/ready", nil, nil) == nil {
				close(ready)
				return
			}
			select {
			case <-time.After(readyPoll):
			case <-polling.Done():
			}
		}
	}()
	if err := p.await(ctx, ready); err != nil {
		_ = p.Stop(ctx)
		return nil, err
	}
	return p, nil
}

// Stop ends the server and awaits its end; it is killed when ctx ends first.
func (p *Prometheus) Stop(ctx context.Context) error {
	p.client.CloseIdleConnections()
	return p.stop(ctx)
}

// The files that are written.
const (
	configFile = "prometheus.yaml"
	rulesFile  = "rules.yaml"
)

// write writes the configuration of Prometheus and its rules.
func (c PrometheusConfig) write() error {
	rules, err := dashboards.RulesYAML(c.Scale)
	if err != nil {
		return err
	}
	interval := dashboards.RealTime.Of(c.Interval)
	var scrapes []map[string]any
	for _, target := range c.Targets {
		scrape := map[string]any{
			"job_name":       job + "-" + target.Instance,
			"static_configs": []map[string]any{{"targets": []string{target.Address}, "labels": map[string]string{"job": job, "instance": target.Instance}}},
		}
		if target.CA != "" {
			scrape["scheme"] = "https"
			scrape["tls_config"] = map[string]any{"ca_file": target.CA, "cert_file": target.Cert, "key_file": target.Key}
		}
		scrapes = append(scrapes, scrape)
	}
	config, err := yaml.Marshal(map[string]any{
		"global":         map[string]any{"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
		"rule_files":     []string{rulesFile},
		"scrape_configs": scrapes,
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.Dir, rulesFile), rules, 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.Dir, configFile), config, 0o600)
}

// freeAddress is a port of 127.0.0.1 that was free a moment ago.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
