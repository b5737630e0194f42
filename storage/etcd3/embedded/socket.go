// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
)

// privateSocket is a unix socket that only its owner can connect to, at any
// moment and whatever the umask is: etcd does not authenticate its clients.
// etcd makes a socket with the mode that the umask leaves, and the umask
// applies to the whole process. So etcd listens in a directory that only the
// owner may enter, beside the path that was asked for, and the socket moves to
// its path when it has its mode.
type privateSocket struct {
	path string // for clients
	dir  string // mode 0700; removed by publish
	// published is set by publish. All calls come from the goroutine that
	// starts the server and then from the one that ends it.
	published bool
}

// socketName is the socket's name in its own directory. Both names are short,
// because the length of a socket's path is limited.
const socketName = "s"

// makePrivateSocket makes the directory, under the first free one of a few
// names: servers may have their sockets in one parent directory, and a server
// that was killed may have left its directory.
func makePrivateSocket(path string) (*privateSocket, error) {
	for c := 'a'; c <= 'z'; c++ {
		dir := filepath.Join(filepath.Dir(path), "."+string(c))
		err := os.Mkdir(dir, 0o700)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, withoutPath(err)
		}
		s := &privateSocket{path: path, dir: dir}
		if n := len(s.made()); n > maxUnixPath {
			s.discard()
			return nil, fmt.Errorf("the path %q, at which the socket is made first, has %d bytes; a socket's path can have %d", s.made(), n, maxUnixPath)
		}
		// A umask can only remove bits of the mode, so it was never wider.
		if err := os.Chmod(dir, 0o700); err != nil {
			s.discard()
			return nil, withoutPath(err)
		}
		return s, nil
	}
	return nil, errors.New("the directories .a to .z beside it all exist; remove those that ended servers have left")
}

// made is the path at which etcd makes the socket.
func (s *privateSocket) made() string { return filepath.Join(s.dir, socketName) }

// listen returns the URL for etcd to listen on, which is not the one for
// clients.
func (s *privateSocket) listen() url.URL { return url.URL{Scheme: "unix", Path: s.made()} }

// publish moves the socket, which etcd has made, to its path, and replaces the
// socket that an ended server has left there.
func (s *privateSocket) publish() error {
	err := os.Chmod(s.made(), 0o600)
	if err == nil {
		err = os.Rename(s.made(), s.path)
	}
	s.published = err == nil
	s.discard()
	return err
}

// discard removes the directory, with the socket in it if publish has not moved
// it.
func (s *privateSocket) discard() { _ = os.RemoveAll(s.dir) }

// remove removes the socket. etcd itself would, when it closes, look for the
// socket at the path where etcd made it.
func (s *privateSocket) remove() {
	s.discard()
	if s.published {
		_ = os.Remove(s.path)
	}
}
