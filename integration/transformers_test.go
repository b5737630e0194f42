// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
)

// newPrefixTransformer gives a transformer that puts a prefix before every
// stored value, as an encryption's would.
func newPrefixTransformer() *storagetesting.PrefixTransformer {
	return storagetesting.NewPrefixTransformer([]byte("test!"), false)
}

// exchangeable is a transformer that another can be put in the place of while
// it is in use.
type exchangeable struct {
	current atomic.Pointer[value.Transformer]
	// held, if not nil, keeps reads waiting until it is closed.
	held     chan struct{}
	released sync.Once
}

func newExchangeable(first value.Transformer, held bool) *exchangeable {
	e := &exchangeable{}
	if held {
		e.held = make(chan struct{})
	}
	e.set(first)
	return e
}

func (e *exchangeable) get() value.Transformer  { return *e.current.Load() }
func (e *exchangeable) set(t value.Transformer) { e.current.Store(&t) }

// release lets the reads go on, that wait and that come.
func (e *exchangeable) release() {
	if e.held != nil {
		e.released.Do(func() { close(e.held) })
	}
}

// TransformFromStorage implements value.Transformer.
func (e *exchangeable) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	if e.held != nil {
		select {
		case <-e.held:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
	return e.get().TransformFromStorage(ctx, data, dataCtx)
}

// TransformToStorage implements value.Transformer.
func (e *exchangeable) TransformToStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, error) {
	return e.get().TransformToStorage(ctx, data, dataCtx)
}

// exchanged is a store whose transformers a suite may exchange, in one of the
// two ways that suites ask for it.
type exchanged struct {
	storage.Interface
	in []*exchangeable
}

// UpdatePrefixTransformer implements storagetesting.InterfaceWithPrefixTransformer.
func (e *exchanged) UpdatePrefixTransformer(modify storagetesting.PrefixTransformerModifier) func() {
	var undo []func()
	for _, x := range e.in {
		before := x.get()
		x.set(modify(newPrefixTransformer()))
		x.release()
		undo = append(undo, func() { x.set(before) })
	}
	return all(undo)
}

// UpdateTransformer implements storagetesting.InterfaceWithTransformerOverride.
func (e *exchanged) UpdateTransformer(modify storagetesting.TransformerModifier) func() {
	var undo []func()
	for _, x := range e.in {
		before := x.get()
		x.set(modify(before))
		x.release()
		undo = append(undo, func() { x.set(before) })
	}
	return all(undo)
}

func all(do []func()) func() {
	return func() {
		for _, f := range do {
			f()
		}
	}
}

// errFlipped is what a reader fails with that was told to.
var errFlipped = errors.New("bits flipped")

// failing fails every read while it is told to: in place of a transformer and
// of a codec.
type failing struct {
	value.Transformer
	runtime.Codec
	fail atomic.Bool
}

// TransformFromStorage implements value.Transformer.
func (f *failing) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	if f.fail.Load() {
		return nil, false, errFlipped
	}
	return f.Transformer.TransformFromStorage(ctx, data, dataCtx)
}

// Decode implements runtime.Decoder.
func (f *failing) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if f.fail.Load() {
		return nil, nil, errFlipped
	}
	return f.Codec.Decode(data, defaults, into)
}

// corruptError gives an error of the type that k8s.io/apiserver's etcd storage
// has for an object that can't be read, which it does not export.
func corruptError(ctx context.Context) error {
	f := &failing{Transformer: storagetesting.NewPrefixTransformer(nil, false)}
	f.fail.Store(true)
	_, _, err := etcd3.WithCorruptObjErrorHandlingTransformer(f).TransformFromStorage(ctx, nil, value.DefaultContext(nil))
	return err
}
