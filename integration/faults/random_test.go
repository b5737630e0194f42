// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/integration/internal/judge"
)

// Environment variables of the long form, which make faults sets.
const (
	durationVariable = "FAULTS_DURATION"
	seedVariable     = "FAULTS_SEED"
)

// longOnly skips a test of the long form, and says how to run it; otherwise it
// returns how long the test may go on, and the seed of its choices.
func longOnly(t *testing.T) (time.Duration, uint64) {
	t.Helper()
	value := os.Getenv(durationVariable)
	if value == "" {
		fmt.Printf("%s: skipped, it is a part of the long form: make faults DURATION=30m\n", t.Name())
		t.Skipf("%s is not set", durationVariable)
	}
	duration, err := time.ParseDuration(value)
	require.NoError(t, err, durationVariable)
	seed := uint64(time.Now().UnixNano())
	if value := os.Getenv(seedVariable); value != "" {
		seed, err = strconv.ParseUint(value, 10, 64)
		require.NoError(t, err, seedVariable)
	}
	return duration, seed
}

// TestRandomFaults runs random faults, on any member, for half of the time under
// our cache and as many under the shipped one.
func TestRandomFaults(t *testing.T) {
	duration, seed := longOnly(t)
	noLeaks(t)
	fmt.Printf("again with: make faults DURATION=%v SEED=%d\n", duration, seed)
	schedule := shuffled(rand.New(rand.NewPCG(seed, 0)), 10_000)
	var done table
	for _, cache := range []string{apiserver.Ours, apiserver.Shipped} {
		t.Run(cache, func(t *testing.T) {
			trial := newTrial(t, cache)
			trial.random = rand.New(rand.NewPCG(seed, 1))
			end := time.Now().Add(duration / 2)
			for i, f := range schedule {
				if cache == apiserver.Ours && time.Now().After(end) {
					schedule = schedule[:i]
					break
				}
				t.Run(fmt.Sprintf("%d %s", i, f.name), func(t *testing.T) { done.add(t, trial, cache, i, f) })
			}
		})
	}
	done.print()
}

// TestRestoredBackup puts an older state of all members back. The writes since
// then are undone, and the cache must find that out.
func TestRestoredBackup(t *testing.T) {
	longOnly(t)
	noLeaks(t)
	for _, cache := range []string{apiserver.Ours, apiserver.Shipped} {
		t.Run(cache, func(t *testing.T) {
			tr := newTrial(t, cache)
			backup := t.TempDir()
			resume := tr.traffic.writer.pause()
			tr.replaceData(func(data string) error {
				return os.CopyFS(filepath.Join(backup, filepath.Base(data)), os.DirFS(data))
			})
			resume()
			hold(tail)
			tr.traffic.writer.pause()
			tr.replaceData(func(data string) error {
				if err := os.RemoveAll(data); err != nil {
					return err
				}
				return os.CopyFS(data, os.DirFS(filepath.Join(backup, filepath.Base(data))))
			})
			restored := time.Now()
			truth := judge.NewHistory()
			_, err := truth.Extend(tr.within(), tr.judge)
			require.NoError(t, err)
			client := tr.server.Devices(t)
			// The shipped cacher may take longer than anybody waits; that is said.
			isRight := func() bool {
				list, err := client.FleetV1().Devices("").List(tr.within(), metav1.ListOptions{ResourceVersion: "0"})
				if err != nil {
					return false
				}
				return maps.Equal(judge.ItemsOf(list), truth.StateAt(judge.Selection{}, truth.Rev()))
			}
			if cache == apiserver.Shipped {
				end := restored.Add(patience)
				poll(t, "", func() bool { return isRight() || time.Now().After(end.Add(-tail)) })
				if !isRight() {
					fmt.Printf("backup restored, %s: still another state after %v\n", cache, patience)
					return
				}
			} else {
				poll(t, "the server does not show the restored state", isRight)
			}
			fmt.Printf("backup restored, %s: the right state after %v\n", cache, time.Since(restored).Round(time.Millisecond))
		})
	}
}

// replaceData stops all members, calls change for the data of each, and starts
// them.
func (tr *trial) replaceData(change func(data string) error) {
	tr.t.Helper()
	for _, m := range tr.cluster.Members() {
		tr.must(m.Stop(tr.within()))
	}
	for _, m := range tr.cluster.Members() {
		tr.must(change(m.Data()))
	}
	tr.must(tr.cluster.StartAll(tr.within()))
}
