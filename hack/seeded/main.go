// SPDX-License-Identifier: Apache-2.0

// Command seeded writes what go's -overlay needs to compile a program whose bubbles
// of testing/synctest are scheduled by a seed: a Go runtime in which everything that
// is left to chance in a bubble, and every order of goroutines that may run, comes
// from one generator. The same seed then gives the same run, step by step, and
// another seed another one. Nothing of Go's own is written to.
//
//	go run ./hack/seeded FOLDER
//	GOFLAGS="$(cat FOLDER/flags)" go test ...
//
// For a version of Go that lacks one of the places that change, neither file is left,
// and the command fails.
//
// The program calls runtime.seedBubbles by its linkname, and runs on one processor.
// simulation/seeded.go is the caller.
package main

import (
	"errors"
	"fmt"
	"go/build"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/kube-watchcache/watchcache/hack/internal/overlay"
)

// edit is one place in Go's sources that changes: old becomes new, as often as times
// says.
type edit struct {
	file, old, new string
	times          int
}

// edits are all of them. Go 1.26 has these places. None moves a line: what other packages
// are told of the runtime then stays the same, and they need not be compiled again.
var edits = []edit{
	// The case of a select that is looked at first, the order of timers of one moment,
	// and whom a semaphore wakes.
	{"runtime/select.go", "cheaprandn(uint32(norder + 1))", "seededn(getg().bubble != nil, uint32(norder+1))", 1},
	{"runtime/time.go", "t.rand = cheaprand()", "t.rand = seededTimer(t)", 1},
	{"runtime/time.go", "\t\tc.timer = &t.timer\n", "\t\tc.timer = &t.timer; t.rand = seeded32(getg().bubble != nil)\n", 1},
	{"runtime/sema.go", "s.ticket = cheaprand() | 1", "s.ticket = seeded32(s.g.bubble != nil) | 1", 1},
	// The next goroutine: the one that was made ready last, or the one that has waited
	// for the longest. One outside of the bubbles, which a real timer may have made ready,
	// takes nobody's turn, and hardly counts as one: every 61st turn is that of those
	// that have yielded. No goroutine is preempted, or loses its processor in a system
	// call, because of the time of day, but for one that hangs.
	{"runtime/proc.go", "if randomizeScheduler && next && randn(2) == 0 {", "if next && (randomizeScheduler && randn(2) == 0 || seeded.on && (gp.bubble == nil || seededn(true, 2) == 0)) {", 1},
	{"runtime/proc.go", "\tif !inheritTime {\n\t\tmp.p.ptr().schedtick++", "\tif !inheritTime && seededTurn(gp) {\n\t\tmp.p.ptr().schedtick++", 1},
	{"runtime/proc.go", "const forcePreemptNS = 10 * 1000 * 1000 // 10ms", "const forcePreemptNS = 60 * 1000 * 1000 * 1000", 1},
	{"runtime/proc.go", "\t\tsysretake := false\n", "\t\tsysretake := false; if seeded.on { if pd.schedtick != pp.schedtick { pd.schedtick, pd.schedwhen = pp.schedtick, now }; if pd.schedwhen+forcePreemptNS > now { continue } }\n", 1},
	{"internal/sync/mutex.go", "starvationThresholdNs = 1e6", "starvationThresholdNs = 60e9", 1},
	// The order of maps, the seeds of package maphash, some of which a process draws when
	// it begins, and the random numbers of programs.
	{"runtime/rand.go", "func rand() uint64 {\n", "func rand() uint64 { if seeded.on && getg().bubble != nil { return seeded64(&seeded.values) }\n", 1},
	{"hash/maphash/maphash_runtime.go", "return runtime_rand()", "return 0x9e3779b97f4a7c15", 1},
	{"runtime/alg.go", "hashkey[i] = uintptr(bootstrapRand())", "hashkey[i] = uintptr(uint64(i+1) * 0x9e3779b97f4a7c15)", 1},
	{"runtime/alg.go", "key[i] = bootstrapRand()", "key[i] = uint64(i+1) * 0x9e3779b97f4a7c15", 1},
}

// added is a file of the runtime that Go does not have.
const added = `package runtime

import _ "unsafe" // for go:linkname

// seeded is the generators (SplitMix64) that bubbles run by while on: one for what is
// next, and one for the values that maps and programs ask for, which take more of them
// in the first run of a process than later.
var seeded struct {
	on           bool
	next, values uint64
	outside      uint32 // turns of goroutines outside of the bubbles
}

// seedBubbles begins a run. There is one processor.
//
//go:linkname seedBubbles
func seedBubbles(seed uint64, on bool) {
	mp := acquirem()
	seeded.next, seeded.values, seeded.outside, seeded.on = seed, ^seed, 0, on
	mp.p.ptr().schedtick = 0
	releasem(mp)
}

//go:nosplit
func seeded64(state *uint64) uint64 {
	*state += 0x9e3779b97f4a7c15
	z := *state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

//go:nosplit
func seeded32(bubbled bool) uint32 {
	if seeded.on && bubbled {
		return uint32(seeded64(&seeded.next) >> 32)
	}
	return cheaprand()
}

// seededTimer is where a timer is among those of one moment. One with a channel keeps
// its place: a select waits for its timers in the order of their channels' addresses.
func seededTimer(t *timer) uint32 {
	if seeded.on && t.isFake && t.isChan {
		return t.rand
	}
	return seeded32(t.isFake)
}

// seededTurn reports whether a goroutine's turn counts. Of those outside of the bubbles
// one in 100,000 does, so that none that yields until another one acts has all turns.
func seededTurn(gp *g) bool {
	if !seeded.on || gp.bubble != nil {
		return true
	}
	seeded.outside++
	return seeded.outside%100_000 == 0
}

//go:nosplit
func seededn(bubbled bool, n uint32) uint32 {
	return uint32(uint64(seeded32(bubbled)) * uint64(n) >> 32)
}
`

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "seeded: name the folder to write to")
		os.Exit(2)
	}
	if err := write(os.Args[1], filepath.Join(build.Default.GOROOT, "src"), edits); err != nil {
		fmt.Fprintln(os.Stderr, "seeded:", err)
		os.Exit(1)
	}
}

// write makes the edits in copies of the sources, and writes overlay.json and flags.
func write(dir, sources string, all []edit) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	flags := filepath.Join(dir, "flags")
	for _, old := range []string{filepath.Join(dir, overlay.File), flags} {
		if err := os.Remove(old); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	changed := map[string]string{filepath.Join(sources, "runtime", "seeded.go"): added}
	for _, e := range all {
		if err := e.apply(changed, sources); err != nil {
			return err
		}
	}
	replace := map[string]string{}
	for name, text := range changed {
		short, err := filepath.Rel(sources, name)
		if err != nil {
			return err
		}
		// Not a Go file: ./... would find a package.
		copied := filepath.Join(dir, short+".txt")
		if err := os.MkdirAll(filepath.Dir(copied), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(copied, []byte(text), 0o644); err != nil {
			return err
		}
		replace[name] = copied
	}
	name, err := overlay.Write(dir, replace)
	if err != nil {
		return err
	}
	return os.WriteFile(flags, []byte("'-overlay="+name+"' -tags=seeded\n"), 0o644)
}

// apply makes the edit in changed, which has the files that were edited before.
func (e edit) apply(changed map[string]string, sources string) error {
	name := filepath.Join(sources, filepath.FromSlash(e.file))
	text, ok := changed[name]
	if !ok {
		read, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		text = string(read)
	}
	if n := strings.Count(text, e.old); n != e.times {
		return fmt.Errorf("%s of %s has %q %d times, where %d was expected: hack/seeded has to learn this version of Go", e.file, runtime.Version(), e.old, n, e.times)
	}
	changed[name] = strings.ReplaceAll(text, e.old, e.new)
	return nil
}
