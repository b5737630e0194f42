// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// answerItems makes the items of an answer: those of the list, or their metadata.
type answerItems struct {
	format *format
	encode encode
	// subset returns the list with the items at the given positions.
	subset func(positions []int) (runtime.Object, error)
	// none returns the list as the server brings it into the form if it has no items.
	none func() runtime.Object
}

// empty returns what the server is expected to write of a list without items.
func (i *answerItems) empty() ([]byte, error) {
	var b bytes.Buffer
	err := i.encode(i.none(), &b)
	return b.Bytes(), err
}

// itemsOf returns what makes the items that the request wants of the elements.
func (f *Fill) itemsOf(elements []*watchcache.Element) *answerItems {
	id := f.judged.id.items()
	made := &answerItems{format: f.store.answers.format(id)}
	object := func(at int) (*unstructured.Unstructured, error) {
		if o, ok := elements[at].Object.(*unstructured.Unstructured); ok {
			return o, nil
		}
		return nil, errFrame
	}
	if id.objects {
		made.encode = customJSON.Encode
		made.subset = func(positions []int) (runtime.Object, error) {
			some := &unstructured.UnstructuredList{Object: f.list.Object, Items: make([]unstructured.Unstructured, 0, len(positions))}
			for _, at := range positions {
				o, err := object(at)
				if err != nil {
					return nil, err
				}
				some.Items = append(some.Items, *o)
			}
			return some, nil
		}
		made.none = func() runtime.Object {
			return &unstructured.UnstructuredList{Object: f.list.Object, Items: []unstructured.Unstructured{}}
		}
		return made
	}
	made.encode = f.answer.Form.Encoder.Encode
	kind := metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata")
	kind.Version = id.version
	made.subset = func(positions []int) (runtime.Object, error) {
		items := make([]metav1.PartialObjectMetadata, 0, len(positions))
		for _, at := range positions {
			o, err := object(at)
			if err != nil {
				return nil, err
			}
			item, err := metadataOf(o)
			if err != nil {
				return nil, err
			}
			item.SetGroupVersionKind(kind)
			items = append(items, *item)
		}
		return f.metadata(items), nil
	}
	made.none = func() runtime.Object { return f.metadata(nil) }
	return made
}

// metadata returns the list of metadata with these items, in the version that the
// request wants.
func (f *Fill) metadata(items []metav1.PartialObjectMetadata) runtime.Object {
	own := metav1.ListMeta{
		ResourceVersion: f.list.GetResourceVersion(), Continue: f.list.GetContinue(), RemainingItemCount: f.list.GetRemainingItemCount(),
	}
	if f.judged.id.version == metav1beta1.SchemeGroupVersion.Version {
		return &metav1beta1.PartialObjectMetadataList{ListMeta: own, Items: items}
	}
	return &metav1.PartialObjectMetadataList{ListMeta: own, Items: items}
}
