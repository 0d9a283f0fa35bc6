package dynamoinbox

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/google/uuid"
)

// envDynamoDB points the tests at a running emulator of DynamoDB, such as
// http://127.0.0.1:8000. Never at AWS itself: it is asked for a table per test.
const envDynamoDB = "HEADRACE_TEST_DYNAMODB"

// emulator returns a client of the emulator that HEADRACE_TEST_DYNAMODB names, or
// of one of the test's own, and the name of a table of the test's own.
func emulator(t *testing.T) (*dynamodb.Client, string) {
	t.Helper()
	endpoint := os.Getenv(envDynamoDB)
	if endpoint == "" {
		endpoint = startEmulator(t)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	client := dynamodb.New(dynamodb.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(endpoint), HTTPClient: &http.Client{Transport: transport},
		Credentials: credentials.NewStaticCredentialsProvider("headrace", "headrace", ""),
	})
	return client, "headrace-dedup-" + uuid.NewString()
}

// startEmulator builds and starts testdata/emulator, a module of its own, so that
// nothing that it needs is a dependency of Headrace. It ends with its input, so
// with this process too.
func startEmulator(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "emulator")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // the first build is slow
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-o", program, ".")
	build.Dir = filepath.Join("testdata", "emulator")
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		missing(t, fmt.Errorf("build testdata/emulator: %w: %s", err, strings.TrimSpace(string(out))))
	}
	serve := exec.Command(program)
	stdin, err := serve.StdinPipe()
	if err != nil {
		t.Fatalf("start the emulator of DynamoDB: %v", err)
	}
	stdout, err := serve.StdoutPipe()
	if err != nil {
		t.Fatalf("start the emulator of DynamoDB: %v", err)
	}
	if err := serve.Start(); err != nil {
		t.Fatalf("start the emulator of DynamoDB: %v", err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_ = serve.Process.Kill()
		_ = serve.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the emulator of DynamoDB did not say where it listens: %v", err)
	}
	return strings.TrimSpace(line)
}

func missing(t *testing.T, err error) {
	t.Helper()
	if os.Getenv("HEADRACE_TEST_REQUIRE") == "all" {
		t.Fatalf("an emulator of DynamoDB is required (HEADRACE_TEST_REQUIRE=all) and not there: %v", err)
	}
	t.Skipf("did not run: no emulator of DynamoDB (%s is not set): %v", envDynamoDB, err)
}
