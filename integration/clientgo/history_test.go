// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/tools/cache"
)

// state is one state of an object: there since a revision, or gone since.
type state struct {
	revision int64
	absent   bool
	// value is what etcd had then.
	value []byte
}

// sentinel is a key that marks the end of a history. The key is nobody's.
const sentinel = "/clientgo/sentinel"

// revision is etcd's present revision: where a history may begin.
func (fx *fixture) revision(t *testing.T) int64 {
	t.Helper()
	put, err := fx.keys.Put(within(t), sentinel, "")
	require.NoError(t, err)
	return put.Header.Revision
}

// history gives all states that the namespace's devices have been in after a
// revision, by namespace/name, as etcd remembers them.
func (fx *fixture) history(t *testing.T, namespace string, after int64) map[string][]state {
	t.Helper()
	end := fx.revision(t)
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	states := map[string][]state{}
	for response := range fx.keys.Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(after+1)) {
		require.NoError(t, response.Err())
		for _, event := range response.Events {
			if event.Kv.ModRevision >= end {
				return states
			}
			name, ours := strings.CutPrefix(string(event.Kv.Key), devicesPrefix)
			if ours && strings.HasPrefix(name, namespace+"/") {
				s := state{revision: event.Kv.ModRevision, absent: event.Type == clientv3.EventTypeDelete, value: event.Kv.Value}
				states[name] = append(states[name], s)
			}
		}
	}
	require.FailNow(t, fmt.Sprintf("etcd's watch ended: %v", ctx.Err()))
	return nil
}

// requireSubsequence wants what a handler was told of each object to be a
// subsequence of the states that the object was in: nothing that never was, and
// nothing before what it came after. Resyncs tell no state.
func requireSubsequence(t *testing.T, history map[string][]state, told []notification) {
	t.Helper()
	position := map[string]int{}
	for _, n := range told {
		if n.resync() {
			continue
		}
		states := history[n.key]
		i := position[n.key]
		for i < len(states) && !matches(n, states[i]) {
			i++
		}
		if i == len(states) {
			require.FailNow(t, "a state that was not, or one that came before another that was told",
				"%s: %s of %s\ntold: %v\nstates: %s", n.key, n.kind, n.resourceVersion(), summary(told), timeline(states))
		}
		position[n.key] = i + 1
	}
}

// matches tells whether a notification is of that state.
func matches(n notification, s state) bool {
	if s.absent != (n.kind == toldDelete) {
		return false
	}
	if _, unknown := n.object.(cache.DeletedFinalStateUnknown); unknown {
		return true
	}
	return n.resourceVersion() == strconv.FormatInt(s.revision, 10)
}

func timeline(states []state) string {
	var b strings.Builder
	for _, s := range states {
		fmt.Fprintf(&b, " %d", s.revision)
		if s.absent {
			b.WriteString("(gone)")
		}
	}
	return b.String()
}
