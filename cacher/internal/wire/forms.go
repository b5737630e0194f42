// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"io"
	"reflect"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Form is how a client wants one list, if not as the list itself: as the metadata
// of its objects, or as a Table with a row for each, which has its metadata.
type Form struct {
	// Serializer is that of the server for such forms.
	Serializer runtime.NegotiatedSerializer
	// Table makes the Table, whose rows have the items of the list. Without Table,
	// the list is wanted as a PartialObjectMetadataList.
	Table func(ctx context.Context, list runtime.Object) (*metav1.Table, error)

	// ctx and list are those of the read. The form holds the list, so that no other
	// one gets its address as long as the encoder looks for it.
	ctx  context.Context
	list runtime.Object
	// state is formOpen, formWritten or formRefused.
	state atomic.Int32
}

// The states of a form.
const (
	formOpen    int32 = iota // no encoder was given the list
	formWritten              // an encoder has begun to write the list in the form
	formRefused              // an encoder was given the list, and has written nothing
)

// Written reports whether the list was written in the form, or begun.
func (f *Form) Written() bool { return f.state.Load() == formWritten }

// Refused reports whether the encoder knew of the form, and left it to the server.
func (f *Form) Refused() bool { return f.state.Load() == formRefused }

type formKey struct{}

// WithForm returns a context for the read of a list that is wanted in a form.
func WithForm(ctx context.Context, f *Form) context.Context {
	return context.WithValue(ctx, formKey{}, f)
}

// Want records that a list was read with the context, so that the encoder writes
// the list in the form that the context says. The last list of a context counts.
// The form is to be ended.
func (l *Listings) Want(ctx context.Context, list runtime.Object) {
	f, ok := ctx.Value(formKey{}).(*Form)
	if l == nil || !ok || !l.on.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.list != nil {
		delete(l.mu.wanted, f.list)
	}
	f.ctx, f.list = ctx, list
	if l.mu.wanted == nil {
		l.mu.wanted = map[runtime.Object]*Form{}
	}
	l.mu.wanted[list] = f
}

// End forgets a form. Lists of its context are lists again.
func (l *Listings) End(f *Form) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.list != nil && l.mu.wanted[f.list] == f {
		delete(l.mu.wanted, f.list)
	}
	f.list = nil
}

// form returns the form in which a list is wanted, nil if it is wanted as it is.
func (l *Listings) form(list runtime.Object) *Form {
	if value := reflect.ValueOf(list); value.Kind() != reflect.Pointer {
		return nil // which may not be comparable
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.wanted[list]
}

// encoder returns the server's own encoder of forms in a syntax, false if there
// is none.
func (f *Form) encoder(s syntax) (runtime.Encoder, bool) {
	mediaType := runtime.ContentTypeJSON
	if s == protobufSyntax {
		mediaType = runtime.ContentTypeProtobuf
	}
	for _, info := range f.Serializer.SupportedMediaTypes() {
		if info.MediaType == mediaType && info.Serializer != nil {
			return f.Serializer.EncoderForVersion(info.Serializer, metav1.SchemeGroupVersion), true
		}
	}
	return nil, false
}

// errForm is why a form is left to the server.
var errForm = errors.New("the form is left to the server")

// formWriter writes a list in a form. The first write says that the form was
// written.
type formWriter struct {
	form *Form
	to   io.Writer
}

func (w formWriter) Write(p []byte) (int, error) {
	w.form.state.Store(formWritten)
	return w.to.Write(p)
}

// encodeForm writes a list in a form. If that is not possible, encodeForm writes
// nothing, and the form is refused; who asked for it asks the server.
func (e *listEncoder) encodeForm(f *Form, list runtime.Object, w io.Writer) error {
	encoder, ok := f.encoder(e.syntax)
	if !ok {
		f.state.Store(formRefused)
		return nil
	}
	made := &forming{listEncoder: e, form: f, list: list, encoder: encoder}
	write, err := made.metadata, error(nil)
	if f.Table != nil {
		write, err = made.table()
	}
	if err == nil {
		err = write(formWriter{f, w})
	}
	if err != nil && !f.Written() {
		f.state.Store(formRefused)
		return nil
	}
	return err
}

// forming is one list on its way into a form.
type forming struct {
	*listEncoder
	form    *Form
	list    runtime.Object
	encoder runtime.Encoder // the server's own, of the form
}

// stock encodes with the server's own encoder.
func (m *forming) stock(object runtime.Object, w io.Writer) error {
	allocating, ok := m.encoder.(runtime.EncoderWithAllocator)
	if !ok {
		return m.encoder.Encode(object, w)
	}
	memory := runtime.AllocatorPool.Get().(*runtime.Allocator)
	defer runtime.AllocatorPool.Put(memory)
	return allocating.EncodeWithAllocator(object, w, memory)
}

// metadata writes the metadata of the list's objects.
func (m *forming) metadata(w io.Writer) error {
	whole := func(w io.Writer) error {
		list, err := m.metadataList()
		if err != nil {
			return err
		}
		return m.stock(list, w)
	}
	if noted, items := m.noted(); noted != nil {
		f, l := m.metadataFormat(m.syntax), m.learner(items, m.stock)
		l.later = true
		if a := f.assemble(noted, l, whole); a != nil {
			return a.write(w)
		}
	}
	return whole(w)
}

// noted returns the note of a list whose items are those that a cache has put in,
// and the items; nil for any other list.
func (m *forming) noted() (*listing, reflect.Value) {
	noted := m.serializer.listings.find(m.list)
	if noted == nil {
		return nil, reflect.Value{}
	}
	items, ok := itemsOf(m.list)
	if !ok || items.Len() < minItems || !unchanged(items, noted.elements) {
		return nil, reflect.Value{}
	}
	return noted, items
}

// metadataFormat returns the format of the metadata of objects. All served
// versions have the same, and rows of Tables have it too.
func (m *forming) metadataFormat(s syntax) *format {
	return m.serializer.format(formatID{encoder: "metadata:" + m.encoder.Identifier(), list: reflect.TypeOf(m.list)}, s)
}

// learner returns a learner of lists of metadata.
func (m *forming) learner(items reflect.Value, stock encode) *learner {
	return &learner{stock: stock, subset: func(positions []int) (runtime.Object, error) {
		list, err := m.emptyMetadataList()
		if err != nil {
			return nil, err
		}
		list.Items = make([]metav1.PartialObjectMetadata, 0, len(positions))
		for _, at := range positions {
			item, err := metadataOf(items.Index(at).Addr().Interface())
			if err != nil {
				return nil, err
			}
			list.Items = append(list.Items, *item)
		}
		return list, nil
	}}
}

// emptyMetadataList returns what the list of metadata has of the list's own.
func (m *forming) emptyMetadataList() (*metav1.PartialObjectMetadataList, error) {
	own, ok := m.list.(metav1.ListInterface)
	if !ok {
		return nil, errForm
	}
	return &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{
		ResourceVersion: own.GetResourceVersion(), Continue: own.GetContinue(), RemainingItemCount: own.GetRemainingItemCount(),
	}}, nil
}

// metadataList returns the whole list of metadata.
func (m *forming) metadataList() (*metav1.PartialObjectMetadataList, error) {
	list, err := m.emptyMetadataList()
	if err != nil {
		return nil, err
	}
	err = meta.EachListItem(m.list, func(object runtime.Object) error {
		item, err := metadataOf(object)
		if err == nil {
			list.Items = append(list.Items, *item)
		}
		return err
	})
	return list, err
}

var metadataKind = metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata")

func metadataOf(object any) (*metav1.PartialObjectMetadata, error) {
	m, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	partial := meta.AsPartialObjectMetadata(m)
	partial.SetGroupVersionKind(metadataKind)
	return partial, nil
}
