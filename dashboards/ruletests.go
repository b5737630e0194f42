// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kube-watchcache/watchcache/metrics"
)

// RuleTests is the input of `promtool test rules`.
type RuleTests struct {
	RuleFiles          []string   `json:"rule_files"`
	EvaluationInterval string     `json:"evaluation_interval"`
	Tests              []RuleTest `json:"tests"`
}

// RuleTest is one fault, as series, and the alerts that fire in it.
type RuleTest struct {
	Name        string      `json:"name"`
	Interval    string      `json:"interval"`
	InputSeries []Series    `json:"input_series"`
	ExprTests   []ExprTests `json:"promql_expr_test"`
}

// Series is the samples of one series, in promtool's notation.
type Series struct {
	Series string `json:"series"`
	Values string `json:"values"`
}

// ExprTests is what an expression evaluates to.
type ExprTests struct {
	Expr     string   `json:"expr"`
	EvalTime string   `json:"eval_time"`
	Samples  []Sample `json:"exp_samples"`
}

// Sample is one value that an expression evaluates to.
type Sample struct {
	Labels string  `json:"labels"`
	Value  float64 `json:"value"`
}

// samples are the values of a metric and its own labels, every ruleInterval.
type samples map[sampled]string

type sampled struct {
	metric metrics.Name
	suffix string // of a histogram's series
	labels string
}

// of returns the key of a series without more labels.
func of(metric metrics.Name) sampled { return sampled{metric: metric} }

func with(metric metrics.Name, labels string) sampled { return sampled{metric: metric, labels: labels} }

// steady is a cache in good order: each counter that grows has existed for long.
func steady() samples {
	return samples{
		of(metrics.NameReady):                                             "1x160",
		of(metrics.NameAsleep):                                            "0x160",
		of(metrics.NamePaused):                                            "0x160",
		of(metrics.NameStorageSilence):                                    "0 5 10 15 0x156",
		with(metrics.NameRelists, `cause="start"`):                        "1x160",
		with(metrics.NameReads, `verb="list",decision="consistent"`):      "0+100x160",
		with(metrics.NameConsistencyChecks, `result="passed"`):            "0+1x160",
		{metrics.NameVersionDuration, "_bucket", `result="ok",le="1"`}:    "0+100x160",
		{metrics.NameVersionDuration, "_bucket", `result="ok",le="+Inf"`}: "0+100x160",
		{metrics.NameVersionDuration, "_count", `result="ok"`}:            "0+100x160",
	}
}

// ruleFault is a fault as its samples differ from steady, and the alerts at the
// time at.
type ruleFault struct {
	name    string
	differs samples
	at      time.Duration
	alerts  []string
}

// absent is the samples of a series that is not there for the first twenty minutes.
const absent = "_x80 "

func ruleFaults() []ruleFault {
	refuse := with(metrics.NameReads, `verb="list",decision="refuse"`)
	failed := sampled{metrics.NameVersionDuration, "_count", `result="error"`}
	return []ruleFault{
		{name: "a cache in good order"},
		{"not ready", samples{of(metrics.NameReady): "0x160"}, 6 * time.Minute, []string{AlertNotReady}},
		{"not ready for a moment", samples{of(metrics.NameReady): "0x8 1x150"}, 6 * time.Minute, nil},
		{"asleep", samples{of(metrics.NameReady): "0x160", of(metrics.NameAsleep): "1x160"}, 10 * time.Minute, nil},
		{"storage is silent", samples{of(metrics.NameStorageSilence): "0+15x160"}, 6 * time.Minute, []string{AlertStale}},
		{
			"storage is silent, and reads are refused for that", samples{
				of(metrics.NameStorageSilence): "0+15x160", refuse: "0+50x160", failed: "0+50x160",
			}, 15 * time.Minute, []string{AlertStale},
		},
		{"a relist", samples{with(metrics.NameRelists, `cause="expired"`): absent + "1x80"}, 25 * time.Minute, nil},
		{"relists", samples{with(metrics.NameRelists, `cause="expired"`): absent + "1+1x80"}, 25 * time.Minute, []string{AlertRelisting}},
		{"relists, long ago", samples{with(metrics.NameRelists, `cause="expired"`): "1+1x20 21x140"}, 25 * time.Minute, nil},
		{"watchers expire", samples{of(metrics.NameExpired): absent + "10x80"}, 25 * time.Minute, []string{AlertWatchersExpiring}},
		{"a watcher expires", samples{of(metrics.NameExpired): absent + "1x80"}, 25 * time.Minute, nil},
		{
			"one failed check, the first", samples{with(metrics.NameConsistencyChecks, `result="failed"`): absent + "1x80"},
			25 * time.Minute, []string{AlertConsistencyFailed},
		},
		{
			"one failed check, half an hour ago", samples{with(metrics.NameConsistencyChecks, `result="failed"`): "_x8 1x150"},
			35 * time.Minute, nil,
		},
		{
			"an object that can't be decoded", samples{of(metrics.NamePaused): "1x160", of(metrics.NameUndeliverable): "1+1x160", refuse: "0+50x160"},
			20 * time.Minute, []string{AlertUndeliverableObject},
		},
		{
			"an object that can't be decoded, at the start", samples{of(metrics.NameReady): "0x160", of(metrics.NameUndeliverable): "1+1x160"},
			20 * time.Minute, []string{AlertUndeliverableObject},
		},
		{"reads are refused", samples{refuse: "0+5x160"}, 10 * time.Minute, []string{AlertReadsRefused}},
		{"one read is refused", samples{refuse: absent + "1x80"}, 25 * time.Minute, nil},
		{"events are cut off the window", samples{of(metrics.NameWindowCut): "0+10x160"}, 12 * time.Minute, []string{AlertWindowShort}},
		{"a burst cuts events off the window", samples{of(metrics.NameWindowCut): absent + "1000x80"}, 30 * time.Minute, nil},
		{
			"slow version requests", samples{
				{metrics.NameVersionDuration, "_bucket", `result="ok",le="1"`}: "0+50x160",
			}, 10 * time.Minute, []string{AlertVersionRequestsSlow},
		},
		{
			"quick version requests, as OpenMetrics has them", samples{
				{metrics.NameVersionDuration, "_bucket", `result="ok",le="1"`}:   "_x160",
				{metrics.NameVersionDuration, "_bucket", `result="ok",le="1.0"`}: "0+100x160",
			}, 10 * time.Minute, nil,
		},
		{
			"requests that another one overtook", samples{
				{metrics.NameVersionDuration, "_count", `result="superseded"`}: "0+300x160",
			}, 10 * time.Minute, nil,
		},
		{
			"requests whose reads had gone", samples{
				{metrics.NameVersionDuration, "_count", `result="abandoned"`}: "0+300x160",
			}, 10 * time.Minute, nil,
		},
		{
			"requests that reads waited for in vain", samples{
				{metrics.NameVersionDuration, "_count", `result="unanswered"`}: "0+50x160",
			}, 10 * time.Minute, []string{AlertVersionRequestsSlow},
		},
		{
			"version requests fail, and reads are refused for that", samples{failed: "0+50x160", refuse: "0+50x160"},
			10 * time.Minute, []string{AlertVersionRequestsSlow},
		},
	}
}

// ruleTests has a test for each fault.
func ruleTests() RuleTests {
	const firing = `count by (alertname) (ALERTS{alertstate="firing"})`
	out := RuleTests{RuleFiles: []string{"rules.yaml"}, EvaluationInterval: RealTime.Of(ruleInterval)}
	for _, fault := range ruleFaults() {
		all := steady()
		maps.Copy(all, fault.differs)
		test := RuleTest{Name: fault.name, Interval: RealTime.Of(ruleInterval)}
		for key, values := range all {
			labels := `job="apiserver",instance="a:443",group="fleet.example.com",resource="devices"`
			if key.labels != "" {
				labels += "," + key.labels
			}
			test.InputSeries = append(test.InputSeries, Series{fmt.Sprintf("%s%s{%s}", key.metric, key.suffix, labels), values})
		}
		slices.SortFunc(test.InputSeries, func(a, b Series) int {
			if a.Series < b.Series {
				return -1
			}
			return 1
		})
		expected := ExprTests{Expr: firing, EvalTime: RealTime.Of(fault.at), Samples: []Sample{}}
		if fault.at == 0 {
			expected.EvalTime = "30m"
		}
		for _, alert := range fault.alerts {
			expected.Samples = append(expected.Samples, Sample{fmt.Sprintf(`{alertname=%q}`, alert), 1})
		}
		test.ExprTests = []ExprTests{expected}
		out.Tests = append(out.Tests, test)
	}
	return out
}
