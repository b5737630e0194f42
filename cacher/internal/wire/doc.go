// SPDX-License-Identifier: Apache-2.0

// Package wire answers lists from bytes that were made for earlier lists.
//
// A cache that fills a list notes which elements the list was made of
// ([Listings.Note]). The encoder of a server, wrapped by [Listings.Serializer],
// finds the note when it is given the list. If the list's items still are what
// the cache put in, the encoder writes chunks: the joined serializations of some
// twenty consecutive items. Chunks begin at keys that the keys themselves decide
// (cut.go), so that a change of one object makes one chunk stale, whatever was
// listed: everything, a namespace, a page.
//
// The frame of a list, which is everything around its items, is learnt from the
// server's own encoder with each list (frame.go): nothing here knows how a list
// begins, or how versions are converted. Items that are missing are encoded many
// at once, as one list, and taken apart (learner.go, cutter.go). The first list of
// each format is compared with what the server's own encoder makes of it; a format
// that differs is left alone for good. Everything else that does not fit is left
// to the server's encoder: other formats, short lists, items that a registry has
// changed, lists that hardly share anything with earlier ones.
//
// For clients that accept gzip, chunks are kept compressed as well (deflate.go),
// and lists are put together of that (member.go), if the response takes them
// (response.go).
//
// The initial events of watches are kept as chunks too (initial.go). The response to a
// watch collects them, and is compressed of what was compressed for other watches
// (stream.go, streammember.go, events.go).
//
// A list that is wanted in another form, as metadata or as a Table, is written in
// that form by the encoder of the list (forms.go, table.go): metadata comes from
// chunks, and cells of Tables are encoded for each list. For clients that accept
// gzip, rows are kept compressed as long as their cells stay the same (rows.go).
//
// Of a list for which there is no room, the chunks that are missing are made while it
// is written (rest.go).
//
// Kept bytes hold no element in memory, have a budget (package bytebudget), are
// kept when they are asked for a second time, and are dropped when they were
// not used for ten minutes.
//
// Lists of custom resources, whose encoder is private to another module, are put
// into what the server writes of them without items, or into a Table of which it
// writes the cells (answer.go, answering.go, answeritems.go, answertable.go).
//
// The package owns the locks Listings.mu, Store.mu, Answer.mu, Run.mu, Event.mu and
// chunk.compressing, and no goroutine.
package wire
