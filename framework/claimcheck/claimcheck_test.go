package claimcheck_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"

	"github.com/headrace-go/headrace/framework/claimcheck"
	"github.com/headrace-go/headrace/framework/testenv"
)

func open(t testing.TB, cfg claimcheck.Config) *claimcheck.Store {
	t.Helper()
	s, err := claimcheck.Open(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestStore(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]func(t *testing.T) claimcheck.Config{
		"memory": func(*testing.T) claimcheck.Config { return claimcheck.Config{URL: "mem://"} },
		"folder that is not there yet": func(t *testing.T) claimcheck.Config {
			return claimcheck.Config{URL: filepath.Join(t.TempDir(), "a folder", "ä & more")}
		},
		"file URL": func(t *testing.T) claimcheck.Config {
			return claimcheck.Config{URL: "file://" + filepath.ToSlash(t.TempDir())}
		},
		"S3": func(t *testing.T) claimcheck.Config { return claimcheck.Config{Bucket: s3Bucket(t), Prefix: "p/"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			s := open(t, cfg(t))
			big := bytes.Repeat([]byte("\x00\xff{}"), 1<<19)
			ref, err := s.Put(ctx, big)
			require.NoError(t, err)
			require.Regexp(t, "^[0-9a-f]{64}$", ref)
			got, err := s.Get(ctx, ref)
			require.NoError(t, err)
			require.True(t, bytes.Equal(big, got))

			again, err := s.Put(ctx, big)
			require.NoError(t, err)
			require.Equal(t, ref, again, "a resend writes the same object")
			empty, err := s.Put(ctx, nil)
			require.NoError(t, err)
			got, err = s.Get(ctx, empty)
			require.NoError(t, err)
			require.Empty(t, got)

			n, err := s.Sweep(ctx, time.Now().Add(-time.Hour))
			require.NoError(t, err)
			require.Zero(t, n)
			n, err = s.Sweep(ctx, time.Now().Add(time.Hour))
			require.NoError(t, err)
			require.Equal(t, 2, n)
			_, err = s.Get(ctx, ref)
			require.ErrorIs(t, err, fs.ErrNotExist)

			for _, odd := range []string{"", "x", "../../etc/passwd", ref + "0"} {
				_, err = s.Get(ctx, odd)
				require.ErrorIs(t, err, fs.ErrNotExist, "%q", odd)
			}
		})
	}
}

func s3Bucket(t *testing.T) *blob.Bucket {
	server := testenv.AWS(t)
	client := s3.NewFromConfig(aws.Config{
		Region: "us-east-1", BaseEndpoint: aws.String(server.Endpoint()),
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	}, func(o *s3.Options) { o.UsePathStyle = true })
	name := "claimcheck-" + uuid.NewString()
	_, err := client.CreateBucket(context.Background(), &s3.CreateBucketInput{Bucket: &name})
	require.NoError(t, err)
	bucket, err := s3blob.OpenBucketV2(context.Background(), client, name, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, bucket.Close()) })
	return bucket
}

// What was changed in the bucket is never handed to a handler.
func TestAChangedPayloadIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, claimcheck.Config{URL: dir})
	ref, err := s.Put(context.Background(), []byte("paid: 1"))
	require.NoError(t, err)
	path := filepath.Join(dir, filepath.FromSlash(claimcheck.DefaultPrefix), ref[:2], ref)
	require.NoError(t, os.WriteFile(path, []byte("paid: 1000000"), 0o600))
	_, err = s.Get(context.Background(), ref)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "changed")
}

func TestConfig(t *testing.T) {
	t.Parallel()
	_, err := claimcheck.Open(context.Background(), claimcheck.Config{})
	require.ErrorContains(t, err, "URL and Bucket")
	_, err = claimcheck.Open(context.Background(), claimcheck.Config{URL: "ftp://host/x?token=hunter2"})
	require.ErrorContains(t, err, "ftp://host/x")
	require.NotContains(t, err.Error(), "token=")
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = claimcheck.Open(context.Background(), claimcheck.Config{URL: filepath.Join(file, "x")})
	require.ErrorContains(t, err, file)
}

func ExampleStore() {
	ctx := context.Background()
	s, err := claimcheck.Open(ctx, claimcheck.Config{URL: "mem://"})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	ref, _ := s.Put(ctx, []byte("a very large payload"))
	payload, _ := s.Get(ctx, ref)
	fmt.Println(len(ref), string(payload))
	// Output: 64 a very large payload
}
