// SPDX-License-Identifier: Apache-2.0

// Package tuning has the runs behind the plots of docs/tuning.md, and writes their
// results to bench/results/tuning.md, from which bench/plot draws:
//
//	CGO_ENABLED=0 go test -vet=off -count=1 ./bench/tuning -run TestFigures -rewrite && go run ./bench/plot
//
// A cache in the process, over a storage in memory, serves clients that are
// goroutines, in the virtual time of testing/synctest, so that hours take seconds and
// the outcome is the same each time: a test compares it with the page.
package tuning
