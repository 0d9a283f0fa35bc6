// Command orders runs the orders service: HTTP in, events out by the outbox,
// payment events in. `orders help` tells its commands.
package main

import "github.com/headrace-go/headrace/services/orders/internal/service"

func main() { service.Program().Main() }
