// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"fmt"
	"strings"
	"time"

	"github.com/kube-watchcache/watchcache/metrics"
)

// alertPrefix begins the name of each alert.
const alertPrefix = "Watchcache"

// runbook is where the sections of docs/runbook.md are read.
const runbook = "https://github.com/kube-watchcache/watchcache/blob/main/docs/runbook.md"

// The severities of alerts.
const (
	// Critical alerts wake a person at any time of day.
	Critical = "critical"
	// Warning alerts are for the next morning.
	Warning = "warning"
)

// Alert is an alert for one cache.
type Alert struct {
	Name     string
	Severity string
	// For is the time that the expression must hold.
	For     time.Duration
	Summary string
	// description is a template of Prometheus. The description says what
	// happens to clients, and what the program does about it.
	description string
	expr        func(Scale) string
}

// Anchor is the anchor of the alert's section in the runbook.
func (a Alert) Anchor() string { return strings.ToLower(a.Name) }

// Runbook is the address of the alert's section in the runbook.
func (a Alert) Runbook() string { return runbook + "#" + a.Anchor() }

// The names of the alerts.
const (
	AlertNotReady            = alertPrefix + "NotReady"
	AlertStale               = alertPrefix + "Stale"
	AlertRelisting           = alertPrefix + "Relisting"
	AlertWatchersExpiring    = alertPrefix + "WatchersExpiring"
	AlertConsistencyFailed   = alertPrefix + "ConsistencyFailed"
	AlertUndeliverableObject = alertPrefix + "UndeliverableObject"
	AlertReadsRefused        = alertPrefix + "ReadsRefused"
	AlertWindowShort         = alertPrefix + "WindowShort"
	AlertVersionRequestsSlow = alertPrefix + "VersionRequestsSlow"
)

// subject names a cache in the texts of alerts.
const subject = "The cache of {{ $labels.resource }}.{{ $labels.group }} on {{ $labels.instance }}"

// Alerts returns the alerts. Each is for one fault: those for a consequence of
// another fault are silent while that fault's own alert has a reason to fire.
func Alerts() []Alert {
	return []Alert{
		{
			Name: AlertNotReady, Severity: Critical, For: 5 * time.Minute,
			Summary:     subject + " has no state to serve from.",
			description: "GETs and small LISTs go to storage; watches and other LISTs are refused. The cache retries its list of storage until that succeeds.",
			expr:        notReady,
		},
		{
			Name: AlertStale, Severity: Critical, For: time.Minute,
			Summary:     subject + " has received nothing from storage for {{ $value | humanizeDuration }}.",
			description: "Watches receive no events, and consistent reads fail. The cache reopens its watch until storage answers.",
			expr:        stale,
		},
		{
			Name: AlertRelisting, Severity: Warning,
			Summary:     subject + " has listed storage {{ $value | humanize }} times in 15 minutes.",
			description: "Each list loads storage and ends all watches, whose clients then list again.",
			expr:        above(recordRelists, 3),
		},
		{
			Name: AlertWatchersExpiring, Severity: Warning,
			Summary:     subject + " ended {{ $value | humanize }} slow watches in 15 minutes.",
			description: "Their next events left the window before their clients read them. Each client gets a 410 and lists again.",
			expr:        above(recordExpired, 5),
		},
		{
			Name: AlertConsistencyFailed, Severity: Critical,
			Summary:     subject + " differed from storage.",
			description: "The cache relists by itself; until then storage answers consistent reads. Clients may have read or watched a wrong state before.",
			expr:        above(recordFailed, 0),
		},
		{
			Name: AlertUndeliverableObject, Severity: Critical, For: time.Minute,
			Summary:     subject + " is paused: storage has an object that it cannot deliver.",
			description: "Repair or delete the object that the log names; the cache then recovers by itself. Until then it refuses watches, and reads that need a newer version go to storage.",
			expr:        undeliverable,
		},
		{
			Name: AlertReadsRefused, Severity: Warning, For: 5 * time.Minute,
			Summary:     subject + " refuses {{ $value | humanizePercentage }} of its reads.",
			description: "The cache does not become fresh in time for these reads, although storage answers. Clients get 429 and retry.",
			expr:        refused,
		},
		{
			Name: AlertWindowShort, Severity: Warning, For: 5 * time.Minute,
			Summary:     subject + " evicts events early.",
			description: "In two minutes {{ $value | humanize }} events left the window before the age of EventsHistoryWindow, because it reached WindowBytes. Clients that resume from there get a 410 and list again.",
			expr:        above(recordCut, 0),
		},
		{
			Name: AlertVersionRequestsSlow, Severity: Warning, For: 5 * time.Minute,
			Summary:     subject + " waits too long for storage's version.",
			description: "{{ $value | humanizePercentage }} of the version requests fail or take more than a second. Each consistent read waits for one.",
			expr:        slow,
		},
	}
}

// above returns an expression that holds while a recorded series is above a limit.
func above(record string, limit float64) func(Scale) string {
	return func(Scale) string { return fmt.Sprintf("%s > %v", record, limit) }
}

// A cache that is not ready because of an object has an alert of its own for that,
// and one that sleeps has no use for a state.
func notReady(Scale) string {
	return fmt.Sprintf("%s == 0\nunless %s (%s == 1 or %s > 0)", metrics.NameReady, onCache, metrics.NameAsleep, recordUndelivered)
}

func undeliverable(Scale) string {
	return fmt.Sprintf("%s == 1\nor (%s == 0 and %s %s > 0)", metrics.NamePaused, metrics.NameReady, onCache, recordUndelivered)
}

func stale(s Scale) string {
	return fmt.Sprintf("%s > %v\nunless %s (%s == 0 or %s == 1)",
		metrics.NameStorageSilence, s.Seconds(silenceLimit), onCache, metrics.NameReady, metrics.NamePaused)
}

// Reads are refused also while storage is away or slow, which has alerts of its own.
func refused(Scale) string {
	return fmt.Sprintf("%s > %v\nunless %s (%s or %s > %v)", recordRefused, refusedShare, onCache, recordTrouble, recordSlow, slowShare)
}

// slowShare is the share of slow version requests from which on an alert fires.
const slowShare = 0.1

func slow(Scale) string {
	return fmt.Sprintf("%s > %v\nunless %s %s", recordSlow, slowShare, onCache, recordTrouble)
}
