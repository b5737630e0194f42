// SPDX-License-Identifier: Apache-2.0

package child

import (
	"flag"
	"io"
	"testing"

	"k8s.io/klog/v2"
)

// Main runs a package's tests, and returns the exit status. The log of the clients'
// libraries, about servers that are away or have unreadable objects, is shown only
// with -v. prepare gets a new directory for what the tests compile, which Main
// removes.
func Main(m *testing.M, name string, prepare func(dir string)) int {
	flag.Parse()
	if !testing.Verbose() {
		flags := flag.NewFlagSet("klog", flag.PanicOnError)
		klog.InitFlags(flags)
		_ = flags.Set("stderrthreshold", "FATAL") // errors would go there in any case
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	}
	return InTempDir(name, func(dir string) int {
		prepare(dir)
		return m.Run()
	})
}
