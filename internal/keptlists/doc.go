// SPDX-License-Identifier: Apache-2.0

// Package keptlists answers lists from bytes encoded for earlier lists.
//
// The context of a LIST carries a request (requests.go) to the cache, which records the list's
// elements ([Encoder.Note]). The server's encoder, wrapped by [Encoder.Serializer], finds the
// record by the list. If the items are still those elements, it writes chunks (chunk.go), i.e. the
// joined serializations of about sixteen consecutive items. Boundaries depend on keys, so a changed
// object invalidates one chunk, and lists of everything, a namespace or a page share chunks.
//
// The server's encoder provides the frame around the items (template.go, frame.go) and missing
// items, in batches. We compare the first list of each format with the encoder's (assemble.go).
// After a difference, the encoder writes all lists of the format. It also writes other formats,
// short lists, changed items, and protobuf lists that share little with earlier ones.
//
// A list drops its items before it is written, and in JSON makes missing chunks while it is
// written, so a response to a slow client holds one batch. Responses encoded as a whole are bounded
// (answers.go).
//
// Clients that accept gzip get compressed chunks (gzip.go), if nothing between encoder and response
// changes the bytes (response.go).
//
// Lists as metadata and as Tables (representation.go, table.go) use chunks of metadata. Cells are
// encoded for each list; while they stay the same, the chunk keeps the Table's compressed rows.
//
// The encoder of custom resources is private to another module, so their items are inserted into
// the server's empty list (customresource.go, customresponse.go).
//
// Initial events of watches are kept as chunks (initial.go), compressed once for all watches
// (stream.go).
//
// Kept bytes hold no reference to elements, are limited in size, kept on the second request, and
// dropped after ten to twenty minutes without use.
//
// The package owns the locks Encoder.mu, Store.mu, Run.mu, Event.mu, chunk.compressing,
// format.proving, format.making and that of answers, and no goroutine.
package keptlists
