// SPDX-License-Identifier: Apache-2.0

// Package observe starts what an operator looks at: the example API server, clients
// that load it, and a Prometheus server that scrapes it with the rules of package
// dashboards. `make observe` runs the three together.
package observe
