// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	informers "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/informers/externalversions"
)

// testRestart stops the server as Ctrl-C does, starts it again on its data and
// its port, and expects that nothing is lost: not an object, and not an
// informer that was connected all along. testRestart returns the new server,
// which ends with the outer test.
func testRestart(outer, t *testing.T, s *apiserver, runDir string, args ...string) *apiserver {
	client := clientsetFor(t, s)
	kept := create(t, client, "restarted", "kept", 5)
	before, err := client.FleetV1().Devices("").List(within(t), metav1.ListOptions{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("restarted"))
	defer factory.Shutdown()
	defer cancel()
	lister := factory.Fleet().V1().Devices().Lister()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(within(t).Done())

	require.Zero(t, s.interrupt(t), "the exit status of a server that was interrupted\n%s", &s.log)
	next := startServer(outer, runDir, append(args, "--secure-port="+s.port())...)

	after, err := clientsetFor(t, next).FleetV1().Devices("").List(within(t), metav1.ListOptions{})
	require.NoError(t, err)
	require.Equal(t, before.Items, after.Items)
	// A client that was away resumes from before the start, which the shipped cacher
	// does not know.
	path := "/apis/fleet.example.com/v1/namespaces/restarted/devices?watch=true&resourceVersion="
	if next.shipped {
		require.Contains(t, get(t, next.client(t), next.url+path+kept[3].ResourceVersion).body, `"reason":"Expired"`)
		path += after.ResourceVersion
	} else {
		path += kept[3].ResourceVersion
	}
	resumed := openWatch(t, next, path)
	if !next.shipped {
		require.Equal(t, kept[4].Name, metaOf(t, resumed.next(t)).Name)
	}
	late := create(t, clientsetFor(t, next), "restarted", "late", 1)[0]
	require.Equal(t, late.Name, metaOf(t, resumed.next(t)).Name)
	eventually(t, "the informer does not find the new server", func(context.Context) (bool, error) {
		got, err := lister.List(labels.Everything())
		return len(got) == 6 && has(got, late), err
	})
	return next
}

func has(all []*fleetv1.Device, one *fleetv1.Device) bool {
	for _, d := range all {
		if d.UID == one.UID && d.ResourceVersion == one.ResourceVersion {
			return true
		}
	}
	return false
}

// testInterrupt is Ctrl-C while a client watches.
func testInterrupt(t *testing.T, s *apiserver) {
	w := openWatch(t, s, devicesV1+"?watch=true&resourceVersion=0")
	w.next(t)
	require.Zero(t, s.interrupt(t), "the exit status of a server that was interrupted\n%s", &s.log)
	require.ErrorIs(t, w.end(t), io.EOF, "the watch was cut off")
	require.NotContains(t, s.log.String(), "DATA RACE")
}
