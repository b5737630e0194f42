// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"html"
	"strings"
	"sync"
	"time"
)

// sampleInterval is the resolution of the timeline.
const sampleInterval = 500 * time.Millisecond

// timeline is what happened when, for the picture.
type timeline struct {
	run *run
	mu  struct {
		sync.Mutex
		marks   []mark
		samples []sample
	}
}

// mark is a fault.
type mark struct {
	name     string
	from, to time.Duration
}

// sample is the state at one moment, and what was counted up to then.
type sample struct {
	at time.Duration
	// counted since the sample before, for a second.
	writes, reads, events, inside, failed float64
	lag                                   float64 // of the watch that is furthest behind, in versions
	gaps                                  float64 // watches that are not open
}

func newTimeline(r *run) *timeline { return &timeline{run: r} }

func (tl *timeline) mark(name string, from, to time.Time) {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	tl.mu.marks = append(tl.mu.marks, mark{name, from.Sub(tl.run.began), to.Sub(tl.run.began)})
}

// follow samples until ctx ends.
func (tl *timeline) follow(ctx context.Context) {
	c := tl.run.clients
	var last [5]int64
	before := c.now()
	every(ctx, sampleInterval, func() {
		now := [5]int64{c.counts.writes.Load(), c.counts.reads.Load(), c.counts.events.Load(), c.counts.inside.Load(), c.counts.unread.Load() + c.counts.unanswered.Load()}
		s := sample{at: c.now()}
		for i, figure := range []*float64{&s.writes, &s.reads, &s.events, &s.inside, &s.failed} {
			*figure = float64(now[i]-last[i]) / (s.at - before).Seconds()
		}
		last, before = now, s.at
		reached := c.reached.Load()
		for _, w := range c.watchers {
			if !w.live() {
				s.gaps++
			}
			if w.selection.Namespace == "" && w.selection.Labels == nil && w.selection.Fields == nil {
				_, to := w.seen()
				s.lag = max(s.lag, float64(reached-to))
			}
		}
		tl.mu.Lock()
		defer tl.mu.Unlock()
		tl.mu.samples = append(tl.mu.samples, s)
	})
}

// The measures of the picture, in pixels.
const (
	pictureWidth = 1200
	marginLeft   = 150
	markHeight   = 14
	trackHeight  = 60
	trackGap     = 16
)

// track is one curve of the picture.
type track struct {
	name, colour string
	value        func(sample) float64
}

var tracks = []track{
	{"writes a second", "#2a78b8", func(s sample) float64 { return s.writes }},
	{"reads a second", "#3b8f3b", func(s sample) float64 { return s.reads }},
	{"events a second", "#7a5bb0", func(s sample) float64 { return s.events }},
	{"events in process, a second", "#c07fb8", func(s sample) float64 { return s.inside }},
	{"failed requests a second", "#c0392b", func(s sample) float64 { return s.failed }},
	{"lag of watches, versions", "#b9770e", func(s sample) float64 { return s.lag }},
	{"watches not open", "#555555", func(s sample) float64 { return s.gaps }},
}

// svg draws the timeline.
func (tl *timeline) svg() string {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	end := time.Second
	for _, s := range tl.mu.samples {
		end = max(end, s.at)
	}
	for _, m := range tl.mu.marks {
		end = max(end, m.to)
	}
	x := func(at time.Duration) float64 {
		return marginLeft + float64(pictureWidth-marginLeft-20)*float64(at)/float64(end)
	}
	height := 40 + markHeight*len(tl.mu.marks) + (trackHeight+trackGap)*len(tracks)
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", pictureWidth, height)
	fmt.Fprintf(&out, `<rect width="%d" height="%d" fill="white"/>`+"\n", pictureWidth, height)
	y := 10
	for _, m := range tl.mu.marks {
		fmt.Fprintf(&out, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="#e8b4ae"/>`, x(m.from), y, max(2, x(m.to)-x(m.from)), markHeight-3)
		fmt.Fprintf(&out, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="#c0392b" opacity="0.08"/>`, x(m.from), y, max(2, x(m.to)-x(m.from)), height-y-20)
		anchor, at := "start", x(m.to)+4
		if m.to > end/2 {
			anchor, at = "end", x(m.from)-4
		}
		fmt.Fprintf(&out, `<text x="%.1f" y="%d" text-anchor="%s">%s</text>`+"\n", at, y+markHeight-4, anchor, html.EscapeString(m.name))
		y += markHeight
	}
	for _, tr := range tracks {
		y += trackGap
		tl.curve(&out, tr, y, x)
		y += trackHeight
	}
	fmt.Fprintf(&out, `<text x="%d" y="%d">0 s</text><text x="%d" y="%d" text-anchor="end">%.0f s</text>`+"\n</svg>\n", marginLeft, y+14, pictureWidth-20, y+14, end.Seconds())
	return out.String()
}

// curve draws a track below y. The caller holds mu.
func (tl *timeline) curve(out *strings.Builder, tr track, y int, x func(time.Duration) float64) {
	most := 1.0
	for _, s := range tl.mu.samples {
		most = max(most, tr.value(s))
	}
	fmt.Fprintf(out, `<text x="4" y="%d">%s</text><text x="%d" y="%d" text-anchor="end">%.0f</text>`, y+trackHeight/2, tr.name, marginLeft-4, y+10, most)
	fmt.Fprintf(out, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#cccccc"/>`, marginLeft, y+trackHeight, pictureWidth-20, y+trackHeight)
	fmt.Fprintf(out, `<polyline fill="none" stroke="%s" stroke-width="1.2" points="`, tr.colour)
	for _, s := range tl.mu.samples {
		fmt.Fprintf(out, "%.1f,%.1f ", x(s.at), float64(y)+trackHeight*(1-tr.value(s)/most))
	}
	out.WriteString(`"/>` + "\n")
}
