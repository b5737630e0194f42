// SPDX-License-Identifier: Apache-2.0

// Package minimal makes a server out of examples/minimal as the example's page says,
// runs it, and speaks to it with kubectl.
package minimal
