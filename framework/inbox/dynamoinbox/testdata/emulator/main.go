// Command emulator serves DynamoDB on a free port of 127.0.0.1, prints its URL
// and ends with its standard input.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/sivchari/kumo"
)

func main() {
	server := kumo.NewServer()
	defer server.Close()
	fmt.Println(server.URL)
	_, _ = io.Copy(io.Discard, os.Stdin)
}
