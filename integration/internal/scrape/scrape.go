// SPDX-License-Identifier: Apache-2.0

// Package scrape reads single figures from the metrics that servers serve.
package scrape

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Value gives the metric of that name, with its labels if it has any, as the page
// at url has them.
func Value(ctx context.Context, client *http.Client, url, name string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	found, lines := "", bufio.NewScanner(response.Body)
	for lines.Scan() { // to the end: a server logs clients that leave before
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			found = value
		}
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("%s: %w", url, err)
	}
	if found == "" {
		return 0, fmt.Errorf("%s (%s): there is no metric %s", url, response.Status, name)
	}
	return strconv.ParseFloat(found, 64)
}
