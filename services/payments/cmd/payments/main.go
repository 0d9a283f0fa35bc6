// Command payments runs the payments service: order events in, charges and
// refunds at the gateway, payment events out by the outbox. `payments help` tells
// its commands.
package main

import "github.com/headrace-go/headrace/services/payments/internal/service"

func main() { service.Program().Main() }
