// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"

	"github.com/kube-watchcache/watchcache/internal/keptlists"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// formats are what lists are encoded in, by name.
var formats = map[string]string{"json": runtime.ContentTypeJSON, "protobuf": runtime.ContentTypeProtobuf}

// stock is the server's own serializer of lists.
var stock = func() runtime.NegotiatedSerializer {
	scheme := poddata.Scheme()
	scheme.AddKnownTypes(example.SchemeGroupVersion, &example.PodList{})
	scheme.AddKnownTypes(examplev1.SchemeGroupVersion, &examplev1.PodList{})
	return serializer.NewCodecFactory(scheme, serializer.WithStreamingCollectionEncodingToJSON(), serializer.WithStreamingCollectionEncodingToProtobuf())
}()

// keeping encodes lists as a server does that keeps the bytes of earlier ones.
type keeping struct {
	lists      *keptlists.Encoder
	serializer runtime.NegotiatedSerializer
}

func newKeeping() *keeping {
	k := &keeping{lists: &keptlists.Encoder{}}
	k.serializer = k.lists.Serializer(stock)
	return k
}

// compare returns how the encoding of a list from kept bytes differs from that of
// the server's own encoder, "" if not at all.
func (k *keeping) compare(list runtime.Object, format string) string {
	want, err := encodeList(stock, list, format)
	if err != nil {
		return "the encoder failed: " + err.Error()
	}
	got, err := encodeList(k.serializer, list, format)
	switch {
	case err != nil:
		return "from kept bytes it could not be encoded: " + err.Error()
	case !bytes.Equal(want, got):
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		return fmt.Sprintf("from kept bytes it has %d bytes and should have %d; from byte %d on it is %q, and should be %q",
			len(got), len(want), at, some(got[at:]), some(want[at:]))
	}
	return ""
}

// some is the beginning of an encoding.
func some(encoding []byte) []byte { return encoding[:min(len(encoding), 80)] }

func encodeList(s runtime.NegotiatedSerializer, list runtime.Object, format string) ([]byte, error) {
	info, _ := runtime.SerializerInfoForMediaType(stock.SupportedMediaTypes(), formats[format])
	var into bytes.Buffer
	err := s.EncoderForVersion(info.Serializer, examplev1.SchemeGroupVersion).Encode(list, &into)
	return into.Bytes(), err
}
