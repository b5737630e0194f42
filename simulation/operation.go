// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Operation is one step of a schedule, in the words of the scripts of package
// cacher. An Operation is plain data: it means the same in any schedule.
type Operation struct {
	Verb string
	// The field What names an object ("namespace/name"), a client, or a kind of
	// fault.
	What string
	// Words are the rest of the command line.
	Words []string
	// Writes are those of put, txn, create and update.
	Writes []Write
	// At is the resourceVersion that the operation names.
	At Version
	// N is a number of things, For a duration.
	N   int
	For time.Duration
	// Query is what watch, list and get ask for.
	Query Query
	// Setup is the cache's, of the operation start.
	Setup Setup
	// Together: the next operation comes without waiting until this one has come
	// to rest.
	Together bool
}

// Write writes an object with some attributes ("color=red"), or deletes it.
type Write struct {
	Name   string
	Attrs  []string
	Delete bool
}

func (w Write) String() string {
	if w.Delete {
		return "-" + w.Name
	}
	return strings.Join(append([]string{w.Name}, w.Attrs...), " ")
}

// Version is a resourceVersion, relative to that of the storage at the time, or
// absolute. The zero Version is none.
type Version struct {
	Set      bool
	Relative bool
	Value    int
}

// resolve returns the version's number, given the storage's. A relative version is at
// least 1.
func (v Version) resolve(now uint64) uint64 {
	if !v.Relative {
		return uint64(v.Value)
	}
	return uint64(max(1, int(now)+v.Value))
}

// text is the version as requests have it.
func (v Version) text(now uint64) string {
	if !v.Set {
		return ""
	}
	return strconv.FormatUint(v.resolve(now), 10)
}

// Query is what a watch or a read selects.
type Query struct {
	// In is a key prefix below the resource's, "" for everything, or the whole of
	// one key if One is set.
	In     string
	One    bool
	Labels string
	Fields string
	// Match is the resourceVersionMatch, and Limit the size of a page.
	Match string
	Limit int
	// From is the client whose page a list continues.
	From string
	// Bookmarks and Initial are those of a watch: "" (not said), "yes", "no".
	Bookmarks bool
	Initial   string
	// Silent: the client does not read.
	Silent bool
	// Encoded is the format that a list is encoded in, from kept bytes, if it is:
	// "json" or "protobuf".
	Encoded string
}

func (q Query) words() (out []string) {
	switch {
	case q.One:
		out = append(out, "at="+q.In)
	case q.In != "":
		out = append(out, "in="+q.In)
	}
	for _, pair := range [][2]string{{"labels", q.Labels}, {"fields", q.Fields}, {"match", q.Match}, {"continue", q.From}, {"initial", q.Initial}, {"encoded", q.Encoded}} {
		if pair[1] != "" {
			out = append(out, pair[0]+"="+pair[1])
		}
	}
	if q.Limit > 0 {
		out = append(out, fmt.Sprintf("limit=%d", q.Limit))
	}
	if q.Bookmarks {
		out = append(out, "bookmarks")
	}
	if q.Silent {
		out = append(out, "silent")
	}
	return out
}

// String is the operation as a line of a script. Versions are relative, as
// "now-2", until the driver knows them.
func (o Operation) String() string {
	at := ""
	if o.At.Set {
		at = strconv.Itoa(o.At.Value)
		if o.At.Relative {
			at = fmt.Sprintf("now%+d", o.At.Value)
		}
	}
	return o.line(at)
}

func (o Operation) line(at string) string {
	words := []string{o.Verb}
	add := func(more ...string) {
		words = append(words, slices.DeleteFunc(more, func(s string) bool { return s == "" })...)
	}
	add(o.What)
	add(o.Words...)
	for _, w := range o.Writes {
		add(w.String())
	}
	switch {
	case at == "":
	case o.Verb == "compact" || o.Verb == "restore" || o.Verb == "hold":
		add(at)
	default:
		add("rv=" + at)
	}
	if o.N > 0 {
		add(strconv.Itoa(o.N))
	}
	if o.For > 0 {
		if o.Verb == "elapse" {
			add(o.For.String())
		} else {
			add("timeout=" + o.For.String())
		}
	}
	add(o.Query.words()...)
	if o.Verb == "start" {
		add(o.Setup.words()...)
	}
	line := strings.Join(words, " ")
	if o.Together {
		line += " &"
	}
	return line
}

// Script is operations, one in each line.
func Script(operations []Operation) string {
	var b strings.Builder
	for _, o := range operations {
		b.WriteString(o.String() + "\n")
	}
	return b.String()
}

// Setup is how the cache is configured.
type Setup struct {
	Buffer                    int
	WindowBytes               int64
	History, Bookmarks        time.Duration
	Idle, Budget, Checks      time.Duration
	NoProgress, Lazy, NoStale bool
	GetFromStorage, Indexes   bool
	// Keep is how many bytes of lists and events are kept, 0 for the default.
	Keep int64
	// Recall: the storage says that it keeps its history.
	Recall bool
	// Rounds is how many events of a burst the dispatcher sends to a watcher in turn,
	// 0 if it sends each by itself.
	Rounds int
}

func (s Setup) words() (out []string) {
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"history", s.History}, {"bookmarks", s.Bookmarks}, {"idle", s.Idle}, {"budget", s.Budget}, {"checks", s.Checks}} {
		if d.d != 0 {
			out = append(out, d.name+"="+d.d.String())
		}
	}
	if s.Buffer != 0 {
		out = append(out, fmt.Sprintf("buffer=%d", s.Buffer))
	}
	if s.WindowBytes != 0 {
		out = append(out, fmt.Sprintf("window-bytes=%d", s.WindowBytes))
	}
	if s.Keep != 0 {
		out = append(out, fmt.Sprintf("keep=%d", s.Keep))
	}
	if s.Rounds != 0 {
		out = append(out, fmt.Sprintf("rounds=%d", s.Rounds))
	}
	for _, f := range []struct {
		name string
		set  bool
	}{{"no-progress", s.NoProgress}, {"lazy", s.Lazy}, {"no-stale-reads", s.NoStale}, {"get-from-storage", s.GetFromStorage}, {"indexes", s.Indexes}, {"recall", s.Recall}} {
		if f.set {
			out = append(out, f.name)
		}
	}
	return out
}
