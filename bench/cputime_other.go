// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package main

import "time"

// cpuTime is known on Unix only.
func cpuTime() time.Duration { panic("bench: CPU time is measured with getrusage, on Unix only") }
