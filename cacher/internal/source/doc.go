// SPDX-License-Identifier: Apache-2.0

// Package source makes a storage a ListerWatcher for client-go's Reflector. A broken watch
// of the storage is resumed where it broke, so that the Reflector lists again only when
// it must.
//
// The way of an event: watch.go opens the storage's watches, stream.go passes
// their events on to the Reflector and opens the next one, resume.go decides
// whether a broken watch is worth resuming and whether the storage can't deliver an
// event, and ahead.go keeps a watch open while the Reflector lists. fill.go has the way of a whole
// state, listed or streamed, which goes past the Reflector.
//
// The package owns Source.mu, which guards the watch that was opened before a
// list and the last whole state, is held for a pointer, and is never held while
// another lock is taken or a storage is called.
//
// Its goroutines are counted in Config.Tasks, whose owner awaits them:
//   - one for each watch of the Reflector (stream.run), started by
//     Source.WatchWithContext. The goroutine ends with the Reflector's context
//     or Stop, and when the stream can't be resumed; not before the storage's
//     watch has ended.
//   - one for each watch of the storage that nobody reads any more: at most eight
//     that hang, and one of a list that came to nothing, of the history or of a
//     judgement. The goroutine ends with the storage's watch.
package source
