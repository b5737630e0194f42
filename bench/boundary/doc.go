// SPDX-License-Identifier: Apache-2.0

// Package boundary measures what a user pays for lists and watches: a server in
// a process of its own, seen over HTTPS.
//
// A [Stage] is an etcd in a process of its own, filled with devices, and the
// servers over it, one for each form, each with a prefix of etcd's keys to
// itself. The etcd's CPU time and memory are no server's; only a stage with
// Config.EmbeddedEtcd has it inside the servers. Changes are written to etcd and
// not through the servers, so that a server's cost of a change is that of its
// watch cache alone.
//
// [Server.CPU], [Server.Resident] and [Server.Profile] look at the process from
// outside; a [Client] has connections of its own and counts their bytes. Close a
// stage to end all of its processes. The processes also end with the one that
// has started them, however it ends.
package boundary
