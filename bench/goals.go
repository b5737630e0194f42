// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// goal says what a figure of ours should be.
type goal struct {
	// against is what most is a multiple of; "" if most is absolute.
	against subject
	most    float64
	// byMedian: an absolute goal is met by the median, as those of ratios are,
	// and not by every single measurement.
	byMedian bool
	// none: the figure is there for information.
	none bool
}

func timesLess(n float64) goal      { return goal{against: shipped, most: 1 / n} }
func ofShipped(share float64) goal  { return goal{against: shipped, most: share} }
func ofFloor(multiple float64) goal { return goal{against: floor, most: multiple} }
func atMost(n float64) goal         { return goal{most: n} }
func noGoal() goal                  { return goal{none: true} }
func (g goal) met(s spread) bool    { return g.judged(s) <= g.most*(1+rounding) }
func (g goal) judged(s spread) float64 {
	if g.against == "" && !g.byMedian {
		return s.Max
	}
	return s.Median
}

// rounding keeps a goal from being missed by the binary fraction it is.
const rounding = 1e-9

func (g goal) text(u unit) string {
	switch {
	case g.none:
		return "–"
	case g.against == "":
		return "≤ " + u.text(g.most)
	case g.against == shipped && g.most < 0.5:
		return fmt.Sprintf("≤ shipped / %.3g", 1/g.most)
	}
	return fmt.Sprintf("≤ %.3g × %s", g.most, g.against)
}

// unit is what a figure is counted in.
type unit string

const (
	nanoseconds unit = "ns"
	octets      unit = "B"
	count       unit = ""
	ratio       unit = "×"
)

func (u unit) text(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case u == nanoseconds:
		return duration(v)
	case u == octets && v >= 1e6:
		return fmt.Sprintf("%.4g MB", v/1e6)
	case u == octets:
		return fmt.Sprintf("%.0f B", v)
	case u == ratio && v > 0 && v < 0.1:
		return fmt.Sprintf("1/%.0f", 1/v)
	case u == ratio:
		return fmt.Sprintf("%.2f", v)
	case v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// duration has three digits, and may be negative: a difference.
func duration(ns float64) string {
	for _, step := range []struct {
		name string
		of   time.Duration
	}{{"s", time.Second}, {"ms", time.Millisecond}, {"µs", time.Microsecond}} {
		if of := float64(step.of); math.Abs(ns) >= of {
			return fmt.Sprintf("%.3g %s", ns/of, step.name)
		}
	}
	return fmt.Sprintf("%.3g ns", ns)
}

// spread is what came of several measurements. Its fields are meaningless if
// there were none.
type spread struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spreadOf(values []float64) spread {
	values = slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	slices.Sort(values)
	n := len(values)
	if n == 0 {
		return spread{}
	}
	return spread{N: n, Median: (values[(n-1)/2] + values[n/2]) / 2, Min: values[0], Max: values[n-1]}
}

func (s spread) text(u unit) string {
	switch {
	case s.N == 0:
		return "–"
	case u.text(s.Min) == u.text(s.Max):
		return u.text(s.Median)
	}
	return fmt.Sprintf("%s (%s..%s)", u.text(s.Median), u.text(s.Min), u.text(s.Max))
}

// ratios divides pair by pair.
func ratios(a, b []float64) []float64 {
	out := make([]float64, min(len(a), len(b)))
	for i := range out {
		out[i] = a[i] / b[i]
	}
	return out
}

// result is a figure as measured.
type result struct {
	Work    string `json:"work"`
	Figure  string `json:"figure,omitempty"`
	Unit    unit   `json:"unit"`
	Ours    spread `json:"ours"`
	Shipped spread `json:"shipped"`
	Floor   spread `json:"floor"`
	// Plain is server.Install without server.InstallAPIGroup, in rows of the
	// boundary.
	Plain spread `json:"plain,omitzero"`
	// ToShipped and ToFloor are the ratios of ours within each pair.
	ToShipped spread `json:"toShipped"`
	ToFloor   spread `json:"toFloor"`
	// PlainToShipped is the same of Plain.
	PlainToShipped spread `json:"plainToShipped,omitzero"`
	Goal           string `json:"goal"`
	// Met is nil if there is no goal, or nothing to judge it by.
	Met *bool `json:"met"`

	samples map[subject][]float64
}

func (f figure) result(work string, values map[subject][]float64) result {
	r := result{
		Work: work, Figure: f.name, Unit: f.unit, Goal: f.goal.text(f.unit),
		Ours: spreadOf(values[ours]), Shipped: spreadOf(values[shipped]), Floor: spreadOf(values[floor]),
		ToShipped: spreadOf(ratios(values[ours], values[shipped])),
		ToFloor:   spreadOf(ratios(values[ours], values[floor])),
		Plain:     spreadOf(values[installed]), PlainToShipped: spreadOf(ratios(values[installed], values[shipped])),
		samples: values,
	}
	judged := map[subject]spread{"": r.Ours, shipped: r.ToShipped, floor: r.ToFloor}[f.goal.against]
	if !f.goal.none && judged.N > 0 {
		met := f.goal.met(judged)
		r.Met = &met
	}
	return r
}

// verdict is Met for people.
func (r result) verdict() string {
	switch {
	case r.Met == nil:
		return "–"
	case *r.Met:
		return "met"
	}
	return "**not met**"
}

// String returns the result in one line.
func (r result) String() string {
	text := fmt.Sprintf("%s; %s: ours %s, shipped %s", r.Work, r.Figure, r.Ours.text(r.Unit), r.Shipped.text(r.Unit))
	if r.Plain.N > 0 {
		text += fmt.Sprintf(", plain %s", r.Plain.text(r.Unit))
	}
	if r.Floor.N > 0 {
		text += fmt.Sprintf(", floor %s", r.Floor.text(r.Unit))
	}
	text += ", ours/shipped " + r.ToShipped.text(ratio)
	if r.Plain.N > 0 {
		text += ", plain/shipped " + r.PlainToShipped.text(ratio)
	}
	if r.Floor.N > 0 {
		text += ", ours/floor " + r.ToFloor.text(ratio)
	}
	return text + fmt.Sprintf(", goal %s: %s", r.Goal, r.verdict())
}
