// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"math/rand/v2"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/shared"
)

// stores are those that use the cache, as an API server has one for each version that
// it serves of a resource. The first one opens the cache, and the last one that leaves
// closes it (internal/shared, as in cacher.Decorator).
type stores struct {
	caches shared.Map[string, *cacher.Cacher]
	leave  []func()
}

// enter makes one store more a user of the cache, which open opens if there is none.
func (s *stores) enter(open func() (*cacher.Cacher, error)) (*cacher.Cacher, error) {
	c, leave, err := s.caches.Use("pods", func() (*cacher.Cacher, func(), error) {
		c, err := open()
		if err != nil {
			return nil, nil, err
		}
		return c, c.Stop, nil
	})
	if err == nil {
		s.leave = append(s.leave, leave)
	}
	return c, err
}

// leaveOne has one of several stores end, and end once more, which makes no difference.
func (s *stores) leaveOne(i int) {
	if len(s.leave) < 2 {
		return
	}
	i %= len(s.leave)
	s.leave[i]()
	s.leave[i]()
	s.leave = append(s.leave[:i], s.leave[i+1:]...)
}

// leaveAll has all stores end.
func (s *stores) leaveAll() {
	for len(s.leave) > 1 {
		s.leaveOne(0)
	}
	for _, leave := range s.leave {
		leave()
	}
	s.leave = nil
}

// share has another store use the cache, which must be the one that there is.
func (d *driver) share() {
	if d.cacher == nil || d.stopped {
		return
	}
	c, err := d.stores.enter(func() (*cacher.Cacher, error) {
		d.fail("another store opens a cache of its own")
		return d.cacher, nil
	})
	if err != nil || c != d.cacher {
		d.fail("another store gets another cache, %v", err)
	}
}

// sharing puts operations of stores that come and leave into the schedule of every
// third seed, behind the first start. They are drawn by themselves: the others stay
// what they were.
func (g *generator) sharing(seed uint64) {
	if seed%3 != 0 {
		return
	}
	draw := rand.New(rand.NewPCG(seed, uint64(g.kind)+101))
	started := 0
	for g.out[started].Verb != "start" {
		started++
	}
	for range 2 + draw.IntN(5) {
		o := Operation{Verb: "share", Together: g.kind == Racing && draw.IntN(3) > 0}
		if draw.IntN(2) == 0 {
			o.Verb, o.N = "unshare", 1+draw.IntN(3)
		}
		i := started + 1 + draw.IntN(len(g.out)-started)
		g.out = append(g.out[:i], append([]Operation{o}, g.out[i:]...)...)
	}
}
