// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/kube-watchcache/watchcache/integration/internal/proxy"
)

// quota is how large the database of a cluster's member may become, in bytes.
const quota = 64 << 20

// Cluster is several etcd members, each with a proxy before its client URL. Its
// methods, and those of its members, are for one goroutine at a time, but for
// Endpoints, Direct, Mode, String and the proxies.
type Cluster struct {
	mode    Mode
	about   string
	members []*Member
	// end removes what the members share, after they have ended.
	end func() error
}

// ClusterConfig describes a cluster.
type ClusterConfig struct {
	// Members is how many there are.
	Members int
	// Dir is where processes keep their data; it must exist. Containers keep theirs
	// to themselves.
	Dir string
	// Mode says how members run: as a Container or as a Process. Empty: as ETCD_MODE
	// and ETCD_IMAGE say, or in containers where an engine answers.
	Mode Mode
	// SlowDisk makes Member.SlowDisk possible, where the kernel can do it.
	SlowDisk bool
}

// StartCluster starts a cluster of processes, whatever ETCD_MODE says, that keep
// their data below dir.
func StartCluster(tb testing.TB, members int, dir string) *Cluster {
	tb.Helper()
	return StartClusterOf(tb, ClusterConfig{Members: members, Dir: dir, Mode: Process})
}

// StartClusterOf starts a cluster, and returns when all of its members serve. The
// cluster ends with tb.
func StartClusterOf(tb testing.TB, cfg ClusterConfig) *Cluster {
	tb.Helper()
	mode, reason, err := chooseFor(context.Background(), cfg.Mode, os.Getenv)
	if err == nil && mode == Embedded {
		err = errors.New("members of a cluster are containers or processes, not embedded")
	}
	if err == nil {
		err = Prepare(mode)
	}
	if err == nil && mode == Container {
		_, err = keeper.Path()
	}
	if err != nil {
		tb.Fatalf("etcd cluster: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cfg.Mode = mode
	c, err := newCluster(ctx, cfg)
	if err != nil {
		tb.Fatalf("etcd cluster: %v", err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			for _, m := range c.members {
				tb.Logf("the end of the output of etcd member %d:\n%s", m.index, m.node.output(context.Background()))
			}
		}
		if err := c.close(); err != nil {
			tb.Errorf("etcd cluster: %v", err)
		}
	})
	c.about += "; " + reason
	tb.Log(c)
	return c
}

// newCluster starts a cluster on free ports. Somebody else may take one between
// the look and the use.
func newCluster(ctx context.Context, cfg ClusterConfig) (*Cluster, error) {
	const tries = 5
	for try := 1; ; try++ {
		once := cfg
		once.Dir = filepath.Join(cfg.Dir, strconv.Itoa(try))
		c, err := newClusterOnce(ctx, once)
		if err == nil {
			return c, nil
		}
		if try == tries || !portTaken(err) {
			return nil, err
		}
	}
}

func newClusterOnce(ctx context.Context, cfg ClusterConfig) (_ *Cluster, err error) {
	c := &Cluster{mode: cfg.Mode}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	for i := range cfg.Members {
		m := &Member{cluster: c, index: i}
		c.members = append(c.members, m)
		if m.client, m.clients, err = listenBefore(nil); err != nil {
			return nil, err
		}
	}
	switch cfg.Mode {
	case Container:
		err = c.inContainers(ctx, cfg)
	default:
		err = c.asProcesses(cfg)
	}
	if err != nil {
		return nil, err
	}
	if err := c.StartAll(ctx); err != nil {
		return nil, err
	}
	return c, c.identify(ctx)
}

// listenBefore gives a URL on a free port, and a proxy that leads there.
func listenBefore(source func([]byte) string) (url string, before *proxy.Proxy, err error) {
	port, err := freePort()
	if err != nil {
		return "", nil, err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	before, err = proxy.Listen(address, source)
	return "http://" + address, before, err
}

// Mode says how the members run: as a Container or as a Process.
func (c *Cluster) Mode() Mode { return c.mode }

// String says how the members run, and why so.
func (c *Cluster) String() string {
	return fmt.Sprintf("etcd: %d members, %s (%s)", len(c.members), c.mode, c.about)
}

// identify asks for the names of the members.
func (c *Cluster) identify(ctx context.Context) error {
	for _, m := range c.members {
		status, err := m.status(ctx)
		if err != nil {
			return err
		}
		m.id = status.Header.MemberId
	}
	return nil
}

// Endpoints gives the client URLs for clients that are to see faults: each leads
// through the proxy of a member. They stay the same over a restart.
func (c *Cluster) Endpoints() []string {
	var all []string
	for _, m := range c.members {
		all = append(all, "http://"+m.clients.Address())
	}
	return all
}

// Direct gives the client URLs of the members themselves, for the judges of what the clients saw.
func (c *Cluster) Direct() []string {
	var all []string
	for _, m := range c.members {
		all = append(all, m.client)
	}
	return all
}

// Member gives the member with the index, from 0.
func (c *Cluster) Member(index int) *Member { return c.members[index] }

// Members gives all members.
func (c *Cluster) Members() []*Member { return c.members }

// StartAll starts every member that does not run, and returns when all serve.
func (c *Cluster) StartAll(ctx context.Context) error {
	for _, m := range c.members {
		if err := m.Start(ctx); err != nil {
			return err
		}
	}
	for _, m := range c.members {
		if err := m.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Leader gives the leader, as the members that answer see it.
func (c *Cluster) Leader(ctx context.Context) (*Member, error) {
	var last error
	for _, asked := range c.members {
		status, err := asked.status(ctx)
		if err != nil {
			last = err
			continue
		}
		for _, m := range c.members {
			if m.id == status.Leader {
				return m, nil
			}
		}
		last = errors.New("etcd cluster: there is no leader")
	}
	return nil, last
}

// Lead makes the member the leader.
func (m *Member) Lead(ctx context.Context) error {
	leader, err := m.cluster.Leader(ctx)
	if err != nil || leader == m {
		return err
	}
	client, err := leader.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = client.MoveLeader(ctx, m.id)
	return err
}

func (c *Cluster) close() error {
	var errs []error
	for _, m := range c.members {
		if m.node != nil {
			errs = append(errs, m.node.close(context.Background()))
		}
		if m.clients != nil {
			errs = append(errs, m.clients.Close())
		}
	}
	if c.end != nil {
		errs = append(errs, c.end())
	}
	return errors.Join(errs...)
}

func (m *Member) dial() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{m.client}, Logger: zap.NewNop()})
}

func (m *Member) status(ctx context.Context) (*clientv3.StatusResponse, error) {
	client, err := m.dial()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	return client.Status(ctx, m.client)
}
