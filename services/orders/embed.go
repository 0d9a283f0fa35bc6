// Package orders carries the files that the orders service ships inside its
// binary: configuration profiles, migrations and the API document.
package orders

import "embed"

// Files holds config/<env>.yaml, migrations/<dialect>/*.sql and
// api/openapi.yaml.
//
//go:embed config/*.yaml migrations/*/*.sql api/openapi.yaml
var Files embed.FS
