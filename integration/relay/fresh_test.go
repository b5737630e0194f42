// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/integration/internal/judge"
)

var reads = flag.Int("reads", 1000, "how many reads of each upstream TestNoReadIsOld judges")

// writer writes devices upstream, in bursts with pauses between them: a proof is needed in
// a pause, and an event is one in a burst. All it has written is kept for the judge.
type writer struct {
	mu     sync.Mutex
	writes []judge.Write
}

func (w *writer) run(ctx context.Context, client *versioned.Clientset, seed uint64) {
	d := rand.New(rand.NewPCG(seed, 0))
	versions := map[string]int64{}
	for n := 0; ctx.Err() == nil; n++ {
		pause := time.Duration(d.IntN(20)) * time.Millisecond
		if d.IntN(20) == 0 {
			pause = time.Duration(d.IntN(2500)) * time.Millisecond
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		made := device(fmt.Sprintf("ns-%d/d-%d-%d", d.IntN(3), seed, d.IntN(10)))
		made.Spec.Model = fmt.Sprintf("write-%d-%d", seed, n)
		key := judge.KeyOf(made)
		devices := client.FleetV1().Devices(made.Namespace)
		write := judge.Write{Key: key, Content: made.Spec.Model}
		var err error
		var written *fleetv1.Device
		switch {
		case versions[key] == 0:
			written, err = devices.Create(ctx, made, metav1.CreateOptions{})
		case d.IntN(4) == 0:
			write = judge.Write{Key: key, Deletes: true, RV: versions[key]}
			err = devices.Delete(ctx, made.Name, metav1.DeleteOptions{})
		default:
			made.ResourceVersion = fmt.Sprint(versions[key])
			written, err = devices.Update(ctx, made, metav1.UpdateOptions{})
		}
		if err == nil {
			write.Done = time.Now()
			if versions[key] = 0; written != nil {
				write.RV = judge.Version(written.ResourceVersion)
				versions[key] = write.RV
			}
		}
		w.mu.Lock()
		w.writes = append(w.writes, write)
		w.mu.Unlock()
	}
}

// read sends a consistent read of some kind through the relay.
func read(ctx context.Context, client *versioned.Clientset, d *rand.Rand) (judge.Read, error) {
	answer := judge.Read{Begun: time.Now(), Fresh: true}
	devices := client.FleetV1().Devices("")
	switch d.IntN(4) {
	case 0:
		key := fmt.Sprintf("ns-%d/d-%d-%d", d.IntN(3), d.IntN(2), d.IntN(10))
		answer.Kind, answer.Key, answer.Items = "GET", key, map[string]judge.Item{}
		namespace, name, _ := strings.Cut(key, "/")
		got, err := client.FleetV1().Devices(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return answer, err
		}
		item := judge.ItemOf(got)
		answer.RV, answer.Items[key] = item.RV, item
	case 1:
		answer.Kind, answer.Items = "watch with the state", map[string]judge.Item{}
		true := true
		w, err := devices.Watch(ctx, metav1.ListOptions{SendInitialEvents: &true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true})
		if err != nil {
			return answer, err
		}
		defer w.Stop()
		for event := range w.ResultChan() {
			d, ok := event.Object.(*fleetv1.Device)
			if !ok {
				return answer, fmt.Errorf("%v", event.Object)
			}
			if event.Type == watch.Bookmark {
				answer.RV = judge.Version(d.ResourceVersion)
				return answer, nil
			}
			answer.Items[judge.KeyOf(d)] = judge.ItemOf(d)
		}
		return answer, fmt.Errorf("the watch ended")
	default:
		answer.Kind = "LIST"
		list, err := devices.List(ctx, metav1.ListOptions{})
		if err != nil {
			return answer, err
		}
		answer.RV, answer.Items = judge.Version(list.ResourceVersion), judge.ItemsOf(list)
	}
	return answer, nil
}

// No consistent read of a relay is older than a write that was acknowledged before the read
// began, and each is a state that etcd had.
func TestNoReadIsOld(t *testing.T) {
	for _, cache := range []string{apiserver.Shipped, apiserver.Ours} {
		t.Run(cache, func(t *testing.T) {
			noLeaks(t)
			u := startUpstream(t, cache)
			r := u.startRelay(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var writing, reading sync.WaitGroup
			w := &writer{}
			for seed := range uint64(2) {
				writing.Go(func() { w.run(ctx, u.process.Devices(t), seed) })
			}
			var mu sync.Mutex
			var answers []judge.Read
			var failed error
			failures, kinds := 0, map[string]int{}
			var begun atomic.Int64
			for n := range 16 {
				client := r.devices(t, "alice")
				d := rand.New(rand.NewPCG(uint64(n), 1))
				reading.Go(func() {
					for begun.Add(1) <= int64(*reads) {
						answer, err := read(ctx, client, d)
						mu.Lock()
						if err == nil {
							answers = append(answers, answer)
							kinds[answer.Kind]++
						} else if !apierrors.IsNotFound(err) {
							failures++
							failed = err
						}
						mu.Unlock()
					}
				})
			}
			reading.Wait()
			cancel()
			writing.Wait()
			h := judge.NewHistory()
			_, err := h.Extend(t.Context(), u.etcd)
			require.NoError(t, err)
			require.Empty(t, judge.Reads(h, w.writes, answers))
			require.LessOrEqual(t, failures, len(answers)/100, "the last one: %v", failed)
			_, metrics := r.ask(t, "alice", "/metrics")
			t.Logf("%d reads (%v), %d failures, %d changes: none is old; %d reads went upstream because nothing was proved",
				len(answers), kinds, failures, h.Changes(), value(metrics, "watchcache_upstream_unproven_reads_total"))
		})
	}
}

// value returns the value of the metric with the name, whatever its labels are.
func value(metrics, name string) (n int) {
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, name) {
			_, _ = fmt.Sscan(line[strings.LastIndex(line, " "):], &n)
		}
	}
	return n
}
