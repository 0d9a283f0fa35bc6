package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/framework/deadletter"
)

func (d *dlq) edit() *cobra.Command {
	var (
		confirm                   confirmation
		payloadFile, metadataFile string
		force                     bool
	)
	cmd := &cobra.Command{
		Use:   "edit GROUP ID",
		Short: "Replace a dead letter's payload or metadata",
		Long: `edit puts a new dead letter in the place of another: with the payload of a file, or
with the metadata of a file that holds a JSON object of strings, or both. The message
keeps its id, and the letter keeps the original and says who edited it; replay then
gives the edited one to the group. A payload that is no event, or another event's, is
refused unless --force.`,
		Example: `  headrace dlq show payments.charge-order 01a22e23-b885-7381-94e4-52756e94573d --raw > order.json
  headrace dlq edit payments.charge-order 01a22e23-b885-7381-94e4-52756e94573d --payload order.json`,
		Args: oneGroup("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o := deadletter.EditOptions{Force: force}
			if payloadFile == "" && metadataFile == "" {
				return usageError{errors.New("nothing to change: give --payload or --metadata")}
			}
			if payloadFile != "" {
				b, err := readAll(payloadFile)
				if err != nil {
					return err
				}
				o.Payload = append([]byte{}, b...)
			}
			if metadataFile != "" {
				b, err := readAll(metadataFile)
				if err != nil {
					return err
				}
				if err := json.Unmarshal(b, &o.Metadata); err != nil {
					return fmt.Errorf("%s: want a JSON object of strings: %w", metadataFile, err)
				}
				if o.Metadata == nil {
					o.Metadata = map[string]string{}
				}
			}
			q, p, err := d.queue(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer p.Close()
			found, err := q.Find(cmd.Context(), args[1])
			if err != nil {
				return err
			}
			if len(found) > 1 {
				return several(found)
			}
			if err := confirm.ask(cmd, fmt.Sprintf("Replace dead letter %s of %s?", found[0].ID, q.Group())); err != nil {
				return err
			}
			edited, err := q.Edit(cmd.Context(), found[0], o)
			if err != nil {
				return err
			}
			if d.json {
				return printJSON(cmd.OutOrStdout(), show(edited, false))
			}
			if edited.ParkedBehind != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "edited dead letter %s of %s, which waits behind %s; `headrace dlq replay %s` gives both to the group, in order\n", edited.ID, q.Group(), edited.ParkedBehind, q.Group())
				return nil
			}
			fmt.Fprintf(cmd.OutOrStdout(), "edited dead letter %s of %s; `headrace dlq replay %s --id %s` gives it to the group\n", edited.ID, q.Group(), q.Group(), edited.ID)
			return nil
		},
	}
	f := cmd.Flags()
	confirm.bind(f)
	f.StringVar(&payloadFile, "payload", "", "a file with the new payload")
	f.StringVar(&metadataFile, "metadata", "", "a file with the new metadata, a JSON object")
	f.BoolVar(&force, "force", false, "take a payload that is no event, or has another id")
	return cmd
}

func readAll(name string) ([]byte, error) {
	f, done, err := openFile(name, os.Stdin)
	if err != nil {
		return nil, err
	}
	defer done()
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return b, nil
}
