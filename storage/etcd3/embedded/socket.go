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

// privateSocket is a unix socket to which only its owner can ever connect, because etcd does not
// authenticate its clients. etcd makes a socket with the mode left by the umask, which applies to
// the whole process. So etcd listens in a directory accessible only to the owner, beside the
// requested path, and we move the socket once it has its mode.
type privateSocket struct {
	path string // for clients
	dir  string // mode 0700; removed by publish
	// published is set by publish. Used first by the goroutine that starts the server, then by the
	// one that ends it.
	published bool
}

// socketName is short, like the directory's name, because the length of a socket's path is limited.
const socketName = "s"

// makePrivateSocket makes the directory, with the first free one of a few names: other servers may
// have sockets in the parent, or a killed one may have left its directory.
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
		// The umask can only have removed bits.
		if err := os.Chmod(dir, 0o700); err != nil {
			s.discard()
			return nil, withoutPath(err)
		}
		return s, nil
	}
	return nil, errors.New("the directories .a to .z beside it all exist; remove those that ended servers have left")
}

func (s *privateSocket) made() string { return filepath.Join(s.dir, socketName) }

func (s *privateSocket) listen() url.URL { return url.URL{Scheme: "unix", Path: s.made()} }

// publish moves the socket made by etcd to its path, replacing one left by an ended server.
func (s *privateSocket) publish() error {
	err := os.Chmod(s.made(), 0o600)
	if err == nil {
		err = os.Rename(s.made(), s.path)
	}
	s.published = err == nil
	s.discard()
	return err
}

func (s *privateSocket) discard() { _ = os.RemoveAll(s.dir) }

// remove removes the socket. etcd's own removal would look for it where it made it.
func (s *privateSocket) remove() {
	s.discard()
	if s.published {
		_ = os.Remove(s.path)
	}
}
