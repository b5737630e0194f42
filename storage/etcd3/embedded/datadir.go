// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"
)

// ErrDirInUse is wrapped by Start's error if another server, in this process or another, uses the
// data directory.
var ErrDirInUse = errors.New("another etcd server uses it")

// dbLockTimeout bounds the wait for the database's lock, which an ending server may still hold.
const dbLockTimeout = 300 * time.Millisecond

// dataDir is a checked data directory, locked for this server.
type dataDir struct {
	path string
	lock *os.File

	// created are the directories made by this start, outermost first.
	created []string
	// fresh is true if the directory contained no member before this start.
	fresh bool
}

// openDataDir creates the directory if needed, locks it, and checks that etcd can use its files.
// etcd itself would end the process for most problems with them, or wait for a lock without end. On
// error, openDataDir undoes its changes.
func openDataDir(path string) (*dataDir, error) {
	d := &dataDir{path: path}
	if err := d.open(); err != nil {
		d.discard()
		return nil, fmt.Errorf("embedded etcd: data directory %q: %w", path, withoutPath(err))
	}
	return d, nil
}

func (d *dataDir) open() error {
	if err := d.create(); err != nil {
		return err
	}
	lock, err := lockDir(d.path)
	if err != nil {
		return err
	}
	d.lock = lock
	_, err = os.Stat(d.member())
	d.fresh = errors.Is(err, os.ErrNotExist)
	haveLog := wal.Exist(d.wal())
	if !d.fresh {
		// First, to find out whether another server uses the directory.
		if err := probeDatabase(filepath.Join(d.snap(), "db"), haveLog); err != nil {
			return err
		}
	}
	for _, dir := range []string{d.path, d.member(), d.snap(), d.wal()} {
		if err := checkWritable(dir); err != nil && (dir == d.path || !errors.Is(err, os.ErrNotExist)) {
			return err
		}
	}
	if !haveLog {
		return nil
	}
	return probeLog(d.wal())
}

func (d *dataDir) member() string { return filepath.Join(d.path, "member") }
func (d *dataDir) snap() string   { return filepath.Join(d.member(), "snap") }
func (d *dataDir) wal() string    { return filepath.Join(d.member(), "wal") }

func (d *dataDir) create() error {
	var missing []string
	for dir := d.path; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) || dir == filepath.Dir(dir) {
			break
		}
		missing = append(missing, dir)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := os.Mkdir(missing[i], 0o700); err == nil {
			d.created = append(d.created, missing[i])
		} else if !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	info, err := os.Stat(d.path)
	if err == nil && !info.IsDir() {
		return errors.New("is not a directory")
	}
	return err
}

// release releases the lock and keeps the data. Do not use d after it.
func (d *dataDir) release() {
	if d.lock != nil {
		_ = d.lock.Close()
		d.lock = nil
	}
}

// discard is release for a failed start: it also removes a new member and the directories made by
// this start. Caller must know that no server has answered from the directory.
func (d *dataDir) discard() {
	if d.fresh {
		_ = os.RemoveAll(d.member())
	}
	d.release()
	for i := len(d.created) - 1; i >= 0; i-- {
		if os.Remove(d.created[i]) != nil {
			return // contains other files
		}
	}
}

func checkWritable(dir string) error {
	_, err := os.ReadDir(dir)
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(dir, ".writable-*"); err == nil {
			_ = f.Close()
			err = os.Remove(f.Name())
		}
	}
	if err != nil {
		return fmt.Errorf("%q is not readable and writable: %w", dir, withoutPath(err))
	}
	return nil
}

// probeDatabase opens and closes etcd's database. This fails while another server uses it, or if
// its head pages are damaged. Without a write-ahead log it may be missing or empty: etcd then makes
// a new one.
func probeDatabase(path string, haveLog bool) (err error) {
	defer recoverAs(&err)
	info, err := os.Stat(path)
	empty := errors.Is(err, os.ErrNotExist) || (err == nil && info.Size() == 0)
	switch {
	case empty && haveLog:
		return fmt.Errorf("the database %q is missing or empty", path)
	case empty:
		return nil
	case err != nil:
		return err
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: dbLockTimeout})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return ErrDirInUse
	}
	if err != nil {
		return fmt.Errorf("the database %q is not usable: %w", path, withoutPath(err))
	}
	return db.Close()
}

// probeLog verifies the write-ahead log, from the snapshot at which etcd will begin. An incomplete
// last record is no error, because etcd repairs it.
func probeLog(dir string) (err error) {
	defer recoverAs(&err)
	lg := zap.NewNop()
	snapshots, err := wal.ValidSnapshotEntries(lg, dir)
	if err == nil {
		from := &walpb.Snapshot{}
		if n := len(snapshots); n > 0 {
			from = snapshots[n-1]
		}
		_, err = wal.Verify(lg, dir, from)
	}
	if err != nil {
		return fmt.Errorf("the write-ahead log in %q is damaged: %w", dir, withoutPath(err))
	}
	return nil
}

// recoverAs turns a decoder's panic into an error.
func recoverAs(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the content is damaged: %v", p)
	}
}

func withoutPath(err error) error {
	if pe, ok := err.(*os.PathError); ok {
		return fmt.Errorf("%s: %w", pe.Op, pe.Err)
	}
	return err
}
