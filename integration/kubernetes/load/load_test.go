// SPDX-License-Identifier: Apache-2.0

//go:build unix

package load

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/integration/kubernetes/nodes"
)

func valid() Config {
	return Config{
		Implementations: []string{"watchcache", "shipped"}, Rounds: 1, Nodes: 1, Pods: 4, Watches: nodes.EachNode,
		Deployments: 2, Rolled: 2, AtOnce: 1, Steady: time.Second, Patience: time.Minute,
	}
}

func TestValidate(t *testing.T) {
	c := valid()
	require.NoError(t, c.Validate())
	for want, change := range map[string]func(*Config){
		"--nodes=0: must be positive":               func(c *Config) { c.Nodes = 0 },
		"--pods=-1: must be positive":               func(c *Config) { c.Pods = -1 },
		"--rounds=0: must be positive":              func(c *Config) { c.Rounds = 0 },
		"--at-once=0: must be positive":             func(c *Config) { c.AtOnce = 0 },
		"each of 2 deployments needs":               func(c *Config) { c.Pods = 1 },
		"there are 2 deployments":                   func(c *Config) { c.Rolled = 3 },
		"--implementations: names none":             func(c *Config) { c.Implementations = nil },
		`--implementations: "theirs" is not one of`: func(c *Config) { c.Implementations = []string{"theirs"} },
		"--steady=0s, --patience=1m0s: ":            func(c *Config) { c.Steady = 0 },
	} {
		c := valid()
		change(&c)
		require.ErrorContains(t, c.Validate(), want)
	}
}

// A list is a LIST or a watch with initial events, once, and what informers list is told
// from what nodes and clients list.
func TestAuditedRequests(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	phases := []Phase{
		{Name: "first", From: start, To: start.Add(time.Minute), Figures: map[string]float64{}},
		{Name: "second", From: start.Add(time.Minute), To: start.Add(2 * time.Minute), Figures: map[string]float64{}},
	}
	line := func(stage, verb, uri, user, code, at string) string {
		return `{"stage":"` + stage + `","verb":"` + verb + `","requestURI":"` + uri + `","user":{"username":"` + user + `"},"responseStatus":{"code":` + code + `},"stageTimestamp":"2026-01-01T` + at + `Z"}` + "\n"
	}
	path := filepath.Join(t.TempDir(), "audit")
	require.NoError(t, os.WriteFile(path, []byte(
		line("ResponseComplete", "list", "/api/v1/pods", "system:kube-scheduler", "200", "00:00:01.000000")+
			line("ResponseStarted", "watch", "/api/v1/pods?sendInitialEvents=true&watch=true", "system:serviceaccount:kube-system:job-controller", "200", "00:00:02.000000")+
			line("ResponseComplete", "watch", "/api/v1/pods?sendInitialEvents=true&watch=true", "system:serviceaccount:kube-system:job-controller", "200", "00:00:03.000000")+
			line("ResponseStarted", "watch", "/api/v1/pods?watch=true&resourceVersion=7", "system:kube-controller-manager", "200", "00:00:04.000000")+
			line("ResponseComplete", "list", "/api/v1/pods", "admin", "200", "00:00:05.000000")+
			line("ResponseComplete", "watch", "/api/v1/pods?watch=true&resourceVersion=7", "fake-nodes", "410", "00:01:06.000000")+
			line("ResponseComplete", "list", "/api/v1/pods", "system:kube-controller-manager", "200", "00:01:07.000000")+
			line("ResponseComplete", "list", "/api/v1/pods", "system:kube-controller-manager", "200", "00:03:00.000000")), 0o600))
	require.NoError(t, addAudited(path, phases))
	require.Equal(t, map[string]float64{"informers lists": 2, "answers gone": 0}, phases[0].Figures)
	require.Equal(t, map[string]float64{"informers lists": 1, "answers gone": 1}, phases[1].Figures)

	require.NoError(t, os.WriteFile(path, []byte("{\n"), 0o600))
	require.ErrorContains(t, addAudited(path, phases), path)
}

func TestReport(t *testing.T) {
	phase := func(cpu, resident float64) []Phase {
		return []Phase{{Name: "steady", Figures: map[string]float64{"cpu": cpu, "resident": resident, "nodes gone": 0}}}
	}
	config := valid()
	config.Implementations = []string{"shipped", "watchcache"}
	r := Report{Config: config, Rounds: []Round{
		{Implementation: "watchcache", Phases: phase(1, 4e8)}, {Implementation: "shipped", Phases: phase(4, 5e8)},
		{Implementation: "watchcache", Phases: phase(2, 4e8)}, {Implementation: "shipped", Phases: phase(2, 5.5e8)},
	}}
	var b bytes.Buffer
	require.NoError(t, r.Write(&b))
	require.Equal(t, `| work | ours | shipped | ours / shipped |
|---|---|---|---|
| steady: CPU of the kube-apiserver | 1.5 s (1 s..2 s) | 3 s (2 s..4 s) | 0.50 |
| – resident memory of the kube-apiserver, at most | 400 MB | 525 MB (500 MB..550 MB) | 0.76 |
| – 410s that nodes were sent in watches | 0 | 0 | – |
`, b.String())
}

func TestQuantiles(t *testing.T) {
	p := Phase{Figures: map[string]float64{}}
	var all []time.Duration
	for i := range 200 {
		all = append(all, time.Duration(199-i)*time.Second)
	}
	p.quantiles("x", all)
	p.quantiles("y", nil)
	require.Equal(t, map[string]float64{"x, count": 200, "x, p50": 100, "x, p99": 198, "y, count": 0}, p.Figures)
}

// An observer notes each change once, in order.
func TestObserver(t *testing.T) {
	var o observer
	for _, written := range []string{"1000", "nothing", "2000", "1000", "2000", "3000"} {
		o.note(written)
	}
	require.Len(t, o.mu.heard, 3)
}

func TestGroup(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	broken := errors.New("broken")
	var g group
	g.run(cancel, func() error { return broken })
	g.run(cancel, func() error { <-ctx.Done(); return ctx.Err() })
	require.Equal(t, "broken", g.wait().Error())
	require.NoError(t, g.wait(), "an error is returned once")
}
