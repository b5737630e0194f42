// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-watchcache/watchcache/bench/boundary"
)

// subject is what is measured.
type subject string

const (
	ours    subject = "ours"
	shipped subject = "shipped"
	// floor is the least work that gives the same outcome, without a cache.
	floor subject = "floor"
	// installed is the server with server.Install alone, in the rows of the
	// boundary; ours has server.InstallAPIGroup as well there.
	installed subject = "plain"
)

var allSubjects = []subject{floor, ours, installed, shipped}

// size is how much of everything. A row takes what concerns it.
type size struct {
	objects int // a multiple of namespaces
	// seconds is how long events come at a fixed rate.
	seconds float64
	// watchers scales the number of watchers of every row, in percent.
	watchers int
	// informers is how many three servers have that are restarted.
	informers int
	// burst is how many events come at full speed.
	burst int
	// repeats scales how often reads are repeated, in percent.
	repeats int
	// roundTrip is how long storage takes to answer a consistent read: long
	// enough for all readers to come while the first one's request is under way.
	roundTrip time.Duration
	// patience is when something counts as hung.
	patience time.Duration
}

// full is the size that the goals are for.
var full = size{
	objects: 20_000, seconds: 2, watchers: 100, burst: 20_000, repeats: 100,
	roundTrip: 10 * time.Millisecond, patience: 5 * time.Second,
}

// of scales n.
func (s size) of(n, percent int) int { return max(1, n*percent/100) }

// row is a line of the table of goals: one piece of work and the figures that
// come of it.
type row struct {
	name string
	// figures are what a measurement returns, in this order.
	figures []figure
	// subjects can do the work, apart from ours.
	subjects []subject
	// open prepares what the measurements of all subjects share.
	open func(context.Context, size) (*work, error)
}

// figure is one number of a row.
type figure struct {
	name string // "" if the row has only one
	unit unit
	goal goal
}

// work is a row that is ready to be measured.
type work struct {
	// measure does the work once and returns the row's figures. NaN stands
	// for a figure that the subject has not.
	measure func(context.Context, subject) ([]float64, error)
	// profile, if not nil, does the work until it has a CPU profile of the server.
	profile func(context.Context, subject) (boundary.Breakdown, error)
	close   func() error
}

// fresh is work whose measurements share nothing.
func fresh(measure func(context.Context, subject) ([]float64, error)) *work {
	return &work{measure: measure, close: func() error { return nil }}
}

// measureRow measures all subjects in turn, as often as there are pairs, in an
// order that is reversed each time. Profiles are taken afterwards, because they
// cost CPU time.
func measureRow(ctx context.Context, r row, s settings) (results []result, parts []shares, err error) {
	// Waiting reads of a shipped cacher outlive it by three seconds.
	if _, err := goroutinesAbove(ctx, s.resting, s.size.patience); err != nil {
		return nil, nil, err
	}
	w, err := r.open(ctx, s.size)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	var order []subject
	for _, sub := range allSubjects {
		if (sub == ours || slices.Contains(r.subjects, sub)) && (len(s.subjects) == 0 || slices.Contains(s.subjects, sub)) {
			order = append(order, sub)
		}
	}
	values := make([]map[subject][]float64, len(r.figures))
	for i := range values {
		values[i] = map[subject][]float64{}
	}
	for range s.pairs {
		for _, sub := range order {
			if err := ctx.Err(); err != nil {
				return nil, nil, err
			}
			runtime.GC()
			measured, err := w.measure(ctx, sub)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", sub, err)
			}
			for i, value := range measured {
				values[i][sub] = append(values[i][sub], value)
			}
		}
		slices.Reverse(order)
	}
	for i, f := range r.figures {
		results = append(results, f.result(r.name, values[i]))
	}
	parts, err = profiles(ctx, w, s, r.name, order)
	return results, parts, err
}

// profiles takes a profile of each subject, if the row has profiles.
func profiles(ctx context.Context, w *work, s settings, name string, order []subject) ([]shares, error) {
	if w.profile == nil || !s.breakdown {
		return nil, nil
	}
	var all []shares
	for _, sub := range order {
		b, err := w.profile(ctx, sub)
		if err != nil {
			return nil, fmt.Errorf("%s: profile: %w", sub, err)
		}
		all = append(all, sharesOf(name, sub, b))
	}
	return all, nil
}

// cost returns the CPU time that the process spends in f, in nanoseconds for
// each of n repetitions.
func cost(n int, f func() error) (float64, error) {
	before := cpuTime()
	if err := f(); err != nil {
		return 0, err
	}
	return float64(cpuTime()-before) / float64(n), nil
}

// paced begins so many calls a second, whether or not earlier ones have returned, and
// returns how long each has taken.
func paced(ctx context.Context, perSecond, seconds int, do func(ctx context.Context, n int) error) ([]time.Duration, error) {
	took := make([]time.Duration, perSecond*seconds)
	group, ctx := errgroup.WithContext(ctx)
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for n := range took {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(group.Wait(), ctx.Err())
		}
		group.Go(func() error {
			begun := time.Now()
			err := do(ctx, n)
			took[n] = time.Since(begun)
			return err
		})
	}
	return took, group.Wait()
}
