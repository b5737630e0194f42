// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
)

// Names within the run directory.
const (
	lockName        = "lock"
	credentialsName = "pki"
	etcdName        = "etcd"
	kubeconfigName  = "kubeconfig"
)

// lockDir makes dir, if need be, and takes it for this process. The lock ends with
// the process, however that ends.
func lockDir(dir string) (*fileutil.LockedFile, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the run directory: %w", err)
	}
	name := filepath.Join(dir, lockName)
	lock, err := fileutil.TryLockFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fileutil.ErrLocked) {
		return nil, fmt.Errorf("another server runs in this directory (%s is locked): stop it, or name another directory", name)
	}
	if err != nil {
		return nil, fmt.Errorf("locking the run directory: %w", err)
	}
	return lock, nil
}

// makePrivateDir makes dir, which only its owner may enter from now on.
func makePrivateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.Chmod(dir, 0o700)
}

// writeFile replaces the file as a whole: a reader sees the old content or the new
// one, after a crash too. Only the owner may read it.
func writeFile(name string, content []byte) error {
	file, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Chmod(0o600), file.Sync(), file.Close()); err == nil {
		err = os.Rename(file.Name(), name)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(file.Name()))
	}
	return err
}
