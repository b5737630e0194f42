// SPDX-License-Identifier: Apache-2.0

// Package debug shows the watch caches of an API server at work, e.g. which client is slow, how far
// behind it is, and the cost. [Handler] serves JSON for programs and a page for people at one path.
//
// # Requests
//
// Only GET and HEAD are allowed; a request changes nothing and wakes no cache. The response is JSON
// if the request has ?format=json, or accepts application/json but neither text/html nor */*.
// Otherwise it is the page. The following parameters are for JSON. An invalid value returns 400
// with a Status that names the parameter.
//
//	resource=  one cache, by its field "id" or "resource", with details
//	sort=      the order of watchers, see status.Orders, slowest first by default;
//	           a leading "-" reverses it
//	limit=     the number of watchers per cache, 20 by default, at most 1,000
//	offset=    the number of watchers to skip per cache
//	values=    true: include keys, values of selectors and error messages, if
//	           the user may list the resource in all namespaces
//
// # Access
//
// The server's authentication and authorization for the non-resource URL /debug/watchcache decide
// who sees the page, including users' names, user agents and addresses. Names and namespaces of
// objects, values of labels and error messages are only included on request, for users who may list
// the resource.
//
// The JSON types of this package are the schema. Fields may be added; a change of meaning changes
// [SchemaVersion].
package debug
