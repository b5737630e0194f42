// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"
)

// soakStep is the time between two rows of a soak's report: half of a shorter soak's.
const soakStep = time.Minute

// soakedTables are the tables of a soak's report: the server's use of memory and goroutines.
var soakedTables = []struct{ heading, column, query string }{
	{"Resident memory", "MB", `process_resident_memory_bytes{job="` + job + `"} / 1e6`},
	{"Heap in use", "MB", `go_memstats_heap_inuse_bytes{job="` + job + `"} / 1e6`},
	{"Goroutines", "goroutines", `go_goroutines{job="` + job + `"}`},
}

// writeSoak writes the tables, with a row for each step from start to end.
func writeSoak(ctx context.Context, p *Prometheus, start, end time.Time, to io.Writer) error {
	step := min(soakStep, end.Sub(start)/2)
	for _, table := range soakedTables {
		values, err := p.queryRange(ctx, table.query, start, end, step)
		if err != nil {
			return err
		}
		fmt.Fprintf(to, "\n## %s\n\n| minutes | %s |\n|---|---|\n", table.heading, table.column)
		for _, v := range values {
			fmt.Fprintf(to, "| %.3g | %.4g |\n", v.at.Sub(start).Minutes(), v.value)
		}
	}
	return nil
}

type moment struct {
	at    time.Time
	value float64
}

// queryRange evaluates an expression of one series at each step from start to end.
func (p *Prometheus) queryRange(ctx context.Context, expr string, start, end time.Time, step time.Duration) (all []moment, err error) {
	seconds := func(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1e3, 'f', 3, 64) }
	var answer struct {
		Data struct {
			Result []struct{ Values [][2]any } // time in seconds, and the value as a string
		}
	}
	query := url.Values{"query": {expr}, "start": {seconds(start)}, "end": {seconds(end)}, "step": {fmt.Sprint(step.Seconds())}}
	if err := p.get(ctx, "/api/v1/query_range", query, &answer); err != nil {
		return nil, err
	}
	if n := len(answer.Data.Result); n != 1 {
		return nil, fmt.Errorf("prometheus: %s has %d series, want one", expr, n)
	}
	for _, v := range answer.Data.Result[0].Values {
		at, _ := v[0].(float64)
		text, _ := v[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("prometheus: value of %s: %w", expr, err)
		}
		all = append(all, moment{time.UnixMilli(int64(at * 1e3)), value})
	}
	return all, nil
}
