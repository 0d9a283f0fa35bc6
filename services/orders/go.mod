module github.com/headrace-go/headrace/services/orders

go 1.26.0

require github.com/headrace-go/headrace v0.0.0

replace github.com/headrace-go/headrace => ../..
