// SPDX-License-Identifier: Apache-2.0

// Package keptlists answers lists from bytes that were made for earlier lists.
//
// The context of a LIST carries a request (requests.go) to the cache, which records the
// elements that it has filled the list with ([Encoder.Note]). The server's encoder,
// wrapped by [Encoder.Serializer], finds the record by the list. If the items are still
// those elements, it writes chunks (chunk.go): the joined serializations of some sixteen
// consecutive items. Keys decide where chunks begin, so one changed object makes one chunk
// stale, whatever was listed: everything, a namespace, a page.
//
// The frame of a list, everything around its items, comes from the server's own encoder
// (template.go, frame.go), which also encodes missing items, many at once. The first list
// of each format is compared with that of the server's encoder (assemble.go); a format that
// differs is left to it for good, like other formats, short lists, changed items, and
// lists in protobuf that hardly share anything with earlier ones. In JSON, chunks that are
// missing are made while the list is written, once for all lists that need them.
//
// A list about to be written drops its items, so that an answer that nobody reads holds one
// batch. Answers that the server encodes as a whole are bounded (answers.go).
//
// Clients that accept gzip get chunks that are kept compressed (gzip.go), if the
// response leads to the encoder's bytes unchanged (response.go).
//
// The encoder also writes lists as metadata and as Tables (representation.go,
// table.go): metadata comes from chunks, and cells are encoded for each list. A chunk of
// metadata also keeps the compressed rows of a Table, for as long as cells stay the same.
//
// Lists of custom resources, whose encoder is private to another module, are put into
// the list that the server writes without items (customresource.go, customresponse.go).
//
// The initial events of watches are kept as chunks as well (initial.go), and compressed
// once for all watches (stream.go).
//
// Kept bytes hold no element in memory, have a limit, are kept
// when they are requested for a second time, and are dropped after ten to twenty minutes
// without use.
//
// The package owns the locks Encoder.mu, Store.mu, Run.mu, Event.mu, chunk.compressing,
// format.proving, format.making and that of answers, and no goroutine.
package keptlists
