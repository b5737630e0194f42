// SPDX-License-Identifier: Apache-2.0

package dashboards

// This file is the part of Grafana's classic dashboard model that the dashboards
// use, as Grafana's page "Dashboard JSON model" documents it. Grafana migrates a
// dashboard of an older schemaVersion when it loads one.

// schemaVersion is that of Grafana 10.4.
const schemaVersion = 39

// Dashboard is one page of Grafana.
type Dashboard struct {
	// UID names the dashboard in URLs, 8 to 40 characters.
	UID         string     `json:"uid"`
	Title       string     `json:"title"`
	Description string     `json:"description"`
	Tags        []string   `json:"tags"`
	Timezone    string     `json:"timezone"`
	Editable    bool       `json:"editable"`
	Tooltip     int        `json:"graphTooltip"` // 1: all panels share the crosshair
	Time        TimeRange  `json:"time"`
	Refresh     string     `json:"refresh"`
	Schema      int        `json:"schemaVersion"`
	Version     int        `json:"version"`
	Links       []Link     `json:"links"`
	Templating  Templating `json:"templating"`
	Annotations Notes      `json:"annotations"`
	Panels      []Panel    `json:"panels"`
}

// TimeRange is the range that a dashboard shows at first.
type TimeRange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Link is a link in the head of a dashboard: here, to those with the same tag.
type Link struct {
	Title       string   `json:"title"`
	Type        string   `json:"type"`
	Icon        string   `json:"icon"`
	Tooltip     string   `json:"tooltip"`
	URL         string   `json:"url"`
	Tags        []string `json:"tags"`
	AsDropdown  bool     `json:"asDropdown"`
	TargetBlank bool     `json:"targetBlank"`
	IncludeVars bool     `json:"includeVars"`
	KeepTime    bool     `json:"keepTime"`
}

// Templating is the variables of a dashboard.
type Templating struct {
	List []Variable `json:"list"`
}

// Variable is a variable that a person chooses at the head of a dashboard.
type Variable struct {
	Name       string         `json:"name"`
	Label      string         `json:"label"`
	Type       string         `json:"type"` // datasource or query
	Query      any            `json:"query"`
	Datasource *DatasourceRef `json:"datasource,omitempty"`
	Definition string         `json:"definition,omitempty"`
	Refresh    int            `json:"refresh"` // 2: when the time range changes
	Sort       int            `json:"sort"`    // 1: by name
	Multi      bool           `json:"multi"`
	IncludeAll bool           `json:"includeAll"`
	AllValue   string         `json:"allValue,omitempty"`
	Hide       int            `json:"hide"`
}

// VariableQuery is how the values of a variable are found.
type VariableQuery struct {
	Query string `json:"query"`
	RefID string `json:"refId"`
}

// DatasourceRef names a data source, or the variable that names it.
type DatasourceRef struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// Notes is the annotations of a dashboard: vertical lines in its panels.
type Notes struct {
	List []Note `json:"list"`
}

// Note is one kind of annotation.
type Note struct {
	Name        string        `json:"name"`
	Datasource  DatasourceRef `json:"datasource"`
	Enable      bool          `json:"enable"`
	Hide        bool          `json:"hide"`
	IconColor   string        `json:"iconColor"`
	Expr        string        `json:"expr"`
	TitleFormat string        `json:"titleFormat"`
	TextFormat  string        `json:"textFormat"`
}

// Panel is one panel, or the heading of a row of panels.
type Panel struct {
	ID          int            `json:"id"`
	Type        string         `json:"type"` // row, stat, text or timeseries
	Title       string         `json:"title"`
	Description string         `json:"description,omitempty"`
	Collapsed   *bool          `json:"collapsed,omitempty"`
	Panels      *[]Panel       `json:"panels,omitempty"`
	GridPos     GridPos        `json:"gridPos"`
	Datasource  *DatasourceRef `json:"datasource,omitempty"`
	Targets     []Target       `json:"targets,omitempty"`
	FieldConfig *FieldConfig   `json:"fieldConfig,omitempty"`
	Options     map[string]any `json:"options,omitempty"`
}

// GridPos is where a panel is: the page is 24 columns wide.
type GridPos struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

// Target is one query of a panel.
type Target struct {
	RefID        string        `json:"refId"`
	Datasource   DatasourceRef `json:"datasource"`
	Expr         string        `json:"expr"`
	LegendFormat string        `json:"legendFormat"`
	EditorMode   string        `json:"editorMode"`
	Range        bool          `json:"range"`
	Instant      bool          `json:"instant"`
}

// FieldConfig is how a panel shows values.
type FieldConfig struct {
	Defaults  FieldDefaults `json:"defaults"`
	Overrides []any         `json:"overrides"`
}

// FieldDefaults is how a panel shows values that nothing else is said about.
type FieldDefaults struct {
	Unit       string         `json:"unit"`
	Min        *float64       `json:"min,omitempty"`
	NoValue    string         `json:"noValue,omitempty"`
	Color      Color          `json:"color"`
	Thresholds Thresholds     `json:"thresholds"`
	Mappings   []Mapping      `json:"mappings"`
	Custom     map[string]any `json:"custom,omitempty"`
}

// Color says how series get their colors.
type Color struct {
	Mode string `json:"mode"`
}

// Thresholds are the values from which on a color is used.
type Thresholds struct {
	Mode  string `json:"mode"`
	Steps []Step `json:"steps"`
}

// Step is one color, from Value on; nil: from minus infinity.
type Step struct {
	Color string   `json:"color"`
	Value *float64 `json:"value"`
}

// Mapping shows values as words.
type Mapping struct {
	Type    string          `json:"type"`
	Options map[string]Word `json:"options"`
}

// Word is what is shown for a value.
type Word struct {
	Text  string `json:"text"`
	Color string `json:"color"`
	Index int    `json:"index"`
}
