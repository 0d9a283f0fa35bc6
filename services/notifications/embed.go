// Package notifications carries the files that the notifications service ships
// inside its binary: configuration profiles, migrations and the API document.
package notifications

import "embed"

// Files holds config/<env>.yaml, migrations/<dialect>/*.sql and
// api/openapi.yaml.
//
//go:embed config/*.yaml migrations/*/*.sql api/openapi.yaml
var Files embed.FS
