// SPDX-License-Identifier: Apache-2.0

// Package computed runs examples/computed as docs/computed.md says, and speaks to it with
// client-go and kubectl.
package computed
