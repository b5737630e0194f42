// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// Sample is one value of a query's result.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Query evaluates an expression now.
func (p *Prometheus) Query(ctx context.Context, expr string) ([]Sample, error) {
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any // time, and the value as a string
			}
		}
	}
	if err := p.get(ctx, "/api/v1/query", url.Values{"query": {expr}}, &answer); err != nil {
		return nil, err
	}
	var out []Sample
	for _, r := range answer.Data.Result {
		text, _ := r.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("prometheus: value of %s: %w", expr, err)
		}
		out = append(out, Sample{r.Metric, value})
	}
	return out, nil
}

// get gets a path of the API, and decodes the answer into out unless out is nil.
func (p *Prometheus) get(ctx context.Context, path string, query url.Values, out any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("prometheus: %s: %s", response.Status, body)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(body, out)
}
