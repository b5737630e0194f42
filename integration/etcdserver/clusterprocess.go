// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kube-watchcache/watchcache/integration/internal/proxy"
	"github.com/kube-watchcache/watchcache/integration/internal/slowdisk"
)

// memberProcess is a member that runs as a process, with a proxy before its peer
// URL.
type memberProcess struct {
	*process
	member *Member
	all    []*memberProcess
	// peer is the peer URL of the member itself, and peers is before it.
	peer  string
	peers *proxy.Proxy
}

// asProcesses makes the nodes of the members.
func (c *Cluster) asProcesses(cfg ClusterConfig) error {
	b, err := etcdBinary()
	if err != nil {
		return err
	}
	c.about = "compiled from " + etcdPackage + ", " + b.hash[:12]
	all := make([]*memberProcess, len(c.members))
	names := make([]string, len(c.members))
	for i, m := range c.members {
		n := &memberProcess{member: m, all: all}
		// The name by which etcd's members call each other.
		if n.peer, n.peers, err = listenBefore(proxy.Header("X-Server-From")); err != nil {
			return err
		}
		m.node, all[i] = n, n
		names[i] = fmt.Sprintf("m%d=http://%s", i, n.peers.Address())
	}
	for i, n := range all {
		data := filepath.Join(cfg.Dir, fmt.Sprintf("member-%d", i))
		n.process = &process{
			path: b.path, data: data, slowable: cfg.SlowDisk,
			args: memberArguments(i, data, n.member.client, n.member.client, n.peer, "http://"+n.peers.Address(), strings.Join(names, ",")),
		}
		if !cfg.SlowDisk {
			n.args = append(n.args, noSync)
		}
	}
	return nil
}

// memberArguments are etcd's arguments for a member that keeps its data in a folder,
// listens for clients and for peers, and tells them its URLs.
func memberArguments(index int, data, listen, advertise, listenPeers, advertisePeers, cluster string) []string {
	return []string{
		fmt.Sprintf("--name=m%d", index),
		"--data-dir=" + data,
		"--listen-client-urls=" + listen,
		"--advertise-client-urls=" + advertise,
		"--listen-peer-urls=" + listenPeers,
		"--initial-advertise-peer-urls=" + advertisePeers,
		"--initial-cluster=" + cluster,
		"--log-level=error",
		fmt.Sprintf("--quota-backend-bytes=%d", quota),
	}
}

func (n *memberProcess) kill(context.Context) error { return n.process.kill() }

func (n *memberProcess) isolate(context.Context) error {
	name := strconv.FormatUint(n.member.id, 16)
	n.peers.Refuse()
	for _, other := range n.all {
		if other != n {
			other.peers.Bar(name)
		}
	}
	return nil
}

func (n *memberProcess) join(context.Context) error {
	for _, each := range n.all {
		each.peers.Heal()
	}
	return nil
}

func (n *memberProcess) disconnect(ctx context.Context) error {
	n.member.clients.Refuse()
	return n.isolate(ctx)
}

func (n *memberProcess) connect(ctx context.Context) error {
	n.member.clients.Heal()
	return n.join(ctx)
}

func (n *memberProcess) slow(_ context.Context, each time.Duration) error {
	if n.disk == nil {
		return n.unslowable()
	}
	n.disk.Delay(each)
	return nil
}

func (n *memberProcess) slowed(context.Context) (int64, error) {
	if n.disk == nil {
		return 0, n.unslowable()
	}
	return n.disk.Delayed(), nil
}

// unslowable says why fsync can't be made slow.
func (n *memberProcess) unslowable() error {
	if n.undiskable != nil {
		return n.undiskable
	}
	return fmt.Errorf("%w: the cluster was started without", slowdisk.ErrUnavailable)
}

func (n *memberProcess) close(ctx context.Context) error {
	var err error
	if n.process != nil {
		err = n.process.close(ctx)
	}
	if n.peers != nil {
		err = errors.Join(err, n.peers.Close())
	}
	return err
}
