package sqldb

import (
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/sqltx"
)

// defaultPacket is the max_allowed_packet of MySQL and MariaDB where nobody has set
// it.
const defaultPacket = 16 << 20

// Features states what a broker with this configuration can do; nothing is opened.
// Of MySQL it takes the server's default for the largest message.
func (c Config) Features() broker.Features {
	d := sqlite()
	switch c.Dialect {
	case sqltx.Postgres:
		d = postgres()
	case sqltx.MySQL:
		d = &dialect{maxMessage: defaultPacket/2 - 64<<10}
	}
	return (&Broker{d: d}).Features()
}
