// SPDX-License-Identifier: Apache-2.0

// Package hostile has clients that mean harm, and careless ones, over HTTPS against
// the example server as a process:
//
//   - access: nobody reads without a certificate, and a user who is bound to a
//     namespace reads nothing of another one, whatever the path, the selector, the
//     continue token, and whatever bytes are kept of lists that others may see;
//   - selectors: watches with very long selectors delay nobody else's events;
//   - limits: slow and oversized requests meet the limits of k8s.io/apiserver;
//   - unread: clients that ask for long lists, in each form, and do not read them, hold
//     little of the server's memory. With 400 of them: -args -unread 400;
//   - churn: watches of every kind and with every option are opened and dropped by
//     the thousand, some of which are never read, and leave nothing behind. The
//     long form is make e2e SUITE=hostile RUN=TestChurn DURATION=10m.
package hostile
