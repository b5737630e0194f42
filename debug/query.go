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
	// maxOffset is beyond any number of watchers.
	maxOffset = 1 << 30
)

// query holds the parameters of a request for JSON.
type query struct {
	resource string // "" is all
	watchers status.Query
	values   bool
}

// formats are the values of the parameter format.
var formats = []string{"json", "html"}

// parameters are the valid parameters of a request. The timeout is kubectl's
// --request-timeout: the server's own filter of deadlines reads it.
var parameters = []string{"format", "resource", "sort", "limit", "offset", "values", "timeout"}

// parseQuery reads the parameters of a request. The error names the invalid one and its
// value.
func parseQuery(in url.Values) (query, error) {
	for name, values := range in {
		switch {
		case !slices.Contains(parameters, name):
			return query{}, fmt.Errorf("the parameter %q is none of %s", name, strings.Join(parameters, ", "))
		case len(values) > 1:
			return query{}, fmt.Errorf("the parameter %q is given %d times", name, len(values))
		}
	}
	q := query{resource: in.Get("resource")}
	q.watchers.Limit = defaultLimit
	if format := in.Get("format"); in.Has("format") && !slices.Contains(formats, format) {
		return query{}, fmt.Errorf("format is %q and must be one of %s", format, strings.Join(formats, ", "))
	}
	if in.Has("resource") && q.resource == "" {
		return query{}, fmt.Errorf("resource is empty")
	}
	if in.Has("sort") {
		name, reverse := strings.CutPrefix(in.Get("sort"), "-")
		if !slices.Contains(status.Orders(), name) {
			return query{}, fmt.Errorf("sort is %q and must be one of %s, with a leading - for the reverse order", in.Get("sort"), strings.Join(status.Orders(), ", "))
		}
		q.watchers.Sort, q.watchers.Reverse = name, reverse
	}
	for _, number := range []struct {
		name string
		most int
		to   *int
	}{{"limit", maxLimit, &q.watchers.Limit}, {"offset", maxOffset, &q.watchers.Offset}} {
		if !in.Has(number.name) {
			continue
		}
		n, err := strconv.Atoi(in.Get(number.name))
		if err != nil || n < 0 || n > number.most {
			return query{}, fmt.Errorf("%s is %q and must be a number from 0 to %d", number.name, in.Get(number.name), number.most)
		}
		*number.to = n
	}
	switch values := in.Get("values"); {
	case values == "true":
		q.values = true
	case in.Has("values") && values != "false":
		return query{}, fmt.Errorf("values is %q and must be true or false", values)
	}
	return q, nil
}
