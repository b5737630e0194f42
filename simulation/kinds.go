// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"slices"
	"strings"
)

// kinds are all kinds of operations that coverage tells apart.
var kinds = slices.Concat(
	[]string{"put", "remove", "txn", "fill", "touch", "create", "update", "delete", "elapse", "clock forward", "clock back", "progress", "compact", "restore", "skip", "corrupt", "poison", "start", "stop", "share", "unshare"},
	[]string{"hold client", "release client", "take", "end", "cancel", "cancel read"},
	[]string{"hold events", "hold revision", "hold request", "release fault", "fail request", "hang", "hang stale"},
	[]string{"break", "break expired", "break with an error", "break always"},
	withVersions("watch", "watch with state", "watch without state", "get", "list"),
	[]string{"list exactly", "list page", "list next page", "list encoded"},
)

// versions are the kinds of resourceVersions that requests name.
var versions = []string{"", " any", " now", " old", " to come"}

func withVersions(requests ...string) (out []string) {
	for _, request := range requests {
		for _, version := range versions {
			out = append(out, request+version)
		}
	}
	return out
}

// kind is the kind of an operation, one of kinds.
func (o Operation) kind() string {
	switch o.Verb {
	case "hold", "release":
		return o.Verb + " " + o.target()
	case "cancel":
		if strings.HasPrefix(o.What, "r") {
			return "cancel read"
		}
	case "clock":
		if strings.HasPrefix(o.What, "-") {
			return "clock back"
		}
		return "clock forward"
	case "fail":
		return "fail request"
	case "hang":
		if len(o.Words) > 0 {
			return "hang stale"
		}
	case "break":
		switch {
		case slices.Contains(o.Words, "always"):
			return "break always"
		case slices.Contains(o.Words, "expired"):
			return "break expired"
		case len(o.Words) > 0:
			return "break with an error"
		}
	case "watch":
		switch o.Query.Initial {
		case "yes":
			return "watch with state" + o.At.kind()
		case "no":
			return "watch without state" + o.At.kind()
		}
		return "watch" + o.At.kind()
	case "list":
		switch {
		case o.Query.Encoded != "":
			return "list encoded"
		case o.Query.From != "":
			return "list next page"
		case o.Query.Match == "Exact":
			return "list exactly"
		case o.Query.Limit > 0:
			return "list page"
		}
		return "list" + o.At.kind()
	case "get":
		return "get" + o.At.kind()
	}
	return o.Verb
}

// target is what is held or released. Clients have names with a number.
func (o Operation) target() string {
	client := strings.ContainsAny(o.What, "0123456789")
	switch {
	case client:
		return "client"
	case o.Verb == "release":
		return "fault"
	case isRequest(o.What):
		return "request"
	}
	return o.What
}

func (v Version) kind() string {
	switch {
	case !v.Set:
		return versions[0]
	case !v.Relative && v.Value == 0:
		return versions[1]
	case v.Value == 0:
		return versions[2]
	case v.Value < 0 || !v.Relative:
		return versions[3]
	}
	return versions[4]
}
