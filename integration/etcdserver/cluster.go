// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/kube-watchcache/watchcache/integration/internal/proxy"
)

// quota is how large the database of a cluster's member may become, in bytes.
const quota = 64 << 20

// Cluster is several etcd members, each a process with a proxy before its peer
// URL and one before its client URL. Its methods, and those of its members, are
// for one goroutine at a time, but for Endpoints, Direct and the proxies.
type Cluster struct {
	members []*Member
}

// Member is one of a Cluster.
type Member struct {
	cluster *Cluster
	index   int
	process *process
	// client and peer are what the member itself listens on, without proxy.
	client, peer string
	// clients is before the client URL, peers before the peer URL.
	clients, peers *proxy.Proxy
	// id is etcd's name for the member, as members send it to each other.
	id      uint64
	exited  <-chan struct{}
	running bool
}

// StartCluster starts a cluster of members that keep their data below dir, and
// returns when all of them serve. The cluster ends with tb. Members run as
// processes, whatever ETCD_MODE says: only those have proxies between them.
func StartCluster(tb testing.TB, members int, dir string) *Cluster {
	tb.Helper()
	b, err := etcdBinary()
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := newCluster(ctx, b, members, dir)
	if err != nil {
		tb.Fatalf("etcd cluster: %v", err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			for _, m := range c.members {
				tb.Logf("the end of the output of etcd member %d:\n%s", m.index, m.process.output(context.Background()))
			}
		}
		if err := c.close(); err != nil {
			tb.Errorf("etcd cluster: %v", err)
		}
	})
	tb.Logf("etcd: %d processes (compiled from %s, %s)", members, etcdPackage, b.hash[:12])
	return c
}

// newCluster starts a cluster on free ports. Somebody else may take one between
// the look and the use.
func newCluster(ctx context.Context, b binary, members int, dir string) (*Cluster, error) {
	const tries = 5
	for try := 1; ; try++ {
		c, err := newClusterOnce(ctx, b, members, filepath.Join(dir, strconv.Itoa(try)))
		if err == nil {
			return c, nil
		}
		if try == tries || !portTaken(err) {
			return nil, err
		}
	}
}

func newClusterOnce(ctx context.Context, b binary, members int, dir string) (_ *Cluster, err error) {
	c := &Cluster{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	var peers []string
	for i := range members {
		m, err := newMember(c, i)
		if err != nil {
			return nil, err
		}
		c.members = append(c.members, m)
		peers = append(peers, fmt.Sprintf("m%d=http://%s", i, m.peers.Address()))
	}
	for _, m := range c.members {
		data := filepath.Join(dir, fmt.Sprintf("member-%d", m.index))
		m.process = &process{path: b.path, data: data, args: []string{
			fmt.Sprintf("--name=m%d", m.index),
			"--data-dir=" + data,
			"--listen-client-urls=" + m.client,
			"--advertise-client-urls=" + m.client,
			"--listen-peer-urls=" + m.peer,
			"--initial-advertise-peer-urls=http://" + m.peers.Address(),
			"--initial-cluster=" + strings.Join(peers, ","),
			"--log-level=error",
			"--unsafe-no-fsync",
			fmt.Sprintf("--quota-backend-bytes=%d", quota),
		}}
	}
	if err := c.StartAll(ctx); err != nil {
		return nil, err
	}
	return c, c.identify(ctx)
}

func newMember(c *Cluster, index int) (*Member, error) {
	m := &Member{cluster: c, index: index}
	for url, p := range map[*string]**proxy.Proxy{&m.client: &m.clients, &m.peer: &m.peers} {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		address := fmt.Sprintf("127.0.0.1:%d", port)
		*url = "http://" + address
		// The name by which etcd's members call each other.
		if *p, err = proxy.Listen(address, proxy.Header("X-Server-From")); err != nil {
			return nil, err
		}
	}
	return m, nil
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

// ReplaceData stops all members, calls change for the data folder of each, and
// starts them again on what is there then.
func (c *Cluster) ReplaceData(ctx context.Context, change func(data string) error) error {
	for _, m := range c.members {
		if err := m.Stop(ctx); err != nil {
			return err
		}
	}
	for _, m := range c.members {
		if err := change(m.Data()); err != nil {
			return err
		}
	}
	return c.StartAll(ctx)
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
		if m.process != nil {
			errs = append(errs, m.process.close(context.Background()))
		}
		for _, p := range []*proxy.Proxy{m.clients, m.peers} {
			if p != nil {
				errs = append(errs, p.Close())
			}
		}
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
