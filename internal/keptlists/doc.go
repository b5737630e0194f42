// SPDX-License-Identifier: Apache-2.0

// Package keptlists answers lists from bytes encoded for earlier lists.
//
// The context of a LIST carries a request (requests.go) to the cache, which records the elements of
// the list ([Encoder.Note]). The server's encoder, wrapped by [Encoder.Serializer], looks up the
// record by the list. If the items are still those elements, it writes chunks (chunk.go), i.e. the
// joined serializations of about sixteen consecutive items. Boundaries depend on keys, so a changed
// object invalidates one chunk, and all lists share chunks, whether of everything, a namespace or a
// page.
//
// The server's encoder provides the frame around the items (template.go, frame.go) and missing
// items, in batches. We compare the first list of each format with the encoder's (assemble.go). If
// it differs, the encoder writes all lists of this format. It also writes other formats, short
// lists, changed items, and protobuf lists that share little with earlier ones. In JSON, missing
// chunks are made while the list is written, once for all lists that need them.
//
// A list drops its items before it is written, so a response to a slow client holds one batch.
// Responses encoded as a whole are bounded (answers.go).
//
// Clients that accept gzip get chunks kept compressed (gzip.go), if nothing between encoder and
// response changes the bytes (response.go).
//
// Lists as metadata and as Tables (representation.go, table.go) use chunks of metadata; cells are
// encoded for each list. A chunk of metadata also keeps the compressed rows of a Table while the
// cells stay the same.
//
// The encoder of custom resources is private to another module. Their items are inserted into the
// empty list that the server writes (customresource.go, customresponse.go).
//
// Initial events of watches are kept as chunks (initial.go), compressed once for all watches
// (stream.go).
//
// Kept bytes hold no reference to elements and are limited in size. They are kept on the second
// request and dropped after ten to twenty minutes without use.
//
// The package owns the locks Encoder.mu, Store.mu, Run.mu, Event.mu, chunk.compressing,
// format.proving, format.making and that of answers, and no goroutine.
package keptlists
