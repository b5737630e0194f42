// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	informers "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/informers/externalversions"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
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

// testEtcdRestart takes the server's etcd away for a while.
func testEtcdRestart(t *testing.T, s *apiserver, etcd *etcdserver.Server) {
	client := clientsetFor(t, s)
	create(t, client, "outage", "before", 3)
	since, err := client.FleetV1().Devices("outage").List(within(t), metav1.ListOptions{})
	require.NoError(t, err)
	w := openWatch(t, s, "/apis/fleet.example.com/v1/namespaces/outage/devices?watch=true&resourceVersion="+since.ResourceVersion)

	require.NoError(t, etcd.Stop(within(t)))
	any, err := client.FleetV1().Devices("outage").List(within(t), metav1.ListOptions{ResourceVersion: "0"})
	require.NoError(t, err, "a list of any version needs no etcd")
	require.Len(t, any.Items, 3)
	require.NoError(t, etcd.Restart(within(t)))

	var created *fleetv1.Device
	eventually(t, "nothing can be written after etcd's restart", func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		var err error
		created, err = client.FleetV1().Devices("outage").Create(ctx, device("outage", fmt.Sprintf("after-%d", time.Now().UnixNano()), "hh-1"), metav1.CreateOptions{})
		return err == nil, err
	})
	for metaOf(t, w.next(t)).UID != created.UID { // a create that timed out may have worked
	}
	now, err := client.FleetV1().Devices("outage").List(within(t), metav1.ListOptions{})
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(now.Items), 4)
}

// testInterrupt is Ctrl-C while a client watches.
func testInterrupt(t *testing.T, s *apiserver) {
	w := openWatch(t, s, devicesV1+"?watch=true&resourceVersion=0")
	w.next(t)
	require.Zero(t, s.interrupt(t), "the exit status of a server that was interrupted\n%s", &s.log)
	require.ErrorIs(t, w.end(t), io.EOF, "the watch was cut off")
	require.NotContains(t, s.log.String(), "DATA RACE")
}

// testSecondServer starts servers that can't run beside the one that does.
func testSecondServer(t *testing.T, s *apiserver, runDir string) {
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"run directory in use": {[]string{"--run-dir=" + runDir, "--secure-port=0"}, []string{"--run-dir", runDir}},
		"port in use":          {[]string{"--run-dir=" + filepath.Join(t.TempDir(), "run"), "--secure-port=" + s.port()}, []string{"--secure-port", s.port()}},
		"no etcd":              {[]string{"--run-dir=" + filepath.Join(t.TempDir(), "run"), "--secure-port=0", "--standalone", "--etcd-servers=http://127.0.0.1:1"}, []string{"--etcd-servers", "127.0.0.1:1"}},
		"not a loopback":       {[]string{"--run-dir=" + filepath.Join(t.TempDir(), "run"), "--secure-port=0", "--bind-address=0.0.0.0"}, []string{"--bind-address", "0.0.0.0"}},
	} {
		t.Run(name, func(t *testing.T) {
			other, _ := launch(t, c.args...)
			defer other.kill()
			require.Equal(t, 1, other.wait(t), other.log.String())
			lines := strings.Split(strings.TrimSpace(other.log.String()), "\n")
			for _, want := range c.want {
				require.Contains(t, lines[len(lines)-1], want)
			}
			require.Len(t, lines, 1, "more than one line is printed:\n%s", &other.log)
		})
	}
}
