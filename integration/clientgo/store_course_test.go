// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// course is what happens in one namespace of a world, and all pieces that follow
// it, by both ways.
type course struct {
	world     *world
	namespace string
	start     int64 // etcd's revision before anything
	pieces    []*piece
	// writer is the chapter's; the server's address changes with a restart.
	writer *feed
	// past is all states that the devices have been in, up to the chapter's end.
	past map[string][]state
}

// TestCourse lets every queue, store and lister follow one course of events. At the
// end of each chapter every one of them has to be what etcd is, byte for byte, and
// to have kept its own promises all along.
func TestCourse(t *testing.T) {
	w := newWorld(t)
	c := &course{world: w, namespace: w.newNamespace(t), start: w.revision(t)}
	for _, via := range []way{{name: "in process", inProcess: true}, {name: "over HTTPS"}} {
		for _, open := range pieces {
			f := feedOf(t, w, via, c.namespace)
			p := open(t, f)
			p.name, p.source, p.example = via.name+"/"+p.name, f.source, via.example()
			c.pieces = append(c.pieces, p)
		}
	}
	for _, p := range c.pieces {
		awaitList(t, p)
	}
	for _, chapter := range []struct {
		name   string
		happen func(*course, *testing.T)
	}{
		{"creates", (*course).creates},
		{"updates", (*course).updates},
		{"deletions", (*course).deletions},
		{"relist", (*course).relists},
		{"the server restarts", (*course).restarts},
		{"the connections are cut", (*course).cuts},
	} {
		t.Run(chapter.name, func(t *testing.T) {
			c.writer = feedOf(t, w, way{}, c.namespace)
			chapter.happen(c, t)
			c.past = w.history(t, c.namespace, c.start)
			for _, p := range c.pieces {
				t.Run(p.name, func(t *testing.T) { p.requireKept(t, c) })
			}
		})
		if t.Failed() {
			return
		}
	}
}

// wrote tells the pieces that care of a write's result.
func (c *course) wrote(d *fleetv1.Device) {
	for _, p := range c.pieces {
		if p.wrote != nil {
			p.wrote(d)
		}
	}
}

func (c *course) creates(t *testing.T) {
	for _, d := range c.writer.createMany(t, "x", 8) {
		c.wrote(d)
	}
	for i := range 8 {
		c.wrote(c.writer.label(t, nameOf(i), map[string]any{zone: fmt.Sprint("z", i%3), tags: "a.b"}))
	}
}

func (c *course) updates(t *testing.T) {
	for i := range 16 {
		c.wrote(c.writer.update(t, nameOf(i%8), fmt.Sprint("owner-", i)))
	}
	c.wrote(c.writer.label(t, nameOf(0), map[string]any{zone: "z9"}))
	c.wrote(c.writer.label(t, nameOf(1), map[string]any{zone: nil, tags: "b.c"}))
	c.wrote(c.writer.status(t, nameOf(2), fleetv1.DeviceReady))
}

// deletions deletes for good, and deletes and creates anew.
func (c *course) deletions(t *testing.T) {
	c.writer.delete(t, nameOf(0))
	c.writer.delete(t, nameOf(1))
	c.wrote(c.writer.create(t, nameOf(1)))
	c.wrote(c.writer.create(t, "brief"))
	c.writer.delete(t, "brief")
}

// relists has everybody be away for longer than the window lasts.
func (c *course) relists(t *testing.T) {
	var away []absent
	for _, p := range c.pieces {
		away = append(away, p.absent)
	}
	relist(t, c.world, func() { c.change(t, "unseen") }, away...)
}

// restarts writes before the restart and after it. What the clients have seen is
// older than all that the new server's cache remembers.
func (c *course) restarts(t *testing.T) {
	c.change(t, "before")
	c.world.restartServer(t)
	c.writer = feedOf(t, c.world, way{}, c.namespace)
	c.change(t, "after")
}

func (c *course) cuts(t *testing.T) {
	for _, p := range c.pieces {
		p.source.drop()
	}
	c.world.cut(t)
	c.change(t, "cut")
}

// change is a little of everything.
func (c *course) change(t *testing.T, name string) {
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

// requireKept waits until the piece has what etcd has, and asks for its promises.
func (p *piece) requireKept(t *testing.T, c *course) {
	t.Helper()
	if p.store != nil {
		c.world.requireEqual(t, p.store, c.namespace)
		require.NotEmpty(t, p.store.ListKeys())
	}
	if p.kept != nil {
		p.kept(t, c)
	}
}
