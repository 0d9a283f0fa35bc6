package program_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/frameworktest/programtest"
	"github.com/headrace-go/headrace/framework/migrate"
	"github.com/headrace-go/headrace/framework/program"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/framework/testenv"
)

type settings struct {
	config.Profile `koanf:",squash"`
	Lamps          lamps `koanf:"lamps"`
}

type lamps struct {
	Rooms []string      `koanf:"rooms"`
	Key   config.Secret `koanf:"key"`
	Greet string        `koanf:"greet"`
}

func (s settings) Validate() error {
	var faults config.Faults
	if len(s.Lamps.Rooms) == 0 {
		faults.Add("lamps.rooms", "empty", "name one")
	}
	return faults.Err()
}

const testYAML = `
http: {addr: "127.0.0.1:0"}
admin: {addr: "127.0.0.1:0"}
database: {driver: sqlite, dsn: ":memory:", migrate: true}
lamps: {rooms: [hall, attic]}
`

func files() fstest.MapFS {
	return fstest.MapFS{
		"config/test.yaml":                   {Data: []byte(testYAML)},
		"config/local.yaml":                  {Data: []byte(testYAML)},
		"migrations/sqlite/00001_init.sql":   {Data: []byte("-- +goose Up\nCREATE TABLE rooms (name TEXT PRIMARY KEY);\n")},
		"migrations/postgres/00001_init.sql": {Data: []byte("-- +goose Up\nCREATE TABLE rooms (name TEXT PRIMARY KEY);\n")},
	}
}

// lampsProgram is a service that shows how many rooms its table has.
func lampsProgram() program.Program[settings] {
	return program.Program[settings]{
		Name: "smart-lamps", Files: files(), Defaults: settings{Lamps: lamps{Greet: "hello"}},
		Build: func(_ context.Context, s settings, base framework.Config) (*framework.App, error) {
			a, err := framework.New(base)
			if err != nil {
				return nil, err
			}
			a.HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var n int
				if err := base.DB.QueryRowContext(r.Context(), "SELECT COUNT(*) FROM rooms").Scan(&n); err != nil {
					w.WriteHeader(http.StatusInternalServerError)
				}
				fmt.Fprint(w, s.Lamps.Greet, n)
			}))
			return a, a.Validate()
		},
	}
}

func TestMain(m *testing.M) { programtest.Main(m, lampsProgram()) }

func get(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode)
	return string(body)
}

func TestItServesDrainsAndAnswersItsHealthcheck(t *testing.T) {
	t.Parallel()
	environ := []string{"HEADRACE_ENV=test"}
	running := programtest.Start(t, lampsProgram(), environ...)
	require.Equal(t, "hello0", get(t, "http://"+running.App.HTTPAddr()))
	health := func(addr string) error {
		_, err := programtest.Command(t, lampsProgram(), append(environ, "HEADRACE_ADMIN_ADDR="+addr), "healthcheck")
		return err
	}
	addr := running.App.AdminAddr()
	require.NoError(t, health(addr))
	_, port, _ := strings.Cut(addr, ":")
	require.NoError(t, health("0.0.0.0:"+port), "an address of all is asked on loopback")
	require.NoError(t, health(":"+port))
	require.NoError(t, running.Stop())
	require.Error(t, health(addr))
	require.ErrorContains(t, health("127.0.0.1:0"), "admin.addr")
	require.Contains(t, running.Log.String(), `"service":"smart-lamps"`)
	require.Contains(t, running.Log.String(), "drained")

	unready := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	t.Cleanup(unready.Close)
	require.ErrorContains(t, health(strings.TrimPrefix(unready.URL, "http://")), "not ready")
}

// As a process of its own: SIGTERM drains and ends it with 0, SIGKILL leaves
// tables that the next start works with.
func TestItIsAProcess(t *testing.T) {
	t.Parallel()
	dsn := "HEADRACE_DATABASE_DSN=" + filepath.Join(t.TempDir(), "lamps.db")
	first := programtest.Spawn(t, dsn)
	require.Equal(t, "hello0", get(t, first.URL))
	first.Kill()
	second := programtest.Spawn(t, dsn, "HEADRACE_LAMPS_GREET=")
	require.Equal(t, "0", get(t, second.URL), "what the environment empties is empty, whatever the default")
	require.NoError(t, second.Terminate())
}

// B41: replicas that start at once on an empty database end with one schema, and
// one that may not migrate says what to do.
func TestMigrationsAreAppliedOnceOrChecked(t *testing.T) {
	t.Parallel()
	environ := []string{"HEADRACE_ENV=test", "HEADRACE_DATABASE_DRIVER=postgres", "HEADRACE_DATABASE_DSN=" + testenv.PostgresDSN(t)}
	p := lampsProgram()
	var mu sync.Mutex
	extra := 0
	p.Migrate = func(_ context.Context, s settings, base framework.Config) error {
		mu.Lock()
		defer mu.Unlock()
		extra++
		if base.DB == nil || len(s.Lamps.Rooms) != 2 {
			return errors.New("no database or settings")
		}
		return nil
	}
	checkOnly := append(environ, "HEADRACE_DATABASE_MIGRATE=false")
	_, err := programtest.Command(t, p, checkOnly)
	require.ErrorIs(t, err, migrate.ErrPending)
	require.ErrorContains(t, err, "`smart-lamps migrate`")
	require.Zero(t, extra)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if out, err := programtest.Command(t, p, environ, "migrate"); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	wg.Wait()
	require.Equal(t, 3, extra)
	running := programtest.Start(t, p, checkOnly...)
	require.Equal(t, "hello0", get(t, "http://"+running.App.HTTPAddr()))
	require.NoError(t, running.Stop())
	require.Equal(t, 3, extra, "a start that may not migrate does not")

	db := testenv.Open(t, "pgx", strings.TrimPrefix(environ[2], "HEADRACE_DATABASE_DSN="))
	var version int
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT MAX(version_id) FROM smart_lamps_schema_version").Scan(&version))
	require.Equal(t, 1, version)
}

func TestReplicasOfAService(t *testing.T) {
	t.Parallel()
	programtest.Replicas(t, lampsProgram(), "smart-lamps", "HEADRACE_LAMPS_GREET=hi")
}

func TestAServiceWithoutTablesOrWithoutADatabase(t *testing.T) {
	t.Parallel()
	p := lampsProgram()
	p.Files = fstest.MapFS{"config/test.yaml": {Data: []byte(testYAML)}}
	p.Build = func(_ context.Context, _ settings, base framework.Config) (*framework.App, error) {
		return framework.New(base)
	}
	for _, environ := range [][]string{{"HEADRACE_ENV=test"}, {"HEADRACE_ENV=test", "HEADRACE_DATABASE_DRIVER="}} {
		require.NoError(t, programtest.Start(t, p, environ...).Stop())
	}
	_, err := programtest.Command(t, p, []string{"HEADRACE_ENV=test"}, "migrate")
	require.NoError(t, err)
	_, err = programtest.Command(t, p, []string{"HEADRACE_ENV=test", "HEADRACE_DATABASE_DRIVER="}, "migrate")
	require.ErrorContains(t, err, "database.driver")

	only := files()
	delete(only, "migrations/sqlite/00001_init.sql")
	_, err = program.Migrations(only, sqltx.SQLite)
	require.ErrorContains(t, err, "migrations/sqlite")
}

func TestWhatCannotWorkIsAnError(t *testing.T) {
	t.Parallel()
	fine := []string{"HEADRACE_ENV=test"}
	for name, c := range map[string]struct {
		change  func(*program.Program[settings])
		environ []string
		args    []string
		named   string
	}{
		"unknown command":      {nil, fine, []string{"serv"}, "serv"},
		"too many arguments":   {nil, fine, []string{"migrate", "now"}, "now"},
		"unknown argument":     {nil, []string{"HEADRACE_ENV=nowhere"}, []string{"--wat"}, "--wat"},
		"unknown profile":      {nil, []string{"HEADRACE_ENV=nowhere"}, nil, "nowhere"},
		"unknown variable":     {nil, append(fine, "HEADRACE_LAMP_KEY=x"), nil, "HEADRACE_LAMP_KEY"},
		"own rule":             {nil, append(fine, "HEADRACE_LAMPS_ROOMS="), nil, "lamps.rooms"},
		"own rule, healthwise": {nil, append(fine, "HEADRACE_LAMPS_ROOMS="), []string{"healthcheck"}, "lamps.rooms"},
		"own rule, migrating":  {nil, append(fine, "HEADRACE_LAMPS_ROOMS="), []string{"migrate"}, "lamps.rooms"},
		"database":             {nil, append(fine, "HEADRACE_DATABASE_DRIVER=postgres", "HEADRACE_DATABASE_DSN=nonsense"), nil, "database.dsn"},
		"database to migrate":  {nil, append(fine, "HEADRACE_DATABASE_DRIVER=postgres", "HEADRACE_DATABASE_DSN=nonsense"), []string{"migrate"}, "database.dsn"},
		"the service's wiring": {func(p *program.Program[settings]) {
			p.Build = func(context.Context, settings, framework.Config) (*framework.App, error) {
				return nil, errors.New("no lamp")
			}
		}, fine, nil, "no lamp"},
		"its other migrations": {func(p *program.Program[settings]) {
			p.Migrate = func(context.Context, settings, framework.Config) error { return errors.New("no ledger") }
		}, fine, nil, "no ledger"},
		"no name":  {func(p *program.Program[settings]) { p.Name = "" }, fine, nil, "Program.Name"},
		"no files": {func(p *program.Program[settings]) { p.Files = nil }, fine, nil, "Program.Files"},
		"no build": {func(p *program.Program[settings]) { p.Build = nil }, fine, nil, "Program.Build"},
	} {
		p := lampsProgram()
		if c.change != nil {
			c.change(&p)
		}
		_, err := programtest.Command(t, p, c.environ, c.args...)
		require.ErrorContains(t, err, c.named, name)
		require.NotContains(t, err.Error(), "connect: connect:", name)
	}
}

func TestConfigTellsEveryKey(t *testing.T) {
	t.Parallel()
	environ := []string{"HEADRACE_ENV=test", "HEADRACE_LAMPS_KEY=s3cret", "HEADRACE_LOG_LEVEL=debug"}
	out, err := programtest.Command(t, lampsProgram(), environ, "config")
	require.NoError(t, err)
	require.NotContains(t, out, "s3cret")
	row := func(fields ...string) {
		t.Helper()
		for line := range strings.Lines(out) {
			if got := strings.Fields(line); len(got) > 0 && got[0] == fields[0] {
				require.Equal(t, fields, got)
				return
			}
		}
		t.Fatalf("no row for %s in\n%s", fields[0], out)
	}
	require.Contains(t, out, "profile test, config/test.yaml")
	row("lamps.key", "HEADRACE_LAMPS_KEY", "secret", "environment", "[redacted]")
	row("lamps.rooms", "HEADRACE_LAMPS_ROOMS", "list", "file", "hall,attic")
	row("lamps.greet", "HEADRACE_LAMPS_GREET", "string", "default", "hello")
	row("log.level", "HEADRACE_LOG_LEVEL", "string", "environment", "debug")
	row("drain.timeout", "HEADRACE_DRAIN_TIMEOUT", "duration", "default", "25s")
	row("broker.prefix", "HEADRACE_BROKER_PREFIX", "string", "default", `""`)

	out, err = programtest.Command(t, lampsProgram(), environ, "config", "--json")
	require.NoError(t, err)
	require.NotContains(t, out, "s3cret")
	var keys []config.Setting
	require.NoError(t, json.Unmarshal([]byte(out), &keys))
	known, err := config.Keys(&settings{})
	require.NoError(t, err)
	require.Len(t, keys, len(known))
	for i, k := range keys {
		require.Equal(t, known[i], config.Key{Path: k.Key, Env: k.Env, Kind: k.Type})
	}
}

// Whoever sets a service up asks what there is to set before it is set, and is
// told that it is not.
func TestConfigOfSettingsThatServeRefuses(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"config"}, {"config", "--json"}} {
		var stdout programtest.Log
		err := lampsProgram().Run(t.Context(), program.Call{
			Args: args, Environ: []string{"HEADRACE_ENV=test", "HEADRACE_LAMPS_ROOMS="}, Stdout: &stdout,
		})
		require.ErrorContains(t, err, "these settings do not work")
		require.ErrorContains(t, err, "lamps.rooms")
		require.Contains(t, stdout.String(), "HEADRACE_LAMPS_ROOMS")
		require.NotContains(t, stdout.String(), "do not work")
	}
}

// What follows from the profile that is missing would only hide that.
func TestConfigOfAnUnknownEnvironment(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"config"}, {"config", "--json"}, {"needs"}, {"explain"}} {
		out, err := programtest.Command(t, lampsProgram(), []string{"HEADRACE_ENV=nowhere", "HEADRACE_LAMPS_ROOMS="}, args...)
		require.Empty(t, out)
		require.ErrorContains(t, err, `no nowhere.yaml in the embedded profiles, there are: "`)
		require.NotContains(t, err.Error(), "rooms")
	}
}

func TestHelpNamesEveryCommand(t *testing.T) {
	t.Parallel()
	for _, arg := range []string{"help", "--help", "-h"} {
		out, err := programtest.Command(t, lampsProgram(), nil, arg)
		require.NoError(t, err)
		for _, command := range []string{"migrate", "healthcheck", "config", "config --json", "needs", "needs --json", "trial", "help"} {
			require.Contains(t, out, "smart-lamps "+command)
		}
	}
}

// The whole of a service: its settings, its program, and what they need on disk.
func Example() {
	type settings struct {
		config.Profile `koanf:",squash"`
		Greeting       string `koanf:"greeting"`
	}
	hello := program.Program[settings]{
		Name:  "hello",
		Files: fstest.MapFS{"config/local.yaml": {Data: []byte("{http: {addr: '127.0.0.1:0'}, admin: {addr: ''}, log: {level: error}, greeting: good morning}")}},
		Build: func(_ context.Context, s settings, base framework.Config) (*framework.App, error) {
			a, err := framework.New(base)
			if err != nil {
				return nil, err
			}
			a.HTTP(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, s.Greeting) }))
			return a, nil
		},
	}
	// In main: hello.Main()
	ctx, stop := context.WithCancel(context.Background())
	err := hello.Run(ctx, program.Call{Stdout: os.Stderr, Started: func(a *framework.App) {
		defer stop()
		res, err := http.Get("http://" + a.HTTPAddr())
		if err != nil {
			fmt.Println(err)
			return
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		fmt.Print(string(body))
	}})
	fmt.Println("ended:", err)
	// Output:
	// good morning
	// ended: <nil>
}
