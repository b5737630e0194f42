// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"fmt"
	"os/exec"

	"github.com/kube-watchcache/watchcache/integration/etcdserver"
)

// serverPackage is the server that is measured.
const serverPackage = "github.com/kube-watchcache/watchcache/bench/boundary/server"

// Compile writes the server to a file, with more flags of go build, and compiles
// the etcd if that has not been done. The folder that the process runs in must
// belong to the module. Compile takes as long as it takes: minutes with an empty
// build cache.
func Compile(program string, flags ...string) error {
	command := exec.Command("go", append(append([]string{"build", "-buildvcs=false", "-ldflags=-w", "-o", program}, flags...), serverPackage)...)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("compiling the server: %s: %w\n%s", command, err, output)
	}
	return etcdserver.Prepare(etcdserver.Process)
}
