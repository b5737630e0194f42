// SPDX-License-Identifier: Apache-2.0

// Package source makes a storage a ListerWatcher for client-go's Reflector. A Source
// resumes a broken storage watch where it broke, so that the Reflector lists again only
// if it must.
//
// An event passes through these files: watch.go opens the storage's watches, stream.go
// forwards their events to the Reflector and opens the next watch, and resume.go decides
// whether a broken watch is worth resuming and whether storage can't deliver an event.
// list.go lists the whole state, which bypasses the Reflector, and ahead.go keeps a watch
// open during that list. history.go reads earlier versions.
//
// Config.Tasks counts the goroutines, and its owner awaits them:
//   - stream.run, one for each watch of the Reflector. It ends with the Reflector's
//     context or Stop, or when the stream can't be resumed, after the storage's watch.
//   - one for each abandoned storage watch, which ends with that watch.
package source
