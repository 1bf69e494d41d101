package api

import "time"

// A Template is an imported root file system.
type Template struct {
	Name       string            `json:"name" required:"true"`
	ID         string            `json:"id" required:"true" doc:"The digest of its layers: equal for equal file systems."`
	Kind       string            `json:"kind" required:"true" enum:"tar,oci,docker" doc:"What it was imported from; a folder counts as a tar."`
	Created    time.Time         `json:"created"`
	Layers     []string          `json:"layers" doc:"Digests of the uncompressed layers, the lowest first."`
	Bytes      int64             `json:"bytes"`
	Entries    int64             `json:"entries"`
	LeftOut    int64             `json:"left_out" doc:"Devices, pipes and sockets that did not come in."`
	Env        map[string]string `json:"env,omitempty" doc:"Defaults of an image; a jail's own variables come over them."`
	WorkingDir string            `json:"working_dir,omitempty" doc:"Where commands start that do not say where."`
	User       string            `json:"user,omitempty" doc:"The image's; commands run as the tenant unless they ask for another."`
}

// TemplateList lists the templates by name.
type TemplateList struct {
	Templates []Template `json:"templates"`
}

// ImportProgress says how far an import is.
type ImportProgress struct {
	Stage   string `json:"stage" required:"true" enum:"receiving,unpacking,storing"`
	Layer   int    `json:"layer" doc:"From 1; 0 until it is known."`
	Layers  int    `json:"layers"`
	Bytes   int64  `json:"bytes"`
	Entries int64  `json:"entries"`
}
