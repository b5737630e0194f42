// SPDX-License-Identifier: Apache-2.0

// Package debug shows the watch caches of an API server at work: which client is slow,
// how far behind it is, and the cost. [Handler] serves that as JSON for programs and as a
// page for people, at one path.
//
// # Requests
//
// GET and HEAD only; a request changes nothing and wakes no cache that sleeps.
// JSON is the answer to ?format=json, or to an Accept header with application/json and
// neither text/html nor */*; else the answer is the page. The parameters below are for
// JSON. An invalid value is a 400, a Status of the API whose message names the parameter.
//
//	resource=  one cache, as its field "id" or "resource" names it, with details
//	sort=      the order of watchers, slowest first by default; a leading "-"
//	           turns it round: see status.Orders
//	limit=     how many watchers of each cache, 20 by default, 1,000 at most
//	offset=    how many watchers of each cache to pass over
//	values=    true: with keys, selectors' values and messages of errors, where
//	           the user may list the resource in all namespaces
//
// # Access
//
// The server's own authentication and authorization decide who sees the page: the
// non-resource URL /debug/watchcache. Each reader of the page sees the names of users,
// their user agents and addresses. Names and namespaces of objects, labels'
// values and messages of errors are left out unless they are asked for and the
// user may list the resource.
//
// The JSON types of this package are the schema. Fields may be added; a change
// of meaning changes [SchemaVersion].
package debug
