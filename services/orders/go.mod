module github.com/headrace-go/headrace/services/orders

go 1.26.0

require github.com/headrace-go/headrace v0.0.0

require (
	github.com/getkin/kin-openapi v0.153.0 // indirect
	github.com/go-chi/chi/v5 v5.5.0 // indirect
	github.com/stretchr/testify v1.12.1 // indirect
)

replace github.com/headrace-go/headrace => ../..
