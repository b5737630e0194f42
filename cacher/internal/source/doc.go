// SPDX-License-Identifier: Apache-2.0

// Package source makes a storage a ListerWatcher for client-go's Reflector. A broken watch
// of the storage is resumed where it broke, so that the Reflector lists again only when
// it must.
//
// The path of an event: watch.go opens the storage's watches, stream.go passes
// their events on to the Reflector and opens the next one, resume.go decides
// whether a broken watch is worth resuming and whether the storage can't deliver an
// event, and ahead.go keeps a watch open while the Reflector lists. fill.go has the
// path of a whole state, listed or streamed, which goes past the Reflector.
//
// Source.mu guards one pointer. The goroutines are counted in Config.Tasks, whose owner
// awaits them:
//   - stream.run, one for each watch of the Reflector. It ends with the Reflector's
//     context or Stop, or when the stream can't be resumed, after the storage's watch.
//   - one for each watch of the storage that nobody reads any more, which ends with it.
package source
