// SPDX-License-Identifier: Apache-2.0

// Package shared keeps values in common use: opened by the first user, closed by the last.
package shared

import (
	"errors"
	"sync"
)

// Map has an open value for each key in use. The zero value is empty. Values are opened and closed
// without its lock.
type Map[K comparable, V any] struct {
	mu struct {
		sync.Mutex
		entries map[K]*entry[V]
	}
}

// entry is a value and its users. refs is guarded by Map.mu; the rest is immutable once open.
type entry[V any] struct {
	refs  int
	open  sync.Once
	value V
	close func()
	err   error
	// opened is true if Open may return value. Guarded by Map.mu.
	opened bool
}

var errPanicked = errors.New("opening the shared value has panicked")

// Use returns the value of key, and an idempotent function that ends the use. One of several
// concurrent first users opens the value. If that fails they share the error, and the next user
// tries again. The last user closes the value. A user who arrives during the close opens another
// one.
func (m *Map[K, V]) Use(key K, open func() (value V, close func(), err error)) (V, func(), error) {
	e := m.enter(key)
	e.open.Do(func() {
		e.err = errPanicked
		e.value, e.close, e.err = open()
	})
	if e.err != nil {
		m.leave(key, e, true)
		var none V
		return none, nil, e.err
	}
	m.mu.Lock()
	e.opened = true
	m.mu.Unlock()
	return e.value, sync.OnceFunc(func() {
		if m.leave(key, e, false) {
			e.close()
		}
	}), nil
}

// Open returns the open values of some keys. The caller does not become a user: each value may be
// closed at any time.
func (m *Map[K, V]) Open(of func(K) bool) (values []V) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, e := range m.mu.entries {
		if e.opened && of(key) {
			values = append(values, e.value)
		}
	}
	return values
}

// Len returns the number of values open or being opened.
func (m *Map[K, V]) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.mu.entries)
}

func (m *Map[K, V]) enter(key K) *entry[V] {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.mu.entries[key]
	if !ok {
		if m.mu.entries == nil {
			m.mu.entries = map[K]*entry[V]{}
		}
		e = &entry[V]{}
		m.mu.entries[key] = e
	}
	e.refs++
	return e
}

// leave removes a user, and reports whether it was the last one. Later users don't receive a failed
// entry.
func (m *Map[K, V]) leave(key K, e *entry[V], failed bool) (last bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.refs--
	if (failed || e.refs == 0) && m.mu.entries[key] == e {
		delete(m.mu.entries, key)
	}
	return e.refs == 0
}
