// SPDX-License-Identifier: Apache-2.0

package fresh

import (
	"context"
	"time"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// lastWord is how long before its deadline a read of an API server's client gives up.
// When the deadline is over, the server's timeout filter ends the request, and resets
// the stream of an answer that has begun by then, so that a read that told of its
// failure at that moment would now and then tell nobody.
const lastWord = 100 * time.Millisecond

// BeforeDeadline returns a context for what a read waits for. If ctx is that of an API
// server's request, the context ends in time for an answer: lastWord before the
// deadline, if there is one, and before the last tenth of a shorter time. A caller in
// the process needs no such time. The caller calls cancel after the wait.
func BeforeDeadline(ctx context.Context) (waiting context.Context, cancel context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if _, served := apirequest.RequestInfoFrom(ctx); !served || !ok {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline.Add(-min(lastWord, max(0, time.Until(deadline)/10))))
}
