// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// TestAcknowledgedCreationIsLost: when the database refuses an insertion, as PostgreSQL does
// when it has too many clients, kine acknowledges the creation. LogStructured.Create then
// looks for the key, finds none, and has dropped the error.
func TestAcknowledgedCreationIsLost(t *testing.T) {
	t.Parallel()
	postgres.started(t)
	f := newFixture(t, startKine(t, &postgres), noProgress)
	database, err := sql.Open("pgx", f.kine.config.Endpoint) // kine registers the driver
	require.NoError(t, err)
	defer func() { require.NoError(t, database.Close()) }()
	_, err = database.ExecContext(f.ctx, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON kine FOR EACH ROW WHEN (NEW.name = '/race/refused') EXECUTE FUNCTION refuse()`)
	require.NoError(t, err)
	_, err = create(f.ctx, f.client(), "/race/refused")
	require.NoError(t, err, "kine has changed: remove the row in docs/adopting.md")
	got, err := f.client().Get(f.ctx, "/race/refused")
	require.NoError(t, err)
	require.Empty(t, got.Kvs)
}

// TestWriteTimes logs how long writes take on etcd and on kine, for the table in
// docs/adopting.md. Run it with -durable.
func TestWriteTimes(t *testing.T) {
	t.Run("etcd", func(t *testing.T) {
		server, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, server.Close()) })
		backend, err := etcd3.Open(t.Context(), etcd3.Config{Endpoints: server.Endpoints(), Prefix: keys})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, backend.Close()) })
		timeWrites(t, backend)
	})
	onEach(t, func(t *testing.T, db database) { timeWrites(t, open(t, t.Context(), startKine(t, db))) })
}

func timeWrites(t *testing.T, backend *etcd3.Backend) {
	s := pods.raw(t, backend)
	for _, clients := range []int{1, 16} {
		perClient := 320 / clients
		var line []string
		for _, kind := range []struct {
			name  string
			write func(ctx context.Context, key, name string) error
		}{
			{"create", func(ctx context.Context, key, name string) error {
				return s.Create(ctx, key, poddata.Pod(name), &example.Pod{}, 0)
			}},
			{"update", func(ctx context.Context, key, _ string) error {
				return s.GuaranteedUpdate(ctx, key, &example.Pod{}, false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
					obj.(*example.Pod).Labels = map[string]string{"updated": "yes"}
					return obj, nil
				}), nil)
			}},
			{"delete", func(ctx context.Context, key, _ string) error {
				return s.Delete(ctx, key, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
			}},
		} {
			var group errgroup.Group
			var waited atomic.Int64
			began := time.Now()
			for c := range clients {
				group.Go(func() error {
					for i := range perClient {
						name, start := fmt.Sprintf("ns/%d-%d-%d", clients, c, i), time.Now()
						if err := kind.write(t.Context(), pods.prefix+name, name); err != nil {
							return fmt.Errorf("%s of %s: %w", kind.name, name, err)
						}
						waited.Add(int64(time.Since(start)))
					}
					return nil
				})
			}
			require.NoError(t, group.Wait())
			n := clients * perClient
			line = append(line, fmt.Sprintf("%s %.2f ms, %.0f/s", kind.name, float64(waited.Load())/1e6/float64(n), float64(n)/time.Since(began).Seconds()))
		}
		t.Logf("%d clients: %s", clients, strings.Join(line, "; "))
	}
}
