// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"container/list"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-watchcache/watchcache/cacher"
)

const (
	// maxVariants bounds the chunks at one place, e.g. of a namespace and of a page.
	maxVariants = 4
	// protected is the number of lists after its last use for which a chunk can't be evicted.
	// Otherwise, large lists would evict each other's chunks before their use.
	protected = 8
	// maxSeen bounds the remembered places requested by only one list.
	maxSeen = 1 << 16
	// agingPeriod is the interval at which Age drops chunks unused since the last one.
	agingPeriod = 10 * time.Minute
	// maxExamined bounds the chunks examined by evict.
	maxExamined = 64
)

// Store keeps the chunks of one cache. Its methods are safe for concurrent use.
type Store struct {
	encoder  *Encoder
	resource schema.GroupResource
	// limit is the maximum of bytes. If negative, nothing is kept.
	limit, bytes atomic.Int64
	// lists counts lists, and watches with initial events.
	lists   atomic.Int64
	formats sync.Map // of events and custom resources, by formatID

	mu struct {
		sync.RWMutex
		chunks map[place][]*chunk // newest first
		making map[place]*making  // chunks of initial events
		queue  *list.List         // of *chunk, roughly least recently used first
		// seen and before hold what lists requested, in two generations.
		seen, before map[uint64]struct{}
		// mark is the count of lists at the last aging, at time aged.
		mark int64
		aged time.Duration
	}
}

// NewStore implements cacher.Encoder. The Store keeps nothing until SetLimit.
func (l *Encoder) NewStore(resource schema.GroupResource) cacher.EncodingStore {
	return l.newStore(resource)
}

func (l *Encoder) newStore(resource schema.GroupResource) *Store {
	s := &Store{encoder: l, resource: resource}
	s.mu.making = map[place]*making{}
	s.clear()
	return s
}

// SetLimit implements cacher.EncodingStore.
func (s *Store) SetLimit(bytes int64) {
	s.limit.Store(bytes)
	if s.over() {
		s.shrink()
	}
}

func (s *Store) off() bool { return s.limit.Load() < 0 }

func (s *Store) over() bool { return s.bytes.Load() > s.limit.Load() }

// Clear drops everything. Call it when the cache replaces its elements.
func (s *Store) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
}

func (s *Store) clear() {
	s.bytes.Store(0)
	for _, variants := range s.mu.chunks {
		for _, c := range variants {
			c.queued = nil
		}
	}
	s.mu.chunks, s.mu.queue = map[place][]*chunk{}, list.New()
	s.mu.seen, s.mu.before = map[uint64]struct{}{}, nil
}

// lookUp finds the chunks of a list's parts, and earlier chunks at the same places. A missing chunk
// is worth keeping if it has much in common with the earlier one, a list requested it before, or
// several lists had nothing in common with the earlier one. Lists that change nearly completely
// each time are not worth keeping.
func (s *Store) lookUp(f *format, parts []part) {
	s.lists.Add(1)
	s.mu.RLock()
	missing := false
	for i := range parts {
		p := &parts[i]
		p.chunk, p.previous = s.find(place{f, p.elements[0].Key}, p.ids)
		p.keep = p.chunk != nil
		missing = missing || !p.keep
	}
	s.mu.RUnlock()
	if missing {
		for i := range parts {
			if p := &parts[i]; p.chunk == nil {
				p.compare(p.previous)
			}
		}
		s.admit(f, parts)
	}
}

// find returns the chunk of these elements at a place, or the latest other one as previous. Caller
// must hold mu.
func (s *Store) find(at place, ids []identity) (c, previous *chunk) {
	variants := s.mu.chunks[at]
	for _, c := range variants {
		if slices.Equal(c.ids, ids) {
			c.used.Store(s.lists.Load())
			c.useful.Store(true)
			return c, nil
		}
	}
	if len(variants) > 0 {
		previous = variants[0]
	}
	return nil, previous
}

func (s *Store) admit(f *format, parts []part) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range parts {
		p := &parts[i]
		if p.chunk != nil {
			continue
		}
		if p.previous != nil && !p.isOther(f.syntax) {
			p.previous.useful.Store(true)
			p.keep = true
			continue
		}
		id := p.ids[0].key ^ f.seed
		if p.previous != nil {
			id = p.hash() ^ f.seed
		}
		_, lately := s.mu.seen[id]
		_, before := s.mu.before[id]
		if !lately {
			s.mu.seen[id] = struct{}{}
		}
		p.keep = lately || before
		if p.previous != nil && !p.keep {
			if p.lacks <= len(p.ids)/3 {
				p.previous.useful.Store(true)
			}
			p.previous.misses++
			p.keep = p.previous.misses >= p.previous.patience
		}
	}
	if len(s.mu.seen) > maxSeen {
		s.mu.seen, s.mu.before = map[uint64]struct{}{}, s.mu.seen
	}
}

// keep keeps chunks worth keeping, and reports whether there was room for all.
func (s *Store) keep(made []*part) bool {
	room := true
	s.mu.Lock()
	for _, p := range made {
		if p.keep {
			p.keep = s.put(p.chunk, content{})
			room = room && p.keep
		}
	}
	s.mu.Unlock()
	return room
}

// complete adds a form to a kept chunk.
func (s *Store) complete(c *chunk, more content) {
	s.mu.Lock()
	if c.queued != nil {
		s.put(c, more)
	}
	s.mu.Unlock()
}

// put keeps a chunk with additional forms, unless an equal one is kept, and reports whether there
// was room. It omits plain bytes if there is only room for compressed ones, or if neither a list
// nor a change used them recently. Caller must hold mu.
func (s *Store) put(c *chunk, more content) bool {
	if c.queued != nil {
		s.drop(c)
	}
	variants := s.mu.chunks[c.at]
	for _, other := range variants {
		if slices.Equal(other.ids, c.ids) {
			return true // another list was faster
		}
	}
	for i := len(variants) - 1; i >= 0; i-- {
		if other := variants[i]; sameKeys(other.ids, c.ids) || i == maxVariants-1 {
			s.drop(other)
		}
	}
	has := c.content.Load().with(more)
	if has.deflated != nil && !c.changes && c.usedPlain.Load() <= s.lists.Load()-protected {
		has.plain = nil
	}
	room := s.makeRoom(c.size(&has), has.plain == nil)
	if !room && has.rows != nil {
		has.rows = nil
		room = s.makeRoom(c.size(&has), has.plain == nil)
	}
	if !room && has.deflated != nil {
		has.plain = nil
		room = s.makeRoom(c.size(&has), true)
	}
	c.content.Store(&has)
	if !room {
		return false
	}
	c.used.Store(s.lists.Load())
	c.queued = s.mu.queue.PushBack(c)
	s.mu.chunks[c.at] = append([]*chunk{c}, s.mu.chunks[c.at]...)
	s.bytes.Add(c.size(&has))
	return true
}

func (s *Store) usedPlain(c *chunk) { c.usedPlain.Store(s.lists.Load()) }

// makeRoom drops what recent lists did not use. For a compressed form it also drops plain bytes of
// compressed chunks, so that all chunks of a list can be kept in some form, to avoid encoding.
func (s *Store) makeRoom(bytes int64, compressed bool) bool {
	for unused := s.lists.Load() - protected; s.bytes.Load()+bytes > s.limit.Load(); {
		if !s.evict(unused, unused) && (!compressed || !s.evict(unused, math.MaxInt64)) {
			return false
		}
	}
	return true
}

// evict drops a chunk unused since the list count after, or the plain bytes of a compressed chunk
// unwritten since plainAfter. It returns false if it drops nothing. It examines at most maxExamined
// chunks, and continues there on the next call, so that the time for an oversized list is
// proportional to its length.
func (s *Store) evict(after, plainAfter int64) bool {
	for range min(s.mu.queue.Len(), maxExamined) {
		c := s.mu.queue.Front().Value.(*chunk)
		has := c.content.Load()
		switch {
		case c.used.Load() <= after:
			s.drop(c)
			return true
		case has.plain != nil && has.deflated != nil && c.usedPlain.Load() <= plainAfter:
			s.bytes.Add(-int64(cap(has.plain)))
			c.content.Store(&content{deflated: has.deflated, rows: has.rows})
			return true
		}
		s.mu.queue.MoveToBack(c.queued)
	}
	return false
}

func (s *Store) drop(c *chunk) {
	s.mu.queue.Remove(c.queued)
	c.queued = nil
	s.bytes.Add(-c.size(c.content.Load()))
	variants := slices.DeleteFunc(slices.Clone(s.mu.chunks[c.at]), func(other *chunk) bool { return other == c })
	if len(variants) == 0 {
		delete(s.mu.chunks, c.at)
		return
	}
	s.mu.chunks[c.at] = variants
}

func (s *Store) shrink() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for unused := s.lists.Load() - protected; s.over(); {
		if !s.evict(unused, unused) && !s.evict(unused, math.MaxInt64) && !s.evict(math.MaxInt64, math.MaxInt64) {
			return
		}
	}
}

// Bytes returns the size of the chunks.
func (s *Store) Bytes() int64 { return s.bytes.Load() }

// Age drops chunks unused for ten minutes or more. Call it periodically, with a monotonic time.
func (s *Store) Age(now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now < s.mu.aged+agingPeriod {
		return
	}
	oldest := s.mu.mark
	s.mu.aged, s.mu.mark = now, s.lists.Load()
	for e := s.mu.queue.Front(); e != nil; {
		c := e.Value.(*chunk)
		e = e.Next()
		if c.used.Load() <= oldest {
			s.drop(c)
		}
	}
	s.mu.seen, s.mu.before = map[uint64]struct{}{}, s.mu.seen
}
