package deadletter_test

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/deadletter"
	"github.com/headrace-go/headrace/middleware"
)

// The journey on SQS: a crash between publish and deletion, the replay that goes
// on, and a round trip through the archive (B23). On FIFO queues the letter that
// comes back from the archive is no copy that SQS may drop.
func TestOnSQS_B23(t *testing.T) {
	t.Parallel()
	for name, fifo := range map[string]bool{"standard": false, "fifo": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testOnSQS(t, newDesk(t, cloudOf(t, fifo)))
		})
	}
}

func testOnSQS(t *testing.T, d *desk) {
	ctx := context.Background()
	_, err := deadletter.FindGroups(ctx, d.broker.Broker)
	require.ErrorIs(t, err, deadletter.ErrCannotList)
	want := map[string][]byte{}
	for i := range 15 {
		m := d.bury(failure{key: fmt.Sprint(i)})
		want[m.UUID] = m.Payload
	}

	var archive bytes.Buffer
	discarded, err := d.Discard(ctx, deadletter.DiscardOptions{Archive: &archive, Limit: 4})
	require.NoError(t, err)
	require.Equal(t, 4, discarded.Discarded)
	require.Len(t, d.left(), 11)
	imported, err := d.Import(ctx, &archive, deadletter.ImportOptions{})
	require.NoError(t, err)
	require.Equal(t, 4, imported.Imported)

	o := deadletter.ReplayOptions{Batch: 5, Journal: filepath.Join(t.TempDir(), "j")}
	d.broker.remove = func() error { return errAway }
	r, err := d.Replay(ctx, o)
	require.ErrorIs(t, err, errAway)
	require.Equal(t, 5, r.Undeleted)
	d.broker.set(func(f *faulty) { f.remove = nil })
	r, err = d.Replay(ctx, o)
	require.NoError(t, err)
	require.True(t, r.Complete())
	require.Equal(t, []int{10, 5}, []int{r.Replayed, r.Resumed})
	require.Empty(t, d.left())
	got := d.stored(broker.RedriveTopic(group))
	require.Len(t, got, 15)
	for _, m := range got {
		require.Equal(t, want[m.UUID], []byte(m.Payload))
		require.Equal(t, "1", m.Metadata[middleware.DeadLetterRedriveCount])
		require.Empty(t, m.Metadata[middleware.DeadLetterReason])
	}
}
