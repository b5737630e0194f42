// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// scenario is what happens in one namespace of a fixture, and all consumers that follow
// it, by both ways.
type scenario struct {
	fixture   *fixture
	namespace string
	start     int64 // etcd's revision before anything
	consumers []*consumer
	// writer is the step's; the server's address changes with a restart.
	writer *feed
	// past is all states that the devices have been in, up to the step's end.
	past map[string][]state
}

// TestConsumers lets every queue, store and lister follow one scenario of events. At the
// end of each step every one of them has to be what etcd is, byte for byte, and
// to have kept its own promises all along.
func TestConsumers(t *testing.T) {
	fx := newFixture(t)
	c := &scenario{fixture: fx, namespace: fx.newNamespace(t), start: fx.revision(t)}
	for _, via := range []transport{{name: "in process", inProcess: true}, {name: "over HTTPS"}} {
		for _, open := range consumers {
			f := feedOf(t, fx, via, c.namespace)
			p := open(t, f)
			p.name, p.source, p.example = via.name+"/"+p.name, f.source, via.example()
			c.consumers = append(c.consumers, p)
		}
	}
	for _, p := range c.consumers {
		awaitList(t, p)
	}
	for _, step := range []struct {
		name   string
		happen func(*scenario, *testing.T)
	}{
		{"creates", (*scenario).creates},
		{"updates", (*scenario).updates},
		{"deletions", (*scenario).deletions},
		{"relist", (*scenario).relists},
		{"the server restarts", (*scenario).restarts},
		{"the connections are cut", (*scenario).cuts},
	} {
		t.Run(step.name, func(t *testing.T) {
			c.writer = feedOf(t, fx, transport{}, c.namespace)
			step.happen(c, t)
			c.past = fx.history(t, c.namespace, c.start)
			for _, p := range c.consumers {
				t.Run(p.name, func(t *testing.T) { p.requireCurrent(t, c) })
			}
		})
		if t.Failed() {
			return
		}
	}
}

// wrote tells the consumers that care of a write's result.
func (c *scenario) wrote(d *fleetv1.Device) {
	for _, p := range c.consumers {
		if p.wrote != nil {
			p.wrote(d)
		}
	}
}

func (c *scenario) creates(t *testing.T) {
	for _, d := range c.writer.createMany(t, "x", 8) {
		c.wrote(d)
	}
	for i := range 8 {
		c.wrote(c.writer.label(t, nameOf(i), map[string]any{zone: fmt.Sprint("z", i%3), tags: "a.b"}))
	}
}

func (c *scenario) updates(t *testing.T) {
	for i := range 16 {
		c.wrote(c.writer.update(t, nameOf(i%8), fmt.Sprint("owner-", i)))
	}
	c.wrote(c.writer.label(t, nameOf(0), map[string]any{zone: "z9"}))
	c.wrote(c.writer.label(t, nameOf(1), map[string]any{zone: nil, tags: "b.c"}))
	c.wrote(c.writer.status(t, nameOf(2), fleetv1.DeviceReady))
}

// deletions deletes for good, and deletes and creates again.
func (c *scenario) deletions(t *testing.T) {
	c.writer.delete(t, nameOf(0))
	c.writer.delete(t, nameOf(1))
	c.wrote(c.writer.create(t, nameOf(1)))
	c.wrote(c.writer.create(t, "brief"))
	c.writer.delete(t, "brief")
}

// relists has everybody be away for longer than the window lasts.
func (c *scenario) relists(t *testing.T) {
	var away []detachable
	for _, p := range c.consumers {
		away = append(away, p.detachable)
	}
	relist(t, c.fixture, func() { c.change(t, "unseen") }, away...)
}

// restarts writes before the restart and after it. The clients' last
// resourceVersions are older than the window of the new server's cache.
func (c *scenario) restarts(t *testing.T) {
	c.change(t, "before")
	c.fixture.restartServer(t)
	c.writer = feedOf(t, c.fixture, transport{}, c.namespace)
	c.change(t, "after")
}

func (c *scenario) cuts(t *testing.T) {
	for _, p := range c.consumers {
		p.source.drop()
	}
	c.fixture.cut(t)
	c.change(t, "cut")
}

// change is a little of everything.
func (c *scenario) change(t *testing.T, name string) {
	t.Helper()
	c.wrote(c.writer.update(t, nameOf(1), name))
	c.wrote(c.writer.label(t, nameOf(2), map[string]any{zone: name}))
	c.writer.delete(t, nameOf(3))
	c.wrote(c.writer.create(t, nameOf(3)))
	c.wrote(c.writer.create(t, name))
	c.wrote(c.writer.create(t, "brief"))
	c.writer.delete(t, "brief")
}

func nameOf(i int) string { return fmt.Sprintf("x-%03d", i) }

// requireCurrent waits until the consumer has what etcd has, and asks for its promises.
func (p *consumer) requireCurrent(t *testing.T, c *scenario) {
	t.Helper()
	if p.store != nil {
		c.fixture.requireEqual(t, p.store, c.namespace)
		require.NotEmpty(t, p.store.ListKeys())
	}
	if p.check != nil {
		p.check(t, c)
	}
}
