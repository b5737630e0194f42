// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-watchcache/watchcache/cacher/status"
)

const (
	defaultLimit = 20
	maxLimit     = 1000
	maxOffset    = 1 << 30 // more than any number of watchers
)

type query struct {
	resource string // "" is all
	watchers status.Query
	values   bool
}

// parseQuery parses the parameters. An error names the invalid parameter and its value.
func parseQuery(in url.Values) (query, error) {
	q := query{watchers: status.Query{Limit: defaultLimit}}
	for name, values := range in {
		value, must, ok := values[0], "", true
		switch name {
		case "format":
			must, ok = "one of json, html", value == "json" || value == "html"
		case "resource":
			q.resource = value
			must, ok = "the id of a cache", value != ""
		case "sort":
			q.watchers.Sort, q.watchers.Reverse = strings.CutPrefix(value, "-")
			must = "one of " + strings.Join(status.Orders(), ", ") + ", with a leading - for the reverse order"
			ok = slices.Contains(status.Orders(), q.watchers.Sort)
		case "limit":
			q.watchers.Limit, must, ok = number(value, maxLimit)
		case "offset":
			q.watchers.Offset, must, ok = number(value, maxOffset)
		case "values":
			q.values = value == "true"
			must, ok = "true or false", q.values || value == "false"
		case "timeout": // kubectl's --request-timeout, read by the server's deadline filter
		default:
			return query{}, fmt.Errorf("the parameter %q is none of format, resource, sort, limit, offset, values, timeout", name)
		}
		switch {
		case len(values) > 1:
			return query{}, fmt.Errorf("the parameter %q is given %d times", name, len(values))
		case !ok:
			return query{}, fmt.Errorf("%s is %q and must be %s", name, value, must)
		}
	}
	return q, nil
}

func number(value string, most int) (n int, must string, ok bool) {
	n, err := strconv.Atoi(value)
	return n, fmt.Sprintf("a number from 0 to %d", most), err == nil && n >= 0 && n <= most
}
