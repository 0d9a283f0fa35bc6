package framework_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "github.com/headrace-go/headrace"

// use is one import of one file.
type use struct {
	// from is the importing package's path below the repository's root.
	from string
	test bool
	// imports is the imported path; what lies in this repository has no root
	// before it and begins with "/".
	imports string
}

// arrow is one rule: of the packages that from matches, none imports what deny
// matches, unless allow does. Tests are under the rules that say so.
type arrow struct {
	name     string
	from     *regexp.Regexp
	deny     *regexp.Regexp
	allow    *regexp.Regexp
	andTests bool
}

func re(s string) *regexp.Regexp { return regexp.MustCompile(s) }

var arrows = []arrow{
	{name: "pkg/events knows no broker, no SQL, no Watermill", from: re(`^pkg/events`), deny: re(`ThreeDotsLabs|^database/sql|^/framework|^/middleware|^/cmd|^/services`)},
	{name: "owners of events don't meet", from: re(`^pkg/events/(orders|payments|notifications)$`), deny: re(`^/pkg/events/`)},
	{name: "the envelope knows no owner", from: re(`^pkg/events$`), deny: re(`^/pkg/events/`)},
	{name: "middleware knows only Watermill and pkg/events", from: re(`^middleware$`), deny: re(`^/|^database/sql|redis|pgx|sqlite`), allow: re(`^/pkg/events$`)},
	{name: "framework and middleware know no owner of events", from: re(`^(framework|middleware)(/|$)`), deny: re(`^/pkg/events/`)},
	{name: "the root imports no service and no command", from: re(`^(framework|middleware|pkg)(/|$)`), deny: re(`^/(services|cmd)/`), andTests: true},
	{name: "commands import no service", from: re(`^cmd/`), deny: re(`^/services/`), andTests: true},
	{name: "the core names no broker client and no SQL driver", from: re(`^framework(/(config|inbox|outbox|sqltx|broker|logging|telemetry|httpx))?$`), deny: re(`go-redis|miniredis|pgx|modernc|aws-sdk|watermill-aws|gocloud|^/framework/broker/|^/framework/(connect|localredis|program)$`)},
	{name: "an adapter imports the port and nothing else of the framework", from: re(`^framework/broker/(memory|redisstream|sqs)$`), deny: re(`^/`), allow: re(`^/(framework/broker(/lanes)?|framework/internal/.*|middleware|pkg/events)$`)},
	{name: "the SQL adapter knows transactions besides", from: re(`^framework/broker/sqldb$`), deny: re(`^/`), allow: re(`^/framework/(broker(/lanes)?|sqltx|internal/.*)$|^/(middleware|pkg/events)$`)},
	{name: "the subscriptions' engine knows the port alone", from: re(`^framework/broker/lanes$`), deny: re(`^/`), allow: re(`^/(framework/broker|middleware|pkg/events)$`)},
	{name: "an adapter in a module of its own imports the port and the engine", from: re(`^brokers/`), deny: re(`^/`), allow: re(`^/(framework/broker(/lanes)?|middleware|pkg/events)$`)},
	{name: "the port imports no adapter", from: re(`^framework/broker$`), deny: re(`^/`), allow: re(`^/pkg/events$`)},
	{name: "brokertest, inboxtest and testenv are for tests", from: re(`.`), deny: re(`^/framework/(broker/brokertest|inbox/inboxtest|testenv|frameworktest(/.*)?)$`), allow: nil},
	{name: "no module has a top-level internal folder", from: re(`^internal(/|$)`), deny: re(`.`), andTests: true},

	{name: "orders talks to other services by events", from: re(`^services/orders(/|$)`), deny: re(`^/services/(payments|notifications)`), andTests: true},
	{name: "payments talks to other services by events", from: re(`^services/payments(/|$)`), deny: re(`^/services/(orders|notifications)`), andTests: true},
	{name: "notifications talks to other services by events", from: re(`^services/notifications(/|$)`), deny: re(`^/services/(orders|payments)`), andTests: true},
	{name: "domain is the standard library alone", from: re(`^services/[^/]+/internal/domain(/|$)`), deny: re(`^/|^[^/]+\.[^/]+/`), allow: re(`/internal/domain(/|$)`)},
	{name: "app knows domain, framework and pkg/events", from: re(`^services/[^/]+/internal/app(/|$)`), deny: re(`^/|ThreeDotsLabs|go-redis|pgx|modernc`), allow: re(`^/framework$|^/pkg/events(/|$)|/internal/(app|domain)(/|$)`)},
	{name: "inbound and outbound don't meet, and neither knows the wiring", from: re(`^services/[^/]+/internal/inbound(/|$)`), deny: re(`/internal/(outbound|service)(/|$)`)},
	{name: "outbound knows no inbound and no wiring", from: re(`^services/[^/]+/internal/outbound(/|$)`), deny: re(`/internal/(inbound|service)(/|$)`)},
	{name: "only internal/service wires brokers and connections", from: re(`^services/[^/]+/(cmd|internal/(domain|app|inbound|outbound))(/|$)`), deny: re(`^/framework/(broker|connect)(/|$)`)},
}

func (a arrow) broken(u use) bool {
	if u.test && !a.andTests || !a.from.MatchString(u.from) || !a.deny.MatchString(u.imports) {
		return false
	}
	return a.allow == nil || !a.allow.MatchString(u.imports)
}

// exempt are the test helpers that may import each other.
var exempt = re(`^framework/(frameworktest(/.*)?|broker/brokertest|testenv)$`)

func TestArrows(t *testing.T) {
	t.Parallel()
	uses := readImports(t)
	require.Greater(t, len(uses), 200, "the imports were read")
	var broken []string
	for _, u := range uses {
		for _, a := range arrows {
			helps := exempt.MatchString(u.from) && strings.HasPrefix(a.name, "brokertest")
			if a.broken(u) && !helps {
				broken = append(broken, u.from+" imports "+u.imports+": "+a.name)
			}
		}
	}
	sort.Strings(broken)
	require.Empty(t, broken, strings.Join(broken, "\n"))
}

// The rules must bite: each line breaks one.
func TestArrowsBite(t *testing.T) {
	t.Parallel()
	for _, u := range []use{
		{from: "pkg/events", imports: "github.com/ThreeDotsLabs/watermill/message"},
		{from: "pkg/events", imports: "database/sql"},
		{from: "pkg/events", imports: "/pkg/events/orders"},
		{from: "middleware", imports: "/framework"},
		{from: "middleware", imports: "/pkg/events/orders"},
		{from: "framework/outbox", imports: "/pkg/events/orders"},
		{from: "framework", imports: "github.com/redis/go-redis/v9"},
		{from: "framework/sqltx", imports: "github.com/jackc/pgx/v5/pgconn"},
		{from: "framework", imports: "/framework/broker/memory"},
		{from: "framework/broker/memory", imports: "/framework/broker/redisstream"},
		{from: "framework/broker/redisstream", imports: "/framework"},
		{from: "framework/connect", imports: "/framework/broker/brokertest"},
		{from: "framework", imports: "/services/orders/internal/app"},
		{from: "services/orders/internal/app", imports: "/services/payments/internal/app", test: true},
		{from: "services/orders/internal/domain", imports: "/pkg/events"},
		{from: "services/orders/internal/domain", imports: "github.com/google/uuid"},
		{from: "services/orders/internal/app", imports: "github.com/ThreeDotsLabs/watermill/message"},
		{from: "services/orders/internal/app", imports: "/middleware"},
		{from: "services/orders/internal/app", imports: "/services/orders/internal/outbound"},
		{from: "services/orders/internal/inbound", imports: "/framework/broker/redisstream"},
		{from: "services/orders/internal/outbound", imports: "/services/orders/internal/inbound"},
		{from: "cmd/headrace", imports: "/services/orders/internal/service"},
		{from: "internal/thing", imports: "fmt"},
	} {
		hit := false
		for _, a := range arrows {
			hit = hit || a.broken(u)
		}
		require.True(t, hit, "%s may import %s", u.from, u.imports)
	}
}

// readImports parses the imports of every Go file of every module.
func readImports(t *testing.T) []use {
	t.Helper()
	top, err := filepath.Abs("..")
	require.NoError(t, err)
	var uses []use
	err = filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if name != top && (strings.HasPrefix(base, ".") || base == "testdata" || base == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, filepath.Dir(name))
		if err != nil {
			return err
		}
		for _, spec := range f.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if rest, ours := strings.CutPrefix(imported, root); ours {
				imported = path.Clean("/" + rest)
			}
			uses = append(uses, use{from: filepath.ToSlash(rel), test: strings.HasSuffix(base, "_test.go"), imports: imported})
		}
		return nil
	})
	require.NoError(t, err)
	return uses
}

// What package framework pulls in, however far down, is no broker client and no
// SQL driver: an adapter is imported by whoever wires the program.
func TestFrameworkPullsInNoClient(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", ".")
	cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	deps := strings.Fields(string(out))
	require.Contains(t, deps, root+"/middleware")
	for _, dep := range deps {
		require.NotRegexp(t, `go-redis|miniredis|jackc/|modernc\.org|watermill-(redisstream|sql|aws)`, dep)
	}
}
