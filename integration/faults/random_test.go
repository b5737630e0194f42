// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/integration/internal/judge"
	"github.com/kube-watchcache/watchcache/integration/internal/longform"
)

// long is the long form.
const long = longform.Form("faults")

// TestRandomFaults runs random faults, on any member, for half of the time under
// our cache and as many under the shipped one.
func TestRandomFaults(t *testing.T) {
	asked := long.Only(t)
	noLeaks(t)
	fmt.Printf("again with: %s\n", asked.Again)
	schedule := shuffled(rand.New(rand.NewPCG(asked.Seed, 0)), 10_000)
	var done table
	for _, cache := range []string{apiserver.Ours, apiserver.Shipped} {
		t.Run(cache, func(t *testing.T) {
			trial := newTrial(t, cache)
			trial.random = rand.New(rand.NewPCG(asked.Seed, 1))
			end := time.Now().Add(asked.Duration / 2)
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
	long.Only(t)
	noLeaks(t)
	for _, cache := range []string{apiserver.Ours, apiserver.Shipped} {
		t.Run(cache, func(t *testing.T) {
			tr := newTrial(t, cache)
			backup := t.TempDir()
			replaceData := func(change func(string) error) {
				t.Helper()
				tr.must(tr.cluster.ReplaceData(tr.within(), change))
			}
			resume := tr.traffic.writer.pause()
			replaceData(func(data string) error {
				return os.CopyFS(filepath.Join(backup, filepath.Base(data)), os.DirFS(data))
			})
			resume()
			hold(tail)
			tr.traffic.writer.pause()
			replaceData(func(data string) error {
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
