// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"strconv"
	"testing"
	"testing/synctest"

	testify "github.com/stretchr/testify/assert" // the package has a function assert
)

// A version that is made of more events than are read at a time has none that came after the
// snapshot that it is made of.
func TestEarlierVersionBesideChanges(t *testing.T) {
	s := New(Config{WindowBytes: 1 << 40})
	s.Replace(nil, 1)
	rv := uint64(1)
	add := func(n int) {
		for range n {
			rv++
			_, err := s.Apply(Change{Type: Added, Element: &Element{Key: strconv.FormatUint(rv, 10), RV: rv}, RV: rv, Whole: true})
			testify.NoError(t, err)
		}
	}
	add(overlayBatch + 100)
	newest := s.Latest()
	add(1000)
	version, err := newest.earlier(5, newest.next-overlayBatch-96, s.Since, nil)
	testify.NoError(t, err)
	testify.Equal(t, 4, version.Len())
}

// If the reader that makes a version gives up or panics, one of the readers
// that wait for the version makes it.
func TestMakingIsTakenOver(t *testing.T) {
	for name, leave := range map[string]func() error{
		"stopped":  func() error { return ErrStopped },
		"panicked": func() error { panic("for the test") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var kept keptSnapshots
				want := new(Snapshot)
				leaves := make(chan struct{})
				go func() {
					defer func() { _ = recover() }()
					_, err := kept.get(5, 0, nil, func() (*Snapshot, error) { <-leaves; return nil, leave() })
					testify.ErrorIs(t, err, ErrStopped, "the reader that has gone")
				}()
				synctest.Wait()
				made := 0
				for range 3 {
					go func() {
						got, err := kept.get(5, 0, nil, func() (*Snapshot, error) { made++; return want, nil })
						testify.NoError(t, err, "a reader that has waited")
						testify.Same(t, want, got, "a reader that has waited")
					}()
				}
				gone := make(chan struct{})
				close(gone)
				_, err := kept.get(5, 0, gone, nil)
				testify.ErrorIs(t, err, ErrStopped, "one that goes while it waits")
				synctest.Wait()
				close(leaves)
				synctest.Wait()
				testify.Equal(t, 1, made, "how often the snapshot was made by those who waited")
			})
		})
	}
}
