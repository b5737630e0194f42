// SPDX-License-Identifier: Apache-2.0

// Package source makes a storage a ListerWatcher for client-go's Reflector. A Source resumes a
// broken storage watch where it broke, so that the Reflector relists only if it must.
//
// watch.go opens storage watches, stream.go forwards their events to the Reflector, and resume.go
// decides whether to resume a broken watch and whether storage can't deliver an event. list.go
// lists the whole state past the Reflector, and ahead.go keeps a watch open during that list.
// history.go reads earlier versions.
//
// Config.Tasks counts the goroutines, and its owner awaits them:
//   - stream.run, one for each watch of the Reflector. It ends with the Reflector's
//     context or Stop, or when the stream can't be resumed, after the storage's watch.
//   - one for each abandoned storage watch, which ends with that watch.
package source
