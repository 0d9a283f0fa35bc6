// Command notifications runs the notifications service: events in, mails, texts
// and webhooks out. `notifications help` tells its commands.
package main

import "github.com/headrace-go/headrace/services/notifications/internal/service"

func main() { service.Program().Main() }
