// SPDX-License-Identifier: Apache-2.0

package embedded_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// An etcd for development, on a socket that only its owner can connect to.
func ExampleStart() {
	dir, err := os.MkdirTemp("", "etcd")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	server, err := embedded.Start(context.Background(), embedded.Config{
		Dir:       filepath.Join(dir, "data"),
		ClientURL: "unix://" + filepath.Join(dir, "etcd.sock"),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	fmt.Println(len(server.Endpoints()))
	// Output: 1
}
