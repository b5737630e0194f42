// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kube-watchcache/watchcache/integration/internal/child"
	"github.com/kube-watchcache/watchcache/integration/internal/slowdisk"
)

// keeper is the first process of a member's container. The test copies it there, so
// that an image that somebody else has built needs none.
var keeper = child.Program{Variable: "WATCHCACHE_KEEPER_BINARY", Compile: func() (string, error) {
	return buildStatic("keeper", "github.com/kube-watchcache/watchcache/integration/etcdserver/keeper")
}}

// In a member's container: where its data is, which is a volume, and the ports.
const (
	containerData = "/etcd-data"
	keeperPath    = "/keeper"
	clientPort    = "2379"
	peerPort      = "2380"
	keeperPort    = "2390"
)

// outside is the network through which the machine that runs the engine talks to a
// container, and from which it publishes ports.
const outside = "bridge"

// memberContainer is a member that runs in a container. Members talk to each other
// through a network of their own, and to their clients through another.
type memberContainer struct {
	*container
	member  *Member
	network string
	// data is the folder of the member's data in the container.
	data string
	// control is the port of 127.0.0.1 at which the keeper is.
	control int
	args    []string
	// without are the networks that the container is cut off from.
	without map[string]bool
}

var networks atomic.Int64

// inContainers makes the nodes of the members and the network between them.
func (c *Cluster) inContainers(ctx context.Context, cfg ClusterConfig) error {
	if err := reapOnce(); err != nil {
		return fmt.Errorf("leftovers of dead runs: %w", err)
	}
	image := os.Getenv(imageVariable)
	if image == "" {
		var err error
		if image, err = etcdImage(); err != nil {
			return err
		}
	}
	c.about = "image " + image
	network := fmt.Sprintf("watchcache-etcd-%d-%d", os.Getpid(), networks.Add(1))
	labels, err := ownLabels()
	if err != nil {
		return err
	}
	// Internal: nothing is published from it, so that a member that is cut off from
	// its clients is not reached through it.
	if _, err := docker(ctx, append(append([]string{"network", "create", "--internal"}, labels...), network)...); err != nil {
		return err
	}
	c.end = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := docker(ctx, "network", "rm", network)
		return err
	}
	names := make([]string, len(c.members))
	for i := range c.members {
		names[i] = fmt.Sprintf("m%d=http://m%d:%s", i, i, peerPort)
	}
	for i, m := range c.members {
		n := &memberContainer{container: &container{image: image}, member: m, network: network, without: map[string]bool{}}
		m.node = n
		n.data = fmt.Sprintf("%s/member-%d", containerData, i)
		if n.port, err = strconv.Atoi(m.client[strings.LastIndex(m.client, ":")+1:]); err != nil {
			return err
		}
		if n.control, err = freePort(); err != nil {
			return err
		}
		n.args = memberArguments(i, n.data, "http://0.0.0.0:"+clientPort, m.client,
			"http://0.0.0.0:"+peerPort, fmt.Sprintf("http://m%d:%s", i, peerPort), strings.Join(names, ","))
		if !cfg.SlowDisk {
			n.args = append(n.args, noSync)
		}
		if err := n.create(ctx); err != nil {
			return err
		}
	}
	return nil
}

// ownLabels are the arguments by which reap finds what a dead run has left.
func ownLabels() ([]string, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	return []string{"--label", labelOurs, "--label", labelHost + "=" + host, "--label", fmt.Sprintf("%s=%d", labelPID, os.Getpid())}, nil
}

// create makes a container with an empty volume.
func (n *memberContainer) create(ctx context.Context) error {
	path, err := keeper.Path()
	if err != nil {
		return err
	}
	labels, err := ownLabels()
	if err != nil {
		return err
	}
	args := append([]string{"create", "--entrypoint", keeperPath, "--network", outside, "--volume", containerData}, labels...)
	for port, at := range map[string]int{clientPort: n.port, keeperPort: n.control} {
		args = append(args, "--publish", fmt.Sprintf("127.0.0.1:%d:%s", at, port))
	}
	args = append(args, n.image, "0.0.0.0:"+keeperPort)
	if n.id, err = docker(ctx, append(args, n.args...)...); err != nil {
		return err
	}
	if _, err := docker(ctx, "cp", path, n.id+":"+keeperPath); err != nil {
		return err
	}
	return n.attach(ctx, n.network)
}

func (n *memberContainer) attach(ctx context.Context, network string) error {
	args := []string{"network", "connect"}
	if network == n.network {
		args = append(args, "--alias", fmt.Sprintf("m%d", n.member.index))
	}
	_, err := docker(ctx, append(args, network, n.id)...)
	return err
}

func (n *memberContainer) kill(ctx context.Context) error {
	if _, err := docker(ctx, "kill", n.id); err != nil && !strings.Contains(err.Error(), "is not running") {
		return err
	}
	<-n.exited
	return nil
}

// cutOff takes the container off networks.
func (n *memberContainer) cutOff(ctx context.Context, networks ...string) error {
	for _, network := range networks {
		if n.without[network] {
			continue
		}
		if _, err := docker(ctx, "network", "disconnect", network, n.id); err != nil {
			return err
		}
		n.without[network] = true
	}
	return nil
}

// putBack undoes cutOff.
func (n *memberContainer) putBack(ctx context.Context, networks ...string) error {
	for _, network := range networks {
		if !n.without[network] {
			continue
		}
		if err := n.attach(ctx, network); err != nil {
			return err
		}
		delete(n.without, network)
	}
	return nil
}

func (n *memberContainer) isolate(ctx context.Context) error { return n.cutOff(ctx, n.network) }
func (n *memberContainer) join(ctx context.Context) error    { return n.putBack(ctx, n.network) }

func (n *memberContainer) disconnect(ctx context.Context) error {
	return n.cutOff(ctx, outside, n.network)
}

func (n *memberContainer) connect(ctx context.Context) error {
	return n.putBack(ctx, outside, n.network)
}

func (n *memberContainer) slow(ctx context.Context, each time.Duration) error {
	_, err := n.ask(ctx, http.MethodPut, "?each="+each.String())
	return err
}

func (n *memberContainer) slowed(ctx context.Context) (int64, error) {
	answer, err := n.ask(ctx, http.MethodGet, "")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(answer, 10, 64)
}

// ask sends a request to the keeper.
func (n *memberContainer) ask(ctx context.Context, method, query string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://127.0.0.1:%d/%s", n.control, query), nil)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	answer := strings.TrimSpace(string(body))
	switch {
	case err != nil:
		return "", err
	case response.StatusCode == http.StatusNotImplemented:
		return "", fmt.Errorf("%w: %s", slowdisk.ErrUnavailable, answer)
	case response.StatusCode != http.StatusOK:
		return "", fmt.Errorf("%v: keeper: %s: %s", n.member, response.Status, answer)
	}
	return answer, nil
}
