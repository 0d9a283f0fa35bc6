package dynamoinbox_test

import (
	"context"
	"fmt"
	"os"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/inbox/dynamoinbox"
)

// The main of a service opens the store and hands it to the framework: the table
// is made in development and looked at in production.
func ExampleOpen() {
	ctx := context.Background()
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	topology := dynamoinbox.TopologyVerify
	if os.Getenv("HEADRACE_ENV") == "local" {
		topology = dynamoinbox.TopologyEnsure
	}
	store, err := dynamoinbox.Open(ctx, dynamoinbox.Config{
		Client: dynamodb.NewFromConfig(cfg), Table: "payments-dedup", Topology: topology,
	})
	if err != nil {
		fmt.Println(err) // names the table, and what to do
		return
	}
	_ = framework.Config{Service: "payments", DedupStore: store}
}

func ExampleConfig_Validate() {
	fmt.Println(dynamoinbox.Config{Table: "payments dedup"}.WithDefaults().Validate())
	// Output:
	// dynamoinbox: Client is nil: hand in dynamodb.NewFromConfig(cfg)
	// dynamoinbox: Table is "payments dedup": give a table's name of 3 to 255 letters, digits, dots, dashes and underscores, or its ARN
}
