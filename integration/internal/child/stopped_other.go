// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package child

// AwaitStopped would return when a child that was sent SIGSTOP has stopped. There
// is no portable way to know.
func AwaitStopped(int) error { return nil }
